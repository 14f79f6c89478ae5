"""Decodes and encodes what would keep a loop from its work, in a thread that is the process's only one for that."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from deployments.lane.frames import Buffer
from deployments.lane.wire import GRPC_STREAM, WireCodec
from deployments.lane.work_queue import Work, WorkQueue
from deployments.log.line_format import about_trace
from protocol.errors import Internal, ServingError
from protocol.infer import InferRequest, InferResponse, Reply
from protocol.trace import Trace

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.02

T = TypeVar("T")

Encoded = tuple[int | None, Sequence[Buffer]]


class SlowCodec:
    """One model version's codecs for what takes long; they are not those that the loop's thread uses.

    What is begun first ends first. Each method calls `done` on the loop with the result, or with the error to answer,
    unless the work that it returns is withdrawn. `queue` has one thread.
    """

    def __init__(self, codecs: tuple[WireCodec, ...], queue: WorkQueue) -> None:
        self._codecs = codecs
        self._queue = queue
        self._decoding: set[Work] = set()
        self._encoding: set[Work] = set()
        self._streaming: set[Work] = set()
        """Those of `_encoding` that go to streams."""

    @property
    def decoding_count(self) -> int:
        """How many requests are to be decoded."""
        return len(self._decoding)

    @property
    def encoding_count(self) -> int:
        """How many responses are to be encoded."""
        return len(self._encoding)

    def in_order(self, wire: int) -> bool:
        """Whether a response in this form leaves behind those that are to be encoded, whatever requests they answer.

        What ends later leaves later on a stream: its client may have made both requests, and tell answers apart by
        their order.
        """
        return wire == GRPC_STREAM and bool(self._streaming)

    def decodes(self, work: Work) -> bool:
        """Return whether the work is a request that is to be decoded."""
        return work in self._decoding

    def decode(
        self,
        wire: int,
        body: Buffer,
        json_length: int | None,
        reply: Reply,
        context: Any,
        done: Callable[[InferRequest | ServingError], None],
        trace: Trace | None = None,
    ) -> Work:
        """Decode a request; `trace` is None for one that is not traced."""
        run = partial(self._codecs[wire].decode, body, json_length, reply, context)
        return self._begin(self._decoding, run, done, "the request could not be decoded", trace)

    def encode(
        self, wire: int, request: InferRequest, response: InferResponse, done: Callable[[Encoded | ServingError], None]
    ) -> Work:
        """Encode a response."""
        run = partial(self._codecs[wire].encode, request, response)
        return self._begin_encoding(wire, run, done, "the response could not be encoded", request.trace)

    def fail(self, wire: int, error: ServingError, done: Callable[[Encoded | ServingError], None]) -> Work:
        """End a request with an error, after those of its responses that are to be encoded."""
        return self._begin_encoding(wire, partial(_raise, error), done, error.message, None)

    def withdraw(self, work: Work) -> None:
        """Do not begin it, and tell nobody what comes of it."""
        self._decoding.discard(work)
        self._encoding.discard(work)
        self._streaming.discard(work)
        work.withdraw()

    def _begin_encoding(
        self,
        wire: int,
        run: Callable[[], Encoded],
        done: Callable[[Encoded | ServingError], None],
        problem: str,
        trace: Trace | None,
    ) -> Work:
        def ended(result: Encoded | ServingError) -> None:
            self._streaming.discard(work)
            done(result)

        work = self._begin(self._encoding, run, ended, problem, trace)
        if wire == GRPC_STREAM:
            self._streaming.add(work)
        return work

    def _begin(
        self,
        under_way: set[Work],
        run: Callable[[], T],
        done: Callable[[T | ServingError], None],
        problem: str,
        trace: Trace | None,
    ) -> Work:
        def ended(result: T, error: BaseException | None) -> None:
            under_way.discard(work)
            if error is None:
                done(result)
            elif isinstance(error, ServingError):
                done(error)
            else:
                logger.error("%s", problem, exc_info=error, extra=about_trace("", None, trace))
                done(Internal(problem))

        work = self._queue.submit(run, ended)
        under_way.add(work)
        return work

    async def all_decoded(self, timeout_s: float) -> None:
        """Wait until every request that has come is decoded, so that the model can take it."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self.decoding_count and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(_LOOK_S)


def _raise(error: ServingError) -> Encoded:
    raise error
