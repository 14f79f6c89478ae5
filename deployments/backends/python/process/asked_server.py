"""What a model in a process of its own asks of the server: the replica is asked to ask."""

import os
import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from deployments.backends.python.process.channel import Writer
from deployments.backends.python.process.exchange import ProcessRequest, ResultFields, read_call_result
from deployments.backends.python.server import GiveUp, ModelCall, Take
from protocol.errors import Internal
from protocol.infer import Array, InferResponse

if TYPE_CHECKING:
    from deployments.backends.python.process.questions import Questions


class AskedServer:
    """A `ModelServer` at the other end of the second socket."""

    def __init__(self, questions: "Questions") -> None:
        self._questions = questions
        self._takes: dict[int, Take] = {}
        questions.hears["result"] = self._take_result
        os.register_at_fork(after_in_child=self._takes.clear)

    def may_wait(self) -> bool:
        """Return False on the thread that brings the answers."""
        return threading.current_thread() is not self._questions.thread

    def call(self, call: ModelCall, take: Take) -> GiveUp:
        """Send a request by way of the replica; see `ModelServer`."""
        writer = Writer()
        number = self._questions.number()
        self._takes[number] = take
        fields = (
            call.model_name,
            call.model_version,
            writer.describe(call.inputs),
            tuple(call.bfloat16),
            call.outputs,
            call.request_id,
            call.sequence_id,
            call.flags,
            call.timeout_us,
            None if call.parameters is None else dict(call.parameters),
            call.decoupled,
            tuple([parent.number for parent in call.parents if isinstance(parent, ProcessRequest)]),
            call.callers,
            call.traced.number if isinstance(call.traced, ProcessRequest) else None,
        )
        try:
            self._questions.tell("call", number, fields, writer=writer)
        except Exception as error:  # what the model gave cannot be sent
            del self._takes[number]
            take(Internal(f"the request to model '{call.model_name}' could not be sent: {error}"), frozenset())
        return partial(self._give_up, number)

    def load_model(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model; see `ModelServer`."""
        self._questions.ask("load_model", name, config, dict(files))

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model; see `ModelServer`."""
        self._questions.ask("unload_model", name, unload_dependents)

    def is_model_ready(self, name: str, version: int) -> bool:
        """Return whether a model takes requests; see `ModelServer`."""
        return bool(self._questions.ask("is_model_ready", name, version))

    def _give_up(self, number: int, *, listens: bool = False) -> None:
        if number in self._takes:
            self._questions.tell("give_up", number, listens)

    def _take_result(
        self, place: Array | None, number: int, final: bool, bfloat16: tuple[str, ...], fields: ResultFields
    ) -> None:
        result = read_call_result(fields, final, self._questions.channel, place)
        take = self._takes.get(number)
        if take is None:  # it has ended, as there was no room for the response before
            return
        if not isinstance(result, InferResponse) or final:
            del self._takes[number]
        take(result, frozenset(bfloat16))
