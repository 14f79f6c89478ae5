"""One instance of a Python model: runs batches through its `execute`."""

import logging
import threading
from asyncio import _get_running_loop, _set_running_loop
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from time import monotonic_ns
from typing import Any

from deployments.backends.answer import Answer, Late, Outcome, answered
from deployments.backends.backend import Batch
from deployments.backends.gpu_fault import GpuFault, internal_error, is_of_lost_gpu
from deployments.backends.python.bls import parents_here
from deployments.backends.python.errors import told
from deployments.backends.python.home_thread import HomeThread
from deployments.backends.python.model_loop import ModelLoop
from deployments.backends.python.model_module import ModelModule
from deployments.backends.python.outputs import OutputReader, Views, copy_kept, settle
from deployments.backends.python.response import InferenceResponse
from deployments.backends.python.response_sender import (
    DecoupledResponseSender,
    Replies,
    ResponseSender,
    SingleResponseSender,
)
from deployments.backends.python.served_request import ServedRequest, request_class
from deployments.core.traced_request import begin_streams
from deployments.log.line_format import about_requests
from protocol.errors import Internal, ServingError
from protocol.infer import RESCHEDULED, InferRequest, InferResponse
from protocol.signature import Signature

_LOG = logging.getLogger(__name__)

_READY_TIMEOUT_S = 5.0
_LOGGED_IDS = 8
_LOGGED_CHARACTERS = 128


class PythonInstance:
    """Runs batches of a model that answers each request once.

    `execute` returns when every request has its outcome; a request that the model answers through its response sender,
    from whatever thread, is waited for. Where it `answers_late`, `execute` returns as soon as the model's own does, and
    the batch is `late` if a sender is unused then.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        module: ModelModule,
        model: Any,
        *,
        loop: ModelLoop | None,
        inline: bool,
        answers_late: bool = False,
    ) -> None:
        self.name = name
        self._answers_late = answers_late
        self.may_run_inline = inline
        self._module = module
        module.blocks_loop = self._leave_loop
        self._model = model
        self._model_execute: Callable[[list[ServedRequest]], Any] = model.execute
        self._loop = loop
        self.at_home: Callable[[Callable[[], None]], None] | None = None
        """Calls a function on the thread that the model belongs to, where it belongs to one."""
        self._asking: threading.Thread | None = None
        self._reader = OutputReader(signature)
        self.gpu_fault: GpuFault | None = None
        self._output_names = tuple(signature.outputs)
        self._iterative = signature.iterative
        self._request_class = request_class(
            frozenset(spec.name for spec in signature.inputs.values() if spec.datatype.name == "BF16"),
            iterative=signature.iterative,
        )

    def execute(self, batch: Batch) -> None:
        """Run the batch; a response with an error fails its own request.

        The model's exception fails all requests that it has not answered through their senders until then.
        """
        make, output_names, make_sender = self._request_class, self._output_names, self._make_sender
        requests = [make(request, output_names, make_sender) for request in batch.requests]
        batch.infer_start_ns = monotonic_ns()
        failure: Internal | None = None
        self._module.requests = batch.requests
        try:
            responses = self._run(requests.copy())  # which the model may empty as it goes
        except BaseException as error:  # whatever a model raises is its own: KeyboardInterrupt, CancelledError
            failure = self._failure(error, batch)
        self._module.requests = ()
        batch.infer_end_ns = monotonic_ns()
        if failure is not None:  # not in the handler: the model's frames, and so its arrays, would live on with it
            self._fail_unanswered(failure, batch, requests)
            return
        responses = self._checked(responses, len(requests))
        views: Views = []
        read = self._reader.read
        results: list[Outcome | Answer | None] = [
            read(request, response, views) if type(response) is InferenceResponse and given._sender is None else None
            for request, given, response in zip(batch.requests, requests, responses, strict=True)
        ]
        late = self._complete(results, requests, responses, views) if None in results else False
        if self._iterative:
            self._refuse_rescheduled(results, batch.requests, responses)
        if views:
            settle(views)
        copy_kept(responses, results)
        for result in results:
            if isinstance(result, ServingError) and is_of_lost_gpu(result.message):  # which the model has caught
                raise GpuFault(result.message)
        if late:
            there = [each for each in results if each is not None]  # which is all of them
            batch.late = Late(self.name, [each if isinstance(each, Answer) else answered(each) for each in there])
            batch.answered = True
        else:
            batch.results = results  # type: ignore[assignment]

    @property
    def has_own_readiness(self) -> bool:
        """Whether the model has an `is_ready`."""
        return hasattr(self._model, "is_ready")

    def is_ready(self) -> bool:
        """Return what the model's own `is_ready` says, True without one; blocking, five seconds at most.

        While it has not come back from an earlier question, the model is not asked again, and not ready.
        """
        if not self.has_own_readiness:
            return True
        if self._asking is not None and self._asking.is_alive():
            return False
        answer: Future[Any] = Future()
        self._asking = threading.Thread(target=self._ask_ready, args=(answer,), name=f"{self.name}-ready", daemon=True)
        self._asking.start()
        try:
            ready = answer.result(_READY_TIMEOUT_S)
            if not isinstance(ready, bool):
                raise TypeError("is_ready() must return a boolean value")
        except BaseException:  # whatever a model raises is its own
            _LOG.exception("is_ready() of model instance '%s' failed", self.name)
            return False
        return ready

    def stay_on(self, home: HomeThread) -> None:
        """Run batches, and `finalize`, on this thread, and end it with the instance."""
        self.at_home, execute, close = home.call, self.execute, self.close

        def execute_there(batch: Batch) -> None:
            home.call(partial(execute, batch))

        def close_there() -> None:
            self.close = close  # type: ignore[method-assign]  # once more there is no thread
            home.call(close)
            home.end()

        self.execute, self.close = execute_there, close_there  # type: ignore[method-assign]

    def close(self) -> None:
        """Call the model's `finalize` and forget its modules; what it raises is logged."""
        self._module.may_call = False
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except BaseException:
            _LOG.exception("finalize() of model instance '%s' failed", self.name)
        if self._loop is not None:
            self._loop.close()
            self._loop = None
        self._model = self._model_execute = None  # type: ignore[assignment]
        self._module.close()

    def _run(self, requests: list[ServedRequest]) -> Any:
        """Call the model's `execute`; on a loop's thread the model does not see that loop and may run its own."""
        running = _get_running_loop()
        if running is None:
            responses = self._model_execute(requests)
        else:
            _set_running_loop(None)
            try:
                responses = self._model_execute(requests)
            finally:
                _set_running_loop(running)
        if type(responses) is list or not isinstance(responses, Coroutine):
            return responses
        return self._await(responses)

    def _await(self, coroutine: Any) -> Any:
        return self._own_loop().submit(coroutine).result()

    def _own_loop(self) -> ModelLoop:
        if self._loop is None:  # `execute` is a plain function that returns a coroutine
            self._loop = ModelLoop(self.name)
            self._leave_loop()
        return self._loop

    def _leave_loop(self) -> None:
        """Run in a thread from the next batch on."""
        self.may_run_inline = False

    def _checked(self, responses: Any, request_count: int) -> list[Any]:
        if responses is None:
            return [None] * request_count
        if not isinstance(responses, list):
            raise Internal(self._failed(f"Expected a list in the execute return, found type '{type(responses)}'."))
        if len(responses) != request_count:
            raise Internal(
                self._failed(
                    "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                    f"InferenceRequest(s) size is:{request_count}, and InferenceResponse(s) size is:{len(responses)}"
                )
            )
        return responses

    def _complete(
        self,
        results: list[Outcome | Answer | None],
        requests: list[ServedRequest],
        responses: list[Any],
        views: Views,
    ) -> bool:
        """Fill in the results of requests whose entry in the returned list is not plainly an InferenceResponse.

        Returns whether the model has yet to answer one of them, and may.
        """
        results[:] = [
            self._entry(request, response, views) if result is None else result
            for result, request, response in zip(results, requests, responses, strict=True)
        ]
        requests.clear()  # only the model holds its senders now; one that it has let go sets an error
        if self._answers_late and any([isinstance(each, Answer) and each.outcome is None for each in results]):
            return True
        results[:] = [each.wait() if isinstance(each, Answer) else each for each in results]
        return False

    def _entry(self, request: ServedRequest, response: Any, views: Views) -> Outcome | Answer:
        sender = request._sender
        if isinstance(response, InferenceResponse):
            if isinstance(sender, SingleResponseSender) and sender.answer.outcome is not None:
                whose = about_requests(self._module.model_name, None, (request._request,))
                text = "model instance '%s' returned a response to a request that it had answered"
                _LOG.error(text, self.name, extra=whose)
                return sender.answer.outcome
            return self._reader.read(request._request, response, views)
        if response is not None:
            expected = "Expected an 'InferenceResponse' object in the execute function return list"
            return Internal(self._failed(f"{expected}, found type '{type(response)}'."))
        if request._request.flags & RESCHEDULED:
            return InferResponse({})  # which nobody gets: the request runs again
        sender = request.get_response_sender()
        assert isinstance(sender, SingleResponseSender)
        return sender.answer

    def _fail_unanswered(self, failure: Internal, batch: Batch, requests: list[ServedRequest]) -> None:
        """Fail the requests that have no response yet, by raising where that is all of them."""
        senders = [request._sender for request in requests]
        sent = [sender.answer.outcome if isinstance(sender, SingleResponseSender) else None for sender in senders]
        if self._iterative or isinstance(failure, GpuFault) or sent.count(None) == len(sent):
            raise failure
        batch.results = [failure if outcome is None else outcome for outcome in sent]

    def _refuse_rescheduled(
        self, results: list[Outcome | Answer | None], requests: list[InferRequest], responses: Any
    ) -> None:
        """Fail requests that the model has rescheduled and answered."""
        for index, (request, response) in enumerate(zip(requests, responses, strict=True)):
            if response is not None and request.flags & RESCHEDULED:
                expected = "Expected a None object in the execute function return list for reschduled request"
                results[index] = Internal(self._failed(f"{expected}, found type '{type(response)}'."))

    def _make_sender(self, request: ServedRequest) -> ResponseSender:
        return SingleResponseSender(request._request, self._reader.read_sent)

    def _failure(self, error: BaseException, batch: Batch) -> Internal:
        """Log the traceback for the operator, and return what the client is told: no path, no line."""
        ids = [request.id[:_LOGGED_CHARACTERS] for request in batch.requests[:_LOGGED_IDS]]
        whose = self._module.whose()
        text = "execute() of model instance '%s' failed, request ids %s"
        _LOG.error(text, self.name, ids, exc_info=error, extra=whose)
        words = told(error)
        failure = internal_error(self._failed(words), words.removeprefix(f"{type(error).__name__}: "), own_words=True)
        if not isinstance(failure, GpuFault) and is_of_lost_gpu(words):  # a framework's, in the words of another
            failure = GpuFault(failure.message)
        if isinstance(failure, GpuFault):
            self.gpu_fault = failure
        return failure

    def _failed(self, message: str) -> str:
        return f"Failed to process the request(s) for model '{self.name}', message: {message}"

    def _ask_ready(self, answer: "Future[Any]") -> None:
        try:
            ready = self._model.is_ready()
            answer.set_result(self._await(ready) if isinstance(ready, Coroutine) else ready)
        except BaseException as error:
            answer.set_exception(error)


class DecoupledPythonInstance(PythonInstance):
    """Runs batches of a decoupled model.

    It marks the batch as answered: every response reaches `request.reply` by itself, on the loop's thread, the last
    one with `final` or as an error, during `execute` or long after it. So it may fail when `execute` has returned;
    `gpu_is_lost` is called then, on any thread, if only another process can go on.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        module: ModelModule,
        model: Any,
        *,
        loop: ModelLoop | None,
        replies: Replies,
    ) -> None:
        super().__init__(name, signature, module, model, loop=loop, inline=False)
        self._replies = replies
        self.gpu_is_lost: Callable[[], None] = _nothing

    def execute(self, batch: Batch) -> None:
        """Hand the batch to the model; `async def execute` runs on while the next batch comes.

        With iterative sequences, the next batch waits for it.
        """
        make, output_names, make_sender = self._request_class, self._output_names, self._make_sender
        requests = [make(request, output_names, make_sender) for request in batch.requests]
        senders = [request.get_response_sender() for request in requests]
        batch.infer_start_ns = monotonic_ns()
        begin_streams(batch, batch.infer_start_ns)
        self._module.callers = max([request.callers for request in batch.requests], key=len)
        parents = parents_here.set(batch.requests)
        try:
            returned = self._model_execute(requests)
            if isinstance(returned, Coroutine):
                del requests
                if self._iterative:  # which requests run again is known at its end
                    self._check_none(self._await(returned))
                else:
                    future = self._own_loop().submit(returned)
                    future.add_done_callback(lambda done: self._finish(done, batch, senders))
            else:
                self._check_none(returned)
        except BaseException as error:  # whatever a model raises is its own: KeyboardInterrupt, CancelledError
            self._fail(error, batch, senders)
        finally:
            parents_here.reset(parents)
        if self._iterative:
            _release_rescheduled(batch.requests, senders)
        batch.infer_end_ns = monotonic_ns()
        batch.answered = True

    def put(self, request: InferRequest, outcome: Outcome) -> None:
        """Deliver what the model has sent, and see whether it is an error of a GPU that is lost; `Replies.put`."""
        lost = None
        if isinstance(outcome, ServingError) and not isinstance(outcome, GpuFault) and is_of_lost_gpu(outcome.message):
            lost = GpuFault(outcome.message)
            self.gpu_fault = lost
        self._replies.put(request, outcome)
        if lost is not None:
            self.gpu_is_lost()

    def _finish(self, done: "Future[Any]", batch: Batch, senders: list[Any]) -> None:
        # Raised by `result`, an error would have this frame, and `done` the error: the model's arrays would live on.
        error: BaseException | None = CancelledError() if done.cancelled() else done.exception()
        if error is None and done.result() is not None:
            error = self._returned_something()
        if error is not None:
            self._fail(error, batch, senders)
        senders.clear()

    def _fail(self, error: BaseException, batch: Batch, senders: list[Any]) -> None:
        failure = error.without_frames() if isinstance(error, Internal) else self._failure(error, batch)
        for sender in senders:
            sender.fail(failure)
        if isinstance(failure, GpuFault):
            self.gpu_is_lost()

    def _check_none(self, returned: object) -> None:
        if returned is not None:
            raise self._returned_something()

    def _returned_something(self) -> Internal:
        return Internal(
            self._failed(
                f"Python model '{self.name}' is using the decoupled mode and the execute function must return None."
            )
        )

    def _make_sender(self, request: ServedRequest) -> ResponseSender:
        return DecoupledResponseSender(request._request, self._reader.read_sent, self)


def _nothing() -> None:
    pass


def _release_rescheduled(requests: list[InferRequest], senders: list[Any]) -> None:
    """Close the senders of requests that run again, which get others then; one that has ended does not run again."""
    for request, sender in zip(requests, senders, strict=True):
        if request.flags & RESCHEDULED and not sender.release():
            request.flags &= ~RESCHEDULED
