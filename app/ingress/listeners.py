"""Everything that an ingress listens on, made from the settings: HTTP, its Unix socket, gRPC, metrics."""

import asyncio
from functools import partial
from typing import Final

from app.console.live_state import LiveState
from app.edge.access import Access
from app.edge.api_keys import ApiKeys
from app.edge.header_forwarding import HeaderForwarding
from app.edge.packing import packing_queue
from app.edge.restricted_api import STATISTICS, RestrictedApis
from app.edge.server_tls import HTTP_1, HTTP_2, ServerTls
from app.grpc.front import GrpcFront
from app.grpc.port_options import port_options
from app.http.api import Api
from app.http.console_api import ConsoleApi
from app.http.context import HttpContext
from app.http.front import HttpFront
from app.http.head_policy import HeadPolicy
from app.http.limits import HttpLimits
from app.http.metrics_app import MetricsApp, NoModels
from app.ingress.node_ports import NodePorts
from app.metrics.scrape import Scrape, Shown
from app.service.refusal_log import RefusalLog
from app.service.service import Service
from app.settings import Settings
from deployments.core.request_meter import RequestMeters

_KEY_WATCH_S: Final = 0.5


class Listeners:
    """The fronts of one ingress."""

    def __init__(
        self,
        settings: Settings,
        service: Service,
        node_ports: NodePorts,
        loop: asyncio.AbstractEventLoop,
        meters: RequestMeters,
    ) -> None:
        self._settings = settings
        self._service = service
        self._node_ports = node_ports
        self._loop = loop
        self._fronts: list[HttpFront | GrpcFront] = []
        self._keys = ApiKeys(settings.api_key, settings.api_key_file)
        self._key_watch: asyncio.Task[None] | None = None
        self._refusals = RefusalLog(loop.call_later, meters)
        self._packing = packing_queue(loop)
        self._state = LiveState(service)
        self.ports: dict[str, int] = {}

    async def open(self) -> None:
        """Listen on all of them.

        Wherever the admin API has a port of its own, no other port serves it.

        Raises:
            OSError: a port is taken, or a file cannot be read.
        """
        settings = self._settings
        limits = HttpLimits(
            max_body_bytes=settings.http_max_input_size,
            max_connections=settings.max_connections,
            max_decompression_ratio=settings.http_max_decompression_ratio,
            max_stream_buffer_bytes=settings.http_max_stream_buffer_bytes,
            header_timeout_s=settings.http_header_timeout_s,
            body_timeout_s=settings.http_body_timeout_s,
            write_timeout_s=settings.http_write_timeout_s,
            idle_timeout_s=settings.http_idle_timeout_s,
            max_total_body_bytes=settings.http_max_total_body_bytes,
        )
        own_port = settings.admin_port >= 0 and settings.allow_admin_api
        access = Access(self._keys, admin=settings.allow_admin_api and not own_port)
        if settings.allow_http:
            http = self._http(limits, access)
            self._fronts.append(http)
            self.ports["http"] = await self._listen("http", settings.http_port, http, settings.http_address)
            if settings.http_unix_socket:
                await http.listen_unix(settings.http_unix_socket)
        if settings.allow_grpc:
            grpc = self._grpc(access)
            self._fronts.append(grpc)
            self.ports["grpc"] = await self._listen("grpc", settings.grpc_port, grpc, settings.grpc_address)
        if own_port:
            admin = self._http(limits, Access(self._keys))
            self._fronts.append(admin)
            self.ports["admin"] = await self._listen("admin", settings.admin_port, admin, settings.admin_address)
        if settings.allow_metrics:
            policy = HeadPolicy(access=access, category=STATISTICS)
            app = MetricsApp(self._scrape().text)
            metrics = HttpFront(HttpContext(app, NoModels(), limits, self._loop, policy, self._refusals))
            self._fronts.append(metrics)
            address = settings.metrics_address or settings.http_address
            self.ports["metrics"] = await self._listen("metrics", settings.metrics_port, metrics, address)
        if self._keys:
            self._key_watch = self._loop.create_task(self._watch_keys(), name="API keys")

    async def _listen(self, name: str, port: int, front: HttpFront | GrpcFront, address: str) -> int:
        return await self._node_ports.listen(name, port, partial(front.listen, address))

    async def _watch_keys(self) -> None:
        while True:
            await asyncio.sleep(_KEY_WATCH_S)
            if self._keys.reload_if_changed():
                for front in self._fronts:
                    front.keys_changed()

    def _http(self, limits: HttpLimits, access: Access) -> HttpFront:
        settings = self._settings
        restricted = RestrictedApis(settings.http_restricted_api)
        policy = HeadPolicy(restricted, HeaderForwarding(settings.http_header_forward_pattern), access)
        tls = None
        if settings.http_use_ssl:
            client_root = settings.http_root_cert if settings.http_use_ssl_mutual else ""
            tls = ServerTls(settings.http_server_cert, settings.http_server_key, HTTP_1, client_root)
        console = None
        if settings.console:
            console = ConsoleApi(self._service, self._state, manages=access.serves_admin)
        context = HttpContext(
            Api(self._service, console),
            self._service.routing,
            limits,
            self._loop,
            policy,
            self._refusals,
            self._packing,
            reads_parents=self._service.tracing.reads_parents,
        )
        return HttpFront(context, tls)

    def _grpc(self, access: Access) -> GrpcFront:
        settings = self._settings
        tls = None
        if settings.grpc_use_ssl:
            client_root = settings.grpc_root_cert if settings.grpc_use_ssl_mutual else ""
            tls = ServerTls(settings.grpc_server_cert, settings.grpc_server_key, HTTP_2, client_root)
        options = port_options(settings, access, reads_parents=self._service.tracing.reads_parents)
        return GrpcFront(self._service, options, self._loop, tls, self._refusals, self._packing)

    def _scrape(self) -> Scrape:
        settings = self._settings
        shown = Shown(
            settings.metrics_options(), settings.allow_cpu_metrics, settings.allow_gpu_metrics, settings.metrics_aliases
        )
        return Scrape(self._service.statistics, self._service.models, shown)

    def routes_changed(self) -> None:
        """Find every target anew."""
        for front in self._fronts:
            front.routes_changed()

    async def close(self, timeout_s: float) -> None:
        """Take nothing new, answer what is under way."""
        if self._key_watch is not None:
            self._key_watch.cancel()
        await asyncio.gather(*(front.close(timeout_s) for front in self._fronts))
        self._packing.close()
