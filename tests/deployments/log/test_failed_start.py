"""The log of a replica that cannot start says why, and nothing else."""

import logging

import pytest

from app.ingress.ingress import Ingress
from deployments.control.repository_controller import RepositoryController
from deployments.log.failed_start import tells_why_it_fails
from deployments.replica.model_replica import ModelReplica


class Replica:
    @tells_why_it_fails
    def __init__(self, room: int) -> None:
        if not room:
            raise OSError(28, "there are 0 bytes free in /dev/shm")
        self.held = [room]

    def __del__(self) -> None:
        self.held.clear()


def test_what_cannot_start_says_why_and_has_nothing_to_free(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica.__new__(Replica)
    with caplog.at_level(logging.ERROR, "ray.serve"), pytest.raises(OSError, match="0 bytes free"):
        replica.__init__(0)  # type: ignore[misc]
    (record,) = caplog.records
    assert record.getMessage() == "the replica cannot start: OSError: [Errno 28] there are 0 bytes free in /dev/shm"
    replica.__del__()
    replica.held = []  # for Python's own call


def test_what_has_started_is_freed() -> None:
    replica = Replica(1)
    held = replica.held
    replica.__del__()
    assert held == []


@pytest.mark.parametrize("made", [Ingress, RepositoryController, ModelReplica], ids=lambda made: made.__name__)
def test_all_that_serve_makes_tells_why_it_fails(made: type) -> None:
    assert made.__init__.__code__ is Replica.__init__.__code__  # type: ignore[misc]
