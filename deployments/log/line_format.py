"""Records as lines: Triton's two forms, and JSON. No text that a record holds can end a line or steer a terminal."""

import json
import logging
import re
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final

from protocol.infer import InferRequest
from protocol.trace import Trace

_LETTERS: Final = {"DEBUG": "V", "INFO": "I", "WARNING": "W", "ERROR": "E", "CRITICAL": "E"}
_LEVELS: Final = {"DEBUG": "VERBOSE", "CRITICAL": "ERROR"}
# What JSON leaves as it is: DEL and the control codes after it, line separators, turns of the writing direction, and
# halves of characters, which have no bytes.
_UNSAFE: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

MAX_CHARACTERS: Final = 1 << 16
"""Of a message, and of a traceback; what is between the ends is left out."""
_ID_CHARACTERS: Final = 512
_UNPRINTABLE: Final = re.compile(f"[\x00-\x1f{_UNSAFE.pattern[1:]}")
_PRINTED: Final = re.compile(rf"(\x1b\[[0-9;]{{0,40}}m|\t|\r\Z)|{_UNPRINTABLE.pattern}")


def quoted(value: object) -> str:
    """Return JSON without anything that a terminal or a reader of lines acts on; letters of all languages stay."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


def escaped(text: str) -> str:
    """Return a text as it stands in its quotes."""
    return quoted(text)[1:-1]


def _shortened(text: str) -> str:
    """Return a text without its middle if it is very long, as one that a client has sent may be."""
    left = len(text) - MAX_CHARACTERS
    if left <= 0:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]} [{left} characters] {text[-half:]}"


def _code(text: str) -> str:
    """Return a line of a traceback with the same escapes, its quotes and backslashes as they are."""
    return _UNPRINTABLE.sub(lambda found: escaped(found[0]), text)


def for_terminal(line: str) -> str:
    """Return a line that a model has printed without what a terminal acts upon, but for colours, which end with it."""
    shown = _PRINTED.sub(lambda found: found[1] or escaped(found[0]), line)
    return f"{shown}\x1b[0m" if "\x1b" in shown else shown


class TritonLine(logging.Formatter):
    r"""Triton's lines: `I0819 17:23:47.123456 1 server.cc:676] "message"`, or with `iso8601` the time in that form.

    A message about a request that is traced ends with the ids of its trace, within the quotes, as who reads Triton's
    lines takes the rest of a line for JSON. A traceback follows in lines of its own, indented, so that none of them can
    pass for a record.
    """

    def __init__(self, *, iso8601: bool = False) -> None:
        super().__init__()
        self._iso8601 = iso8601

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without its end; times are UTC."""
        letter = _LETTERS.get(record.levelname, "I")
        at = time.gmtime(record.created)
        if self._iso8601:
            begin = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', at)} {letter}"
        else:
            begin = f"{letter}{time.strftime('%m%d %H:%M:%S', at)}.{int(record.created % 1 * 1e6):06d}"
        line = f"{begin} {record.process} {record.filename}:{record.lineno}] {quoted(with_trace(record))}"
        trace = traceback_of(record)
        return "\n    ".join([line, *map(_code, trace.split("\n"))]) if trace else line


class JsonLine(logging.Formatter):
    """One object per line: time, level, message and source, and model, version and request id where they are known.

    A line of a request that is traced has `trace_id` and `span_id`. A slow request has its stages, and the rows of its
    batch.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without its end."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{at}.{int(record.created % 1 * 1e6):06d}Z",
            "level": _LEVELS.get(record.levelname, record.levelname),
            "message": _shortened(record.getMessage()),
        }
        for name in about(""):
            value = getattr(record, name, None)
            if value not in (None, ""):
                line[name] = value
        for name in ("stages_ms", "batch_rows"):
            if hasattr(record, name):
                line[name] = getattr(record, name)
        line["process"] = record.process
        line["source"] = f"{record.filename}:{record.lineno}"
        if trace := traceback_of(record):
            line["traceback"] = trace
        return quoted(line)


FORMATTERS: Final[dict[str, logging.Formatter]] = {
    "default": TritonLine(),
    "ISO8601": TritonLine(iso8601=True),
    "json": JsonLine(),
}


def spelled_out(line: str) -> list[str]:
    """Return a line of JSON as `TritonLine` writes it, its traceback in lines of their own; any other as it is."""
    try:
        record = json.loads(line) if line.startswith("{") else None
    except ValueError:  # it may have been cut
        record = None
    if not isinstance(record, dict) or "message" not in record:
        return [line]
    letter = str(record.get("level", "INFO"))[:1]
    begin = f"{record.get('time', '')} {letter} {record.get('process', '')} {record.get('source', '')}]"
    message = f"{record['message']}{ids_of_trace(record)}"
    trace = str(record.get("traceback", ""))
    lines = [f"{begin} {quoted(message)}", *map(_code, trace.split("\n") if trace else ())]
    return [lines[0], *(f"    {each}" for each in lines[1:])]


def about(
    model: str, version: int | None = None, request_id: str = "", trace_id: str = "", span_id: str = ""
) -> dict[str, Any]:
    """Return the `extra` of a record that is about a model, or about a request to it that may be traced."""
    id_begins = request_id[:_ID_CHARACTERS]
    return {"model": model, "version": version, "request_id": id_begins, "trace_id": trace_id, "span_id": span_id}


def about_requests(model: str, version: int | None, requests: Sequence[InferRequest]) -> dict[str, Any]:
    """Return the `extra` of a record about requests that run together.

    The request's id is known where one runs alone; the trace is that of the first request that is traced.
    """
    request_id = requests[0].id if len(requests) == 1 else ""
    trace = next((request.trace for request in requests if request.trace is not None), None)
    return about_trace(model, version, trace, request_id)


def about_trace(model: str, version: int | None, trace: Trace | None, request_id: str = "") -> dict[str, Any]:
    """Return the `extra` of a record about a request to a model, with the ids of its trace where it is traced."""
    return about(model, version, request_id, **({} if trace is None else trace.log_fields()))


def with_trace(record: logging.LogRecord) -> str:
    """Return the message of a record, with the ids of the trace if it is about a request that is traced."""
    return _shortened(record.getMessage()) + ids_of_trace(vars(record))


def ids_of_trace(fields: Mapping[str, Any]) -> str:
    """Return what a message ends with whose record has these fields, "" where no request is traced."""
    trace_id = fields.get("trace_id")
    return f" trace_id={trace_id} span_id={fields.get('span_id')}" if trace_id else ""


def traceback_of(record: logging.LogRecord) -> str:
    """Return the traceback of a record, "" without one."""
    if record.exc_info and not record.exc_text:
        # Not `Formatter.formatException`: it prints into a buffer, and Serve's `print` writes a tuple into any file.
        record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
    return _shortened(record.exc_text or "")
