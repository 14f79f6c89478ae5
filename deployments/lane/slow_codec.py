"""Decodes and encodes what would keep a loop from its work, in a thread that is the process's only one for that."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from deployments.lane.frames import Buffer
from deployments.lane.wire import WireCodec
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

    What is begun first ends first. Each method calls `done` on the loop with the result, or with the error to answer.
    """

    def __init__(self, codecs: tuple[WireCodec, ...], thread: Executor | None = None) -> None:
        self._codecs = codecs
        self._thread = thread
        self.decoding_count = 0
        self.encoding_count = 0

    def decode(
        self,
        wire: int,
        body: Buffer,
        json_length: int | None,
        reply: Reply,
        context: Any,
        done: Callable[[InferRequest | ServingError], None],
        trace: Trace | None = None,
    ) -> None:
        """Decode a request; `trace` is None for one that is not traced."""
        loop = asyncio.get_running_loop()
        self.decoding_count += 1

        def decoded(future: "asyncio.Future[InferRequest]") -> None:
            self.decoding_count -= 1
            _tell(future, done, "the request could not be decoded", trace)

        codec = self._codecs[wire]
        loop.run_in_executor(self._thread, codec.decode, body, json_length, reply, context).add_done_callback(decoded)

    async def all_decoded(self, timeout_s: float) -> None:
        """Wait until every request that has come is decoded, so that the model can take it."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self.decoding_count and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(_LOOK_S)

    def encode(
        self, wire: int, request: InferRequest, response: InferResponse, done: Callable[[Encoded | ServingError], None]
    ) -> None:
        """Encode a response."""
        loop = asyncio.get_running_loop()
        self.encoding_count += 1

        def encoded(future: "asyncio.Future[Encoded]") -> None:
            self.encoding_count -= 1
            _tell(future, done, "the response could not be encoded", request.trace)

        loop.run_in_executor(self._thread, self._codecs[wire].encode, request, response).add_done_callback(encoded)


def _tell(
    future: "asyncio.Future[T]", done: Callable[[T | ServingError], None], problem: str, trace: Trace | None
) -> None:
    if future.cancelled():
        return
    error = future.exception()
    if error is None:
        done(future.result())
    elif isinstance(error, ServingError):
        done(error)
    else:
        logger.error("%s", problem, exc_info=error, extra=about_trace("", None, trace))
        done(Internal(problem))
