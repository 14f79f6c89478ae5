import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import BY_GRPC_CODE, Internal, ServingError, Unavailable, from_grpc_code, unexpected


@pytest.mark.parametrize("kind", BY_GRPC_CODE.values(), ids=lambda kind: kind.__name__)
def test_errors_survive_a_process_boundary(kind: type[ServingError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what")))
    assert type(error) is kind
    assert error.message == str(error) == "what"
    assert type(from_grpc_code(kind.grpc_code, "what")) is kind


def test_unknown_codes_are_internal() -> None:
    assert type(from_grpc_code(99, "what")) is Internal


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EMFILE, "Too many open files", "/secret"), "the server may open no more files"),
        (OSError(errno.ENOSPC, "No space", "/secret"), "the server has no room left, on a disk or in shared memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "the server has no memory left"),
        (MemoryError(), "the server has no memory left"),
        (RuntimeError("can't start new thread"), "the server can start no more threads"),
    ],
)
def test_what_the_machine_has_no_more_of_may_be_there_later(error: Exception, told: str) -> None:
    failure = unexpected(error)
    assert (type(failure), failure.message) == (Unavailable, told)


@pytest.mark.parametrize("error", [OSError("no number"), OSError(errno.EACCES, "No"), RuntimeError("/secret"), None])
def test_what_else_fails_is_told_without_details(error: Exception | None) -> None:
    failure = unexpected(error)
    assert (type(failure), failure.message) == (Internal, "internal server error")


def test_error_arrives_where_another_package_is_named_protocol(tmp_path: Path) -> None:
    (tmp_path / "protocol.py").write_text("raise RuntimeError('not for Eagleray')")
    (tmp_path / "error").write_bytes(pickle.dumps(Internal("what")))
    code = (
        "import pickle; error = pickle.load(open('error', 'rb')); print(type(error).__name__, error);"
        "assert type(pickle.loads(pickle.dumps(error))) is type(error)"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), root])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("Internal what\n", "")
