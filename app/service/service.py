"""What the server can do, once: HTTP, gRPC and every other protocol only translate to and from these parts.

Errors carry Triton's texts and are raised as ServingErrors.
"""

from app.service.client_settings import ClientSettings
from app.service.client_shared_memory import ClientSharedMemory
from app.service.cluster_view import ClusterView, NoClusterView
from app.service.health import Health
from app.service.log_settings import LogSettings
from app.service.metadata import Metadata
from app.service.model_control import ModelControl, NoModelControl
from app.service.models import Models
from app.service.routing import Routing
from app.service.statistics import Counters, Statistics
from app.service.trace_settings import TraceSettings
from app.service.traffic import TrafficService
from app.trace.tracing import Tracing
from deployments.core.refusals import Refusals
from deployments.lane.fleet import Fleet
from deployments.replica.model_host import ModelHost


class Service:
    """The parts of one ingress's service, over the models that it hosts and those that its lanes lead to."""

    def __init__(
        self,
        server_id: str,
        version: str,
        strict_readiness: bool,
        host: ModelHost,
        fleet: Fleet,
        counters: Counters,
        refusals: Refusals,
        *,
        namespacing: bool = False,
        allow_client_shm: bool = False,
        trace: TraceSettings | None = None,
        log: LogSettings | None = None,
        control: ModelControl | None = None,
    ) -> None:
        self.models = Models(host, fleet, namespacing=namespacing)
        self.routing = Routing(self.models, refusals, host.regions)
        self.health = Health(self.models, self.routing, strict_readiness)
        self.metadata = Metadata(server_id, version, self.models, self.routing)
        trace = trace or TraceSettings()
        self.tracing = Tracing(trace)
        self.settings = ClientSettings(trace, log or LogSettings(), self.health, self.tracing)
        self.routing.traced = self.tracing.target
        self.shared_memory = ClientSharedMemory(host.regions, allowed=allow_client_shm)
        self.statistics = Statistics(self.models, counters)
        self.control = control or NoModelControl()
        self.traffic = TrafficService(self.models)
        self.cluster: ClusterView = NoClusterView()
