"""What the process of a model asks of the server, as the replica serves it."""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from deployments.backends.python.process.channel import Channel
from deployments.backends.python.process.outbox import Outbox
from deployments.backends.python.server import CallResult, GiveUp, ModelCall, ModelServer
from protocol.errors import Internal, ServingError, Unavailable
from protocol.infer import Array, InferRequest, InferResponse

_LOG = logging.getLogger(__name__)

NO_SERVER = "BLS is not available"


class ServedCalls:
    """The calls of one process that are under way. `parents` returns the requests of some numbers that it still has."""

    def __init__(
        self,
        server: ModelServer | None,
        channel: Channel,
        outbox: Outbox,
        parents: Callable[[tuple[int, ...]], list[InferRequest]],
    ) -> None:
        self._server = server
        self._channel = channel
        self._outbox = outbox
        self._parents = parents
        self._give_ups: dict[int, GiveUp] = {}

    def call(self, number: int, fields: tuple[Any, ...], place: Array | None) -> None:
        """Send a request to a model, and its responses to the process."""
        name, version, inputs, bfloat16, outputs, id, sequence_id, flags, timeout_us, parameters, *rest = fields
        decoupled, parents, callers, traced = rest
        if self._server is None:
            self._take(number, Internal(NO_SERVER), frozenset())
            return
        call = ModelCall(
            name,
            version,
            self._channel.arrays(inputs, place),
            frozenset(bfloat16),
            outputs,
            id,
            sequence_id,
            flags,
            timeout_us,
            parameters,
            decoupled,
            self._parents(parents),
            callers,
            traced=next(iter(self._parents((traced,))), None) if traced is not None else None,
        )
        self._give_ups[number] = self._server.call(call, partial(self._take, number))

    def give_up(self, number: int, listens: bool = False) -> None:
        """Give a call up, unless it has ended; see `GiveUp`."""
        give_up = self._give_ups.get(number)
        if give_up is not None:
            give_up(listens=listens)

    def give_all_up(self) -> None:
        """Give all calls up: their process is dead."""
        give_ups, self._give_ups = self._give_ups, {}
        for give_up in give_ups.values():
            give_up()

    def control(self, number: int, kind: str, *arguments: Any) -> None:
        """Do what a method of the server does, on a thread of its own, and tell the answer."""
        thread = threading.Thread(target=self._control, args=(number, kind, *arguments), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more
            self._outbox.send("answer", None, number, None, (Unavailable.__name__, str(error)))

    def _control(self, number: int, kind: str, *arguments: Any) -> None:
        value, failure = None, None
        try:
            if self._server is None:
                raise Internal(NO_SERVER)
            value = getattr(self._server, kind)(*arguments)
        except ServingError as error:
            failure = (type(error).__name__, error.message)
        except Exception as error:
            _LOG.exception("%s for a model failed", kind)
            failure = ("Internal", f"{type(error).__name__}: {error}")
        self._outbox.send("answer", None, number, value, failure)

    def _take(self, number: int, result: CallResult, bfloat16: frozenset[str]) -> None:
        final = not isinstance(result, InferResponse) or result.final
        if final:
            self._give_ups.pop(number, None)
        if not self._outbox.send_result(number, final, tuple(bfloat16), result):
            self.give_up(number)
