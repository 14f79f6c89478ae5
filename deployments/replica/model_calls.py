"""The calls that a process's models make to other models: in the same core, else over lanes."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from deployments.backends.python.server import CallResult, GiveUp, ModelCall, Take
from deployments.core.clock import Clock
from deployments.core.core import LATEST, Core
from deployments.log.line_format import about_requests
from deployments.replica.host_router import HostRouter
from deployments.replica.neighbours import Neighbours, NoNeighbours
from protocol.array_request import request_from_arrays
from protocol.callers import MAX_CALLERS, chain
from protocol.errors import Cancelled, Internal, InvalidArgument, NotFound, ServingError, Unavailable
from protocol.infer import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse, read_only
from protocol.limits import DEFAULT_LIMITS
from protocol.normalise import effective_priority
from protocol.request_parameters import RequestParameters, read_parameters
from protocol.signature import Signature
from repository_loader.namespaces import ambiguous

_T = TypeVar("_T")
logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.05
"""How often calls are compared with those on whose behalf they are made."""
_READY_S: Final = 5.0
"""How long it may take to find a model that is asked whether it is ready."""


class ModelCalls:
    """The `ModelServer` of one process; made on its loop's thread. `neighbours` are set before models are loaded.

    A model that loads holds one of `threads`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        core: Core,
        router: HostRouter,
        clock: Clock,
        threads: asyncio.Semaphore,
    ) -> None:
        self.neighbours: Neighbours = NoNeighbours()
        self.router = router
        self.clock = clock
        self._loop = loop
        self._core = core
        self._threads = threads
        self._thread = threading.get_ident()
        self._open: set[_OpenCall] = set()
        self._looking = False

    def may_wait(self) -> bool:
        """Whether this thread is another than the loop's."""
        return threading.get_ident() != self._thread

    def call(self, call: ModelCall, take: Take) -> GiveUp:
        """Send a request; see `ModelServer`."""
        if call.goes_on:
            call = replace(call, inputs={name: array.copy() for name, array in call.inputs.items()})
        opened = _OpenCall(self, call, take)
        if not self.may_wait():
            opened.start()
            return opened.give_up
        try:
            self.clock.call_soon_threadsafe(opened.start)
        except RuntimeError:  # the loop is closed
            opened.end(Unavailable("Server is stopping"))
        return opened.give_up

    def load_model(self, name: str, config: str | None, files: Mapping[str, bytes], *, loading: bool = False) -> None:
        """Load a model; see `ModelServer`. `loading` says that the model which asks for it loads itself."""
        self._wait(self._load(name, config, files, loading))

    async def _load(self, name: str, config: str | None, files: Mapping[str, bytes], loading: bool) -> None:
        if loading:
            self._threads.release()  # the other may need it
        try:
            await self.neighbours.load(name, config, files)
        finally:
            if loading:
                await self._threads.acquire()

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model; see `ModelServer`."""
        self._wait(self.neighbours.unload(name, unload_dependents))

    def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model takes requests; see `ModelServer`."""
        return self._wait(self._is_ready(name, version))

    def _wait(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _is_ready(self, name: str, version: int) -> bool:
        if self.neighbours.left(name, version):
            return False  # though it is unloaded here only a moment later
        answer: asyncio.Future[bool] = self._loop.create_future()

        def found(signature: Signature | None) -> None:
            if not answer.done():
                answer.set_result(signature is not None)

        self.find(name, version, found)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READY_S):
                return await answer and not self.router.awaits(name, version)
        return False

    def find(self, name: str, version: int, found: Callable[[Signature | None], None]) -> None:
        """Tell the signature of a model version that can be asked from here, None when there is none.

        A model that was unloaded may be here for a moment still; nobody asks it any more.
        """
        if self.neighbours.unloaded(name, version):
            found(None)
            return
        if not self._core.has(name) or (version == LATEST and not self.router.reaches_share(name)):
            self.neighbours.find(name, version, found)
            return
        try:
            signature = self._core.resolve(name, version).signature
        except ServingError:
            self.neighbours.find(name, version, found)
        else:
            found(signature)

    def not_found(self, name: str) -> ServingError:
        """Return why there is no model of a name."""
        count = self.neighbours.sharing(name)
        if count > 1:
            return InvalidArgument(ambiguous(name, count))
        return NotFound(f"Failed for execute the inference request. Model '{name}' is not ready.")

    def opened(self, call: "_OpenCall") -> None:
        """Have a call end when all on whose behalf it is made are given up."""
        self._open.add(call)
        if not self._looking:
            self._looking = True
            self.clock.call_later(_LOOK_S, self._look)

    def closed(self, call: "_OpenCall") -> None:
        """Look at a call no longer."""
        self._open.discard(call)

    def _look(self) -> None:
        for call in list(self._open):
            if all([parent.cancelled for parent in call.call.parents]):
                call.cancel()
        self._looking = bool(self._open)
        if self._looking:
            self.clock.call_later(_LOOK_S, self._look)


class LoadedModel:
    """The `ModelServer` of one model of the process, from before its `initialize` on."""

    def __init__(self, calls: ModelCalls) -> None:
        self.loading = True
        self._calls = calls
        self.may_wait = calls.may_wait
        self.call = calls.call
        self.unload_model = calls.unload_model
        self.is_model_ready = calls.is_model_ready

    def load_model(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model; see `ModelServer`."""
        self._calls.load_model(name, config, files, loading=self.loading)


class _OpenCall:
    """One call under way, on the loop's thread but for `give_up`; nothing is taken before `start` returns."""

    __slots__ = ("_bfloat16", "_calls", "_ended", "_name", "_request", "_starting", "_take", "call")

    def __init__(self, calls: ModelCalls, call: ModelCall, take: Take) -> None:
        self.call = call
        self._calls = calls
        self._take = take
        self._name = call.model_name + call.namespace
        self._ended = False
        self._starting = False
        self._request: InferRequest | None = None
        self._bfloat16: frozenset[str] = frozenset()

    def start(self) -> None:
        if self._ended:
            return
        if self.call.parents:
            self._calls.opened(self)
        self._starting = True
        self._calls.find(self._name, self.call.model_version, self._found)
        self._starting = False

    def _found(self, signature: Signature | None) -> None:
        if self._ended:
            return
        name = self.call.model_name
        if signature is None and self._name != name:
            self._name = name
            return self._calls.find(name, self.call.model_version, self._found)
        if signature is None:
            return self.end(self._calls.not_found(name))
        if signature.decoupled and not self.call.decoupled:
            return self.end(InvalidArgument(_NOT_FOR_DECOUPLED.format(name)))
        self._bfloat16 = signature.bfloat16_outputs
        try:
            self._send(signature)
        except ServingError as error:
            self.end(error)
        except Exception as error:
            whose = about_requests(name, None, () if self.call.traced is None else (self.call.traced,))
            logger.exception("a call of model '%s' by a model could not be sent", name, extra=whose)
            self.end(Internal(f"the request to model '{name}' could not be understood: {type(error).__name__}"))

    def _send(self, signature: Signature) -> None:
        call = self.call
        if len(call.callers) > MAX_CALLERS:
            raise InvalidArgument(
                f"Failed for execute the inference request. More than {MAX_CALLERS} models wait for each other: "
                f"{chain(call.callers, call.model_name)}"
            )
        given = _parameters(call)
        inputs = {name: read_only(array) for name, array in call.inputs.items()}
        request = request_from_arrays(
            signature,
            inputs,
            self._reply,
            outputs=call.outputs,
            parameters=given.custom,
            id=call.request_id,
            bfloat16=call.bfloat16,
        )
        request.sequence_id = call.sequence_id or given.sequence_id
        request.flags = call.flags & (SEQUENCE_START | SEQUENCE_END) | given.flags
        request.timeout_us = call.timeout_us or given.timeout_us
        request.priority = effective_priority(signature, given.priority)
        request.callers = call.callers
        if call.traced is not None and call.traced.trace is not None:
            request.trace = call.traced.trace.child(self._name, call.model_version)
        self._request = request
        self._calls.router.infer(self._name, call.model_version, request)

    def give_up(self, *, listens: bool = False) -> None:
        """Give the call up, on any thread; see `GiveUp`."""
        if not self._ended:
            try:
                self._calls.clock.call_soon_threadsafe(self._tell if listens else self.cancel)
            except RuntimeError:  # the loop is closed, and so nothing comes any more
                self._ended = True

    def _tell(self) -> None:
        if self._request is None:
            self.cancel()
        else:
            self._calls.router.cancel(self._request, listens=True)

    def cancel(self) -> None:
        if self._ended:
            return
        request = self._request
        self.end(Cancelled("the request has been cancelled"))
        if request is not None:
            self._calls.router.cancel(request)

    def end(self, error: ServingError) -> None:
        self._close()
        if self._starting:
            self._calls.clock.call_soon(partial(self._take, error, frozenset()))
        else:
            self._take(error, frozenset())

    def _reply(self, request: InferRequest, result: CallResult) -> None:
        if self._ended:
            return
        if not isinstance(result, InferResponse) or result.final:
            self._close()
        self._take(result, self._bfloat16)

    def _close(self) -> None:
        self._ended = True
        self._request = None
        self._calls.closed(self)


def _parameters(call: ModelCall) -> RequestParameters:
    """Read a call's parameters as those of a request by wire are read."""
    if not call.parameters:
        return RequestParameters()
    return read_parameters({"parameters": dict(call.parameters)}, DEFAULT_LIMITS)


_NOT_FOR_DECOUPLED: Final = (
    "Model {} is using the decoupled. The current BLS request call doesn't support models using the decoupled "
    "transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled models."
)
