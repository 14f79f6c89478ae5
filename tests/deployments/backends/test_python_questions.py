"""What the process of a Python model asks its replica."""

import gc
import weakref
from typing import Any

from deployments.backends.python.process.questions import Questions
from protocol.errors import InvalidArgument


class Refusing:
    """A channel whose other end answers every question with an error."""

    questions: Questions

    def send(self, kind: str, writer: None, number: int, *fields: Any) -> None:
        self.questions._waiting.pop(number).set_exception(InvalidArgument("no"))


class Files:
    """What is sent with a question."""


def test_what_was_sent_with_a_question_is_free_as_soon_as_it_has_failed() -> None:
    channel: Any = Refusing()
    channel.questions = Questions(channel, None)  # type: ignore[arg-type]
    files = Files()
    sent = weakref.ref(files)
    gc.collect()
    gc.disable()
    try:
        try:
            channel.questions.ask("load_model", files)
        except InvalidArgument as error:
            assert str(error) == "no"
        del files
        assert sent() is None
    finally:
        gc.enable()
