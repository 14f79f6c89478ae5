"""What `print` does in a replica, whose own is Serve's."""

import builtins
import contextlib
import io
import logging
import sys
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


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    lines = io.StringIO()
    monkeypatch.setattr(logging.getLogger("ray.serve"), "handlers", [logging.StreamHandler(lines)])
    monkeypatch.setattr(logging.getLogger("ray.serve"), "level", logging.INFO)
    return lines


def test_all_else_goes_to_the_log_of_serve(logged: io.StringIO) -> None:
    print("a", 1)
    print("b", file=sys.stdout)
    print("c", file=sys.stderr)
    assert logged.getvalue() == "a 1\nb\nc\n"


def test_a_stream_that_is_put_into_the_place_of_stdout_gets_what_is_printed(
    logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        print("a", 1)
        print("b", file=sys.stdout, flush=True)
    assert text.getvalue() == "a 1\nb\n"
    assert not logged.getvalue()
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)  # as many put it back
    print("c")
    assert logged.getvalue() == "c\n"
