"""What the calls of one port share: the service behind them, its routes, the options, tasks of their own."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from app.edge.packing import packing_queue
from app.grpc.options import GrpcOptions
from app.grpc.routes import Routes
from app.service.refusal_log import RefusalLog
from app.service.service import Service
from deployments.lane.work_queue import WorkQueue


class CallContext:
    """One per port; heads and calls hold it."""

    __slots__ = ("_tasks", "loop", "options", "packing", "refusals", "routes", "service")

    def __init__(
        self,
        service: Service,
        options: GrpcOptions,
        loop: asyncio.AbstractEventLoop,
        refusals: RefusalLog | None = None,
        packing: WorkQueue | None = None,
    ) -> None:
        self.service = service
        self.options = options
        self.loop = loop
        self.refusals = RefusalLog(loop.call_later) if refusals is None else refusals
        self.packing = packing_queue(loop) if packing is None else packing
        self.routes = Routes(service.routing.infer_target)
        self._tasks: set[asyncio.Task[bytes]] = set()

    def start(self, coroutine: Coroutine[Any, Any, bytes]) -> asyncio.Task[bytes]:
        """Run a coroutine to its end."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel_tasks(self) -> None:
        """End every coroutine that still runs."""
        for task in tuple(self._tasks):
            task.cancel()
