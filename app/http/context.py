"""What the connections of a port share: limits, known heads, the route to a model, the ASGI application."""

import asyncio
from typing import Any, Final, Protocol

from app.edge.body_budget import BodyBudget
from app.edge.open_connections import OpenConnection, OpenConnections
from app.edge.packing import packing_queue
from app.edge.slow_readers import SlowReaders
from app.http.asgi import AsgiApp
from app.http.generate_mapping import GenerateMapping
from app.http.head import Head, parse_head
from app.http.head_cache import HeadCache
from app.http.head_ends import HeadEnds
from app.http.head_policy import HeadPolicy
from app.http.limits import HttpLimits
from app.json_helper.json_helper import JsonHelper
from app.service.refusal_log import RefusalLog
from app.trace.trace_parent import find_parent
from app.trace.traced_target import under
from deployments.lane.sink import Target
from deployments.lane.work_queue import WorkQueue
from protocol.limits import Limits

# Of a long body, what comes with the head is copied once more than the rest.
_READ_BYTES: Final = 1 << 16


class Routes(Protocol):
    """Finds what a model's name in a URL means, for the version asked for (-1: none was); both raise ServingErrors."""

    def resolve(self, quoted_name: bytes, version: int) -> Target:
        """Return where inference requests go."""
        ...

    def resolve_generate(self, quoted_name: bytes, version: int) -> tuple[Target, list[dict[str, Any]], bool]:
        """Return where generate requests go, the model's inputs as its metadata lists them, and if it is decoupled."""
        ...


class HttpContext:
    """Given to every connection of a port, and to the exchanges on it.

    What `routes` answers is kept in the heads that it was asked for until `generation` is raised. `reads_parents` says
    that clients' `traceparent` counts.
    """

    def __init__(
        self,
        app: AsgiApp,
        routes: Routes,
        limits: HttpLimits,
        loop: asyncio.AbstractEventLoop,
        policy: HeadPolicy | None = None,
        refusals: RefusalLog | None = None,
        packing: WorkQueue | None = None,
        *,
        reads_parents: bool = False,
    ) -> None:
        self.app = app
        self.reads_parents = reads_parents
        self.limits = limits
        self.loop = loop
        self.policy = HeadPolicy() if policy is None else policy
        self.connections: OpenConnections[OpenConnection] = OpenConnections(limits.max_connections)
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.heads = HeadCache(limits.max_header_count, self.policy.is_read if self.policy else None)
        self.head_ends = HeadEnds()
        self.bodies = BodyBudget(max(limits.max_total_body_bytes, limits.max_body_bytes))
        self.slow_readers = SlowReaders(max(limits.max_total_body_bytes, limits.max_body_bytes))
        self.refusals = RefusalLog(loop.call_later) if refusals is None else refusals
        self.packing = packing_queue(loop) if packing is None else packing
        self.generation = 0
        self.json_helper = JsonHelper(loop)
        self._routes = routes
        self._json_limits = Limits.of_input_size(limits.max_body_bytes)

    def read_head(self, raw: bytes) -> Head:
        """Return the head that these bytes, up to and including the empty line, are; they were not seen before.

        Raises:
            BadRequest: with the status and text to answer before the connection is closed.
        """
        head = self.heads.find(raw)
        if head is None:
            head = parse_head(raw, self.limits)
            self.policy.apply(head)
            if head.cacheable:
                self.heads.remember(raw, head)
        if self.reads_parents and head.action is not None and (parent := find_parent(raw)) is not None:
            head = head.of_trace(parent)
            if head.cacheable:
                self.heads.keep(raw, head)
        return head

    def target(self, head: Head) -> Target:
        """Return where an inference request goes."""
        if head.generation != self.generation:
            target = self._routes.resolve(head.model, head.version)
            head.target = target if head.trace_parent is None else under(target, head.trace_parent)
            head.generation = self.generation
        return head.target  # type: ignore[return-value]

    def generate_target(self, head: Head) -> Target:
        """Return where a request of the generate extension goes, and set the head's mapping."""
        if head.generation != self.generation:
            target, inputs, decoupled = self._routes.resolve_generate(head.model, head.version)
            head.target = target if head.trace_parent is None else under(target, head.trace_parent)
            head.mapping = GenerateMapping(inputs, self._json_limits, decoupled)
            head.generation = self.generation
        return head.target  # type: ignore[return-value]

    def routes_changed(self) -> None:
        """Resolve every target anew."""
        self.generation += 1

    def keys_changed(self) -> None:
        """Ask every head anew for its key."""
        self.heads.clear()
