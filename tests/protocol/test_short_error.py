import orjson
import pytest

from protocol.errors import InvalidArgument, NotFound
from protocol.short_error import shortened
from tests.holds import assert_holds_are_short


@pytest.mark.parametrize("name", ["x" * 100_000, "ż" * 2000, '"' * 5000, "\ud800" * 5000, "\x00" * 1000])
def test_long_messages_are_cut_in_the_middle(name: str) -> None:
    error = shortened(NotFound(f"unexpected input '{name}' for model 'm'"))
    assert isinstance(error, NotFound)
    assert len(orjson.dumps(error.message.encode("utf-8", "replace").decode())) <= 960
    assert error.message.startswith("unexpected input '")
    assert error.message.endswith("' for model 'm'")


def test_short_messages_stay() -> None:
    error = InvalidArgument("no")
    assert shortened(error) is error


def test_a_message_of_megabytes_is_not_looked_at_as_a_whole() -> None:
    error = shortened(NotFound("begin" + "\x00" * 50_000_000 + "end"))
    assert error.message.startswith("begin") and error.message.endswith("end")
    assert_holds_are_short(lambda: shortened(NotFound("\x00" * 50_000_000)))
