"""The whole HTTP application over a service whose directory and models are the test's own."""

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from app.console.live_state import LiveState
from app.edge.restricted_api import RestrictedApis
from app.http.api import Api
from app.http.console_api import ConsoleApi
from app.http.head_policy import HeadPolicy
from app.service.client_settings import ClientSettings
from app.service.service import Service
from app.service.statistics import NodeTotals
from deployments.control.directory import READY, UNAVAILABLE, Directory, ModelEntry, VersionEntry
from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from deployments.replica.shared_memory import OwnTable, Regions
from tests.app.http.wire import EchoTarget, Wire

CONFIG = """
name: "%s" backend: "python" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
"""


class FakeHost:
    """Hosts the versions that the directory says are ready."""

    def __init__(self) -> None:
        self.regions = Regions(OwnTable())
        self.echo = EchoTarget()
        self.ready: set[tuple[str, int]] = set()
        self.moody: set[tuple[str, int]] = set()
        self.failures: dict[tuple[str, int], str] = {}
        self.copies: Collection[tuple[str, int]] = ()
        self.digests: dict[tuple[str, int], str] = {}
        self.router = SimpleNamespace(set_traffic=lambda traffic: None)

    def copies_now(self, name: str, version: int, digest: str) -> bool:
        return self.digests.get((name, version)) == digest

    def failed(self, name: str, version: int, digest: str) -> bool:
        return bool(self.failure(name, version))

    def target(self, name: str, version: int = -1) -> EchoTarget | None:
        return self.echo if (name, version) in self.ready else None

    def says_ready(self, name: str, version: int) -> bool:
        return (name, version) not in self.moody

    def fault(self, name: str, version: int) -> str:
        return ""

    def failure(self, name: str, version: int) -> str:
        return self.failures.get((name, version), "")


class FakeFleet:
    """Leads nowhere."""

    def target(self, name: str, version: int) -> None:
        return None

    awaited = target

    def says_ready(self, name: str, version: int) -> bool:
        return True

    def fault(self, name: str, version: int) -> str:
        return ""

    def refusal(self, group: str) -> str:
        return ""


class FakeCounters:
    """Has counted what was refused here, and nothing else."""

    def __init__(self) -> None:
        self.totals = Totals()

    async def of_node(self) -> Totals:
        return self.totals

    of_cluster = of_node

    async def of_nodes(self) -> list[NodeTotals]:
        return [NodeTotals("node", "127.0.0.1", self.totals)]


class FakeState:
    """A cluster of one ingress."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._rows: dict[str, Any] = {}

    async def change(self, rows: Mapping[str, Any]) -> None:
        self._rows = {key: value for key, value in (self._rows | dict(rows)).items() if value is not None}
        self._settings.take(self._rows)


def entry(name: str, *versions: tuple[int, str, str], more: str = "") -> ModelEntry:
    config = json_format.MessageToJson(
        text_format.Parse(CONFIG % name + more, ModelConfig()),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    return ModelEntry(config, "python", "", {number: VersionEntry(state, reason) for number, state, reason in versions})


class Served(Wire):
    """A connection to an ingress with `good` (version 1 and 2), `half` (1 of 2), `bad` (none) and `stream` (decoupled)."""

    def __init__(self, restricted: tuple[str, ...] = (), *, console: bool = True, **options: Any) -> None:
        host, self.fleet = FakeHost(), FakeFleet()
        self._echo = host.echo
        self.host = host
        self.counters = FakeCounters()
        self.service = Service(  # type: ignore[arg-type]
            "triton", "1.0", True, host, self.fleet, self.counters, Refusals(self.counters.totals), **options
        )
        self.service.settings.state = FakeState(self.service.settings)
        models = {
            "bad": entry("bad", (1, UNAVAILABLE, "it does not load")),
            "good": entry("good", (1, READY, ""), (2, READY, "")),
            "half": entry("half", (1, READY, ""), (2, UNAVAILABLE, "it does not load")),
            "a/b": entry("a/b", (1, READY, "")),
            "stream": entry("stream", (1, READY, ""), more="model_transaction_policy { decoupled: true }"),
        }
        for name, model in models.items():
            host.ready |= {(name, number) for number, version in model.versions.items() if version.state == READY}
        self.service.models.directory = Directory("epoch", 1, True, models)
        apis = RestrictedApis(restricted)
        page = ConsoleApi(self.service, LiveState(self.service), manages=True) if console else None
        super().__init__(policy=HeadPolicy(apis), app=Api(self.service, page), routes=self.service.routing)

    @property
    def target(self) -> EchoTarget:
        return self._echo
