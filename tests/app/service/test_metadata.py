"""What an ingress says of models that are ready elsewhere."""

from typing import Any, cast

from app.service.metadata import Metadata
from app.service.models import Models
from deployments.control.directory import NO_REPLICA, READY, UNAVAILABLE, ModelEntry, VersionEntry
from tests.app.http.served import FakeFleet, FakeHost


def test_the_index_says_why_this_node_could_not_load_an_embedded_model_that_others_serve() -> None:
    host = FakeHost()
    models = Models(cast(Any, host), cast(Any, FakeFleet()))
    models.directory.models = {name: ModelEntry(versions={1: VersionEntry(READY)}) for name in ("failed", "lost")}
    models.directory.epoch = "controller"
    metadata = Metadata("eagleray", "1", models, cast(Any, None))
    host.failures["failed", 1] = "no such file"
    found = {row["name"]: (row["state"], row["reason"]) for row in metadata.index()}
    assert found == {"failed": (UNAVAILABLE, "no such file"), "lost": (UNAVAILABLE, NO_REPLICA)}
