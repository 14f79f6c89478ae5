"""The helper's process: `python -m app.json_helper`. It ends when its standard input does."""

import signal
import sys
from typing import Any

from app.http.generate_mapping import GenerateMapping
from app.json_helper.binary_form import request_in_binary_form, to_binary
from app.json_helper.frames import read_frame, write_frame
from protocol.errors import Internal, ServingError
from protocol.limits import Limits
from protocol.short_error import shortened


def work(head: dict[str, Any], body: memoryview) -> tuple[int | None, list[Any]]:
    """Do what a frame asks for; returns the length of the JSON in the result (None: all of it), and its parts."""
    limits = Limits.of_input_size(head["limit"])
    if head["task"] == "infer":
        return request_in_binary_form(body, head["json_length"], head["model"], limits)
    mapping = GenerateMapping(head["inputs"], limits)
    if head["task"] == "flatten":
        return None, [mapping.response(bytes(body), False)]
    request = mapping.document(bytes(body), head["forwarded"])
    header, parts = to_binary(request, memoryview(b""), head["model"], limits)
    return len(header), [header, *parts]


def main() -> None:
    """Answer frame after frame."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            head, body = read_frame(sys.stdin.buffer)
        except EOFError:
            return
        try:
            json_length, parts = work(head, body)
        except ServingError as error:
            answer: dict[str, Any] = {"error": shortened(error).message, "code": error.grpc_code}
            parts = []
        except Exception as error:
            answer = {"error": f"large JSON could not be read: {type(error).__name__}", "code": Internal.grpc_code}
            parts = []
        else:
            answer = {"json_length": json_length}
        del body
        write_frame(sys.stdout.buffer, answer, parts)


if __name__ == "__main__":
    main()
