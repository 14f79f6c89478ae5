"""What Ray keeps to start a process with is read by a process of another version, too."""

import pickle
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from deployments.control.controller_options import ControllerOptions
from deployments.core.metrics_options import MetricsOptions
from deployments.log.log_options import LogOptions
from deployments.replica.replica_options import ReplicaOptions
from protocol import by_name
from protocol.by_name import ByName
from protocol.limits import Limits
from repository_loader.deployment_plan import PlanSettings
from repository_loader.snapshot import LoaderOptions


@dataclass(frozen=True, slots=True)
class Older(ByName):
    name: str
    gone: int = 1
    size_bytes: int = 2


@dataclass(frozen=True, slots=True)
class Newer(ByName):
    new: str = "new"
    size_bytes: int = 3
    name: str = ""


def test_fields_are_found_by_their_names() -> None:
    restore, (_, values) = Older("a", size_bytes=5).__reduce__()
    assert restore is by_name.restored
    assert restore(Newer, values) == Newer("new", 5, "a")
    assert restore(Older, {"name": "a", "mood": "good"}) == Older("a")
    with pytest.raises(TypeError, match="'name'"):
        restore(Older, {"size_bytes": 5})


@pytest.mark.parametrize(
    "options",
    [
        ControllerOptions(("/r",), LoaderOptions(cache_dir="/c"), PlanSettings("packed"), Limits(), deployed="1"),
        ReplicaOptions(True, Limits(), log=LogOptions("/log", log_info=False), max_queue_s=3.0),
    ],
    ids=lambda options: type(options).__name__,
)
def test_all_that_processes_are_started_with_travels_so(options: Any) -> None:
    assert pickle.loads(pickle.dumps(options)) == options
    assert replace(options) == options
    nested = [getattr(options, each.name) for each in fields(options)]
    assert {type(each) for each in nested if hasattr(each, "__dataclass_fields__")} <= {
        *(LoaderOptions, PlanSettings, Limits, LogOptions, MetricsOptions)
    }
    assert all(isinstance(each, ByName) for each in nested if hasattr(each, "__dataclass_fields__"))
