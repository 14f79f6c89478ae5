"""Business logic scripting: a model's code calls other models, and waits for their responses or awaits them."""

import asyncio
import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from deployments.backends.python.byte_tensor import host_bytes
from deployments.backends.python.errors import TritonModelException, of_serving_error
from deployments.backends.python.model_module import ModelModule, calling_model, only_model
from deployments.backends.python.response import InferenceResponse
from deployments.backends.python.server import CallResult, GiveUp, ModelCall, ModelServer, Take
from deployments.backends.python.tensor import BFloat16Tensor, Tensor
from protocol.errors import Internal, ServingError
from protocol.infer import Array, InferRequest, InferResponse

MAX_UNREAD_RESPONSES: Final = 100_000
MAX_UNREAD_BYTES: Final = 1 << 30
MAX_KEPT_RESPONSES: Final = 1_000
MAX_KEPT_BYTES: Final = 8 << 20

parents_here: ContextVar[Sequence[InferRequest]] = ContextVar("parents_here", default=())
"""The requests of the `execute` of a decoupled model that this code runs in; unknown in threads that it starts."""

NOT_ON_LOOP: Final = "A model cannot wait on the thread of the event loop; it runs on another from its next batch on."
NOT_FORKED: Final = "Models cannot be called or asked for in a process that a model has forked."
_NOT_HERE: Final = "BLS is only supported during the 'execute' function."
_OVERRUN = (
    f"The model left more than {MAX_UNREAD_RESPONSES:,} responses, or {MAX_UNREAD_BYTES >> 20:,} MiB, to a call unread."
)
MakeCall = Callable[[Sequence[InferRequest], tuple[str, ...]], ModelCall]
"""Makes a call of its `parents` and its `callers`."""

_Item = tuple[CallResult, frozenset[str]]


def execute(made_by: ModelModule | None, make: MakeCall, decoupled: bool) -> "InferenceResponse | ResponseIterator":
    """Call a model; blocks until its response is there, unless it is decoupled.

    Args:
        made_by: the model whose code has made the request, as far as that is known.
        make: makes the call of its parents and callers.
        decoupled: whether the responses are wanted one by one.

    Raises:
        TritonModelException: no model may call others here.
    """
    module, server = _server_for(made_by)
    if decoupled:
        return ResponseIterator(partial(_send, module, server, make))
    results: queue.SimpleQueue[_Item] = queue.SimpleQueue()
    _send(module, server, make, lambda *item: results.put(item))
    return _response(*results.get())


def execute_async(
    made_by: ModelModule | None, make: MakeCall, decoupled: bool
) -> "asyncio.Future[InferenceResponse | ResponseIterator]":
    """Do as `execute` does, at once, and return a future of this thread's event loop; cancelling it gives the call up.

    The future of a decoupled call is done with the first response, as in Triton: a model may then read on with a plain
    `for`, and holds up its loop no longer than between two responses.

    Raises:
        TritonModelException: no model may call others here.
        RuntimeError: no event loop runs on this thread.
    """
    module, server = _server_for(made_by)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[InferenceResponse | ResponseIterator]
    if decoupled:
        responses = ResponseIterator(partial(_send, module, server, make))
        answer = loop.create_task(_begun(responses))
        answer.add_done_callback(lambda done: responses._give_up() if done.cancelled() else None)
        return answer
    answer = loop.create_future()

    def settle(*item: Any) -> None:
        if not answer.done():
            answer.set_result(_response(*item))

    def take(*item: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *item)

    give_up = _send(module, server, make, take)
    answer.add_done_callback(lambda done: give_up() if done.cancelled() else None)
    return answer


class ResponseIterator:
    """The responses of a call to a decoupled model, as they come, by `for` or by `async for`; the last may be empty.

    Once it has ended it can be iterated again, unless there were too many responses to keep. One that is dropped gives
    its call up.
    """

    def __init__(self, send: Callable[[Take], GiveUp]) -> None:
        self._responses = _Responses()
        self._ended = False
        self._kept = _KeptResponses()
        self._give_up = send(self._responses.put)

    def __iter__(self) -> "ResponseIterator":
        if self._ended:
            self._kept.begin_again()
        return self

    def __next__(self) -> InferenceResponse:
        if self._ended:
            return next(self._kept)
        return self._next(self._responses.take())

    def __aiter__(self) -> "ResponseIterator":
        return self.__iter__()

    async def __anext__(self) -> InferenceResponse:
        if not self._ended:
            return self._next(await self._responses.wait())
        try:
            return next(self._kept)
        except StopIteration:
            raise StopAsyncIteration from None

    def cancel(self) -> None:
        """Tell the called model that nobody needs the rest; what it sends until it ends can be iterated still."""
        self._give_up(listens=True)

    def _next(self, item: _Item) -> InferenceResponse:
        if self._responses.overrun:
            self._ended = True
            self._give_up()
            response = _response(Internal(_OVERRUN), frozenset())
        else:
            self._ended = not isinstance(item[0], InferResponse) or item[0].final
            response = _response(*item)
        self._kept.add(response)
        return response

    def __del__(self) -> None:
        if not self._ended:
            self._give_up()


async def _begun(responses: ResponseIterator) -> InferenceResponse | ResponseIterator:
    """Return the responses when the first of them is there."""
    await responses._responses.come()
    return responses


class _KeptResponses:
    """What an iterator has given, to give it again; nothing once that is too much."""

    def __init__(self) -> None:
        self._responses: list[InferenceResponse] | None = []
        self._bytes = 0
        self._given = 0

    def add(self, response: InferenceResponse) -> None:
        if self._responses is None:
            return
        self._bytes += sum(tensor.host_bytes() for tensor in response.output_tensors())
        self._responses.append(response)
        self._given = len(self._responses)
        if self._given > MAX_KEPT_RESPONSES or self._bytes > MAX_KEPT_BYTES:
            self._responses = None

    def begin_again(self) -> None:
        if self._responses is not None and self._given >= len(self._responses):
            self._given = 0

    def __next__(self) -> InferenceResponse:
        if self._responses is None or self._given >= len(self._responses):
            raise StopIteration("Iteration is done for the responses.")
        self._given += 1
        return self._responses[self._given - 1]


class _Responses:
    """Responses between the thread that brings them and the code that reads them; too many unread end the call."""

    def __init__(self) -> None:
        self.items: queue.SimpleQueue[tuple[_Item, int]] = queue.SimpleQueue()
        """With the bytes of each; one that comes when all have been read counts none, which would take its time."""
        self.overrun = False
        self._put_bytes = 0
        self._taken_bytes = 0
        """Another thread's than `_put_bytes`."""
        self._wake: Callable[[], object] | None = None

    def put(self, result: CallResult, bfloat16: frozenset[str]) -> None:
        count = self.items.qsize()
        size = _size(result) if count else 0
        too_large = size and self._put_bytes - self._taken_bytes + size > MAX_UNREAD_BYTES
        if count >= MAX_UNREAD_RESPONSES or too_large:
            self.overrun = True
            return
        self._put_bytes += size
        self.items.put(((result, bfloat16), size))
        wake, self._wake = self._wake, None
        if wake is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                wake()

    def take(self, *, block: bool = True) -> _Item:
        """Return the next one, which counts no more.

        Raises:
            queue.Empty: it is not there, and not to be waited for.
        """
        item, size = self.items.get(block)
        self._taken_bytes += size
        return item

    async def wait(self) -> _Item:
        while True:
            await self.come()
            with suppress(queue.Empty):  # another reader was quicker
                return self.take(block=False)

    async def come(self) -> None:
        """Return when there is a response to read."""
        while True:
            woken = asyncio.Event()
            self._wake = partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set)
            if not self.items.empty():
                return
            await woken.wait()


class _AnsweredTensor(Tensor):
    """An output of a call; what may only be read is copied for a model that wants an array, which it may write to."""

    __slots__ = ()

    def as_numpy(self) -> Array:
        if not self._array.flags.writeable:
            self._array = self._array.copy()
        return self._array


_AnsweredTensor.__name__ = Tensor.__name__  # Python's own errors, which reach clients, call it as models know it


def _server_for(made_by: ModelModule | None) -> tuple[ModelModule, ModelServer]:
    module = made_by or calling_model() or only_model()
    if module is None or not module.may_call or module.server is None:
        raise TritonModelException(_NOT_HERE)
    if module.forked:
        raise TritonModelException(NOT_FORKED)
    module.blocks_loop()
    if not module.server.may_wait():
        raise TritonModelException(NOT_ON_LOOP)
    return module, module.server


def _send(module: ModelModule, server: ModelServer, make: MakeCall, take: Take) -> GiveUp:
    """Send a call; one that cannot be made of its arguments is answered with the error."""
    parents = module.requests or parents_here.get()
    callers = max([parent.callers for parent in parents], key=len, default=module.callers)
    try:
        call = make(parents, (*callers, module.caller))
    except ServingError as error:
        take(error, frozenset())
        return _nothing
    return server.call(call, take)


def _size(result: CallResult) -> int:
    return sum([host_bytes(array) for array in result.outputs.values()]) if isinstance(result, InferResponse) else 0


def _nothing(*, listens: bool = False) -> None:
    pass


def _response(result: CallResult, bfloat16: frozenset[str]) -> InferenceResponse:
    if not isinstance(result, InferResponse):
        return InferenceResponse(error=of_serving_error(result))
    tensors = [
        BFloat16Tensor(name, array) if name in bfloat16 else _AnsweredTensor(name, array)
        for name, array in result.outputs.items()
    ]
    response = InferenceResponse(tensors)
    response._parameters = result.parameters
    return response
