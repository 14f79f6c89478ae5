"""What an ingress says of models that are ready elsewhere."""

import json
from types import SimpleNamespace
from typing import Any, cast

from app.service.metadata import Metadata
from app.service.models import Models
from deployments.control.directory import LOADING, NO_REPLICA, READY, UNAVAILABLE, UNLOADED, ModelEntry, VersionEntry
from tests.app.http.served import FakeFleet, FakeHost


def test_the_index_says_what_became_here_of_an_embedded_model_that_others_serve() -> None:
    host = FakeHost()
    models = Models(cast(Any, host), cast(Any, FakeFleet()))
    models.directory.models = {
        name: ModelEntry(versions={1: VersionEntry(READY)}) for name in ("failed", "loads", "lost")
    }
    models.directory.embedded = {f"{name}/1": {"digest": ""} for name in ("failed", "loads")}
    models.directory.epoch = "controller"
    metadata = Metadata("eagleray", "1", models, cast(Any, None))
    host.failures["failed", 1] = "no such file"
    found = {row["name"]: (row["state"], row.get("reason", "")) for row in metadata.index()}
    assert found == {"failed": (UNAVAILABLE, "no such file"), "loads": (LOADING, ""), "lost": (UNAVAILABLE, NO_REPLICA)}


def test_the_index_says_nothing_of_a_model_that_has_been_removed() -> None:
    models = Models(cast(Any, FakeHost()), cast(Any, FakeFleet()))
    unloaded = {1: VersionEntry(UNAVAILABLE, UNLOADED)}
    for name, removed in (("unloaded", False), ("removed", True)):
        told = ModelEntry(versions=unloaded, removed=removed).to_dict()
        models.directory.models[name] = ModelEntry.from_dict(told, None)
    models.directory.epoch = "controller"
    rows = Metadata("eagleray", "1", models, cast(Any, None)).index()
    assert [row["name"] for row in rows] == ["unloaded"]


def test_each_version_is_shown_with_the_tensors_of_its_own_file() -> None:
    host = FakeHost()
    models = Models(cast(Any, host), cast(Any, FakeFleet()))
    told = ModelEntry(
        '{"name": "m", "input": [{"name": "X", "dims": ["3"]}]}',
        versions={number: VersionEntry(READY) for number in (1, 2)},
        other_configs={1: '{"name": "m", "input": [{"name": "X", "dims": ["2"]}]}'},
    ).to_dict()
    models.directory.models = {"m": ModelEntry.from_dict(json.loads(json.dumps(told)), None)}
    metadata = Metadata("eagleray", "1", models, cast(Any, SimpleNamespace(target=lambda name, version: None)))

    def shown(version: int) -> tuple[object, object]:
        config = json.loads(metadata.config("m", version))
        return metadata.model("m", version)["inputs"][0]["shape"], config["input"][0]["dims"]

    host.ready |= {("m", 1), ("m", 2)}
    assert [shown(version) for version in (1, 2, -1)] == [([2], ["2"]), ([3], ["3"]), ([3], ["3"])]
    host.ready.discard(("m", 2))
    assert shown(-1) == ([2], ["2"]), "version 1 answers then"


def test_an_ingress_does_not_begin_beside_others_before_its_controller_has_heard_what_serves() -> None:
    """The controller may have died before: what others serve would be LOADING here until there is another."""
    host = FakeHost()
    models = Models(cast(Any, host), cast(Any, FakeFleet()))
    models.directory.models = {"m": ModelEntry(versions={1: VersionEntry(LOADING)})}
    models.directory.epoch = "controller"
    assert models.reached(), "it loads elsewhere"
    models.directory.embedded = {"m/1": {"digest": ""}}
    assert not models.reached()
    host.failures["m", 1] = "no such file"
    assert models.reached()
    models.directory.models["m"].versions[1].state = READY
    assert models.reached(), "what fails here is not waited for"
    host.failures.clear()
    assert not models.reached()
    host.ready.add(("m", 1))
    assert models.reached() and models.are_as_told()
    models.directory.models["m"].versions[1].state = LOADING
    assert models.reached() and not models.are_as_told()
