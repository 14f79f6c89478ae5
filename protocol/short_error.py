"""Error messages of a length that fits a response, however long the names that the client sent."""

import orjson

from protocol.errors import ServingError

_MESSAGE_BYTES = 960


def shortened(error: ServingError) -> ServingError:
    """Return the error, its message as `short_text` has it."""
    message = short_text(error.message)
    return error if message == error.message else type(error)(message)


def short_text(text: str) -> str:
    """Return a message, cut in the middle if it takes more than 960 bytes as JSON."""
    if len(text) > 2 * _MESSAGE_BYTES:  # the middle of a very long one would take long to look at
        text = text[:_MESSAGE_BYTES] + text[-_MESSAGE_BYTES:]
    message = whole = text.encode("utf-8", "replace").decode()
    kept = len(whole)
    while len(orjson.dumps(message)) > _MESSAGE_BYTES:
        kept = kept * 3 // 4 if kept < 1000 else 999
        message = f"{whole[: kept // 2]}...{whole[-(kept // 2) :]}"
    return message
