"""What `print` does in a replica, whose own is Serve's."""

import builtins
import io
import logging
from typing import TextIO

import pytest

from deployments.replica.model_output import show_model_output


@pytest.fixture(autouse=True)
def serves_print(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_a_tuple(*objects: object, file: TextIO) -> None:
        file.write(str(objects))

    monkeypatch.setattr(builtins, "print", write_a_tuple)
    show_model_output()


def test_a_file_gets_what_is_printed_into_it() -> None:
    file = io.StringIO()
    print("a", 1, sep="-", end=".", file=file)
    print("b", file=file, flush=True)
    assert file.getvalue() == "a-1.b\n"


def test_all_else_goes_to_the_log_of_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = io.StringIO()
    monkeypatch.setattr(logging.getLogger("ray.serve"), "handlers", [logging.StreamHandler(lines)])
    monkeypatch.setattr(logging.getLogger("ray.serve"), "level", logging.INFO)
    print("a", 1)
    assert lines.getvalue() == "a 1\n"
