"""What is tried: each class makes one input of a random generator, sends it, and says what was wrong with the answer."""

import random
import re
import traceback
from collections.abc import Callable
from typing import Any

import grpc

from app.http2 import frames
from protocol.errors import ServingError
from protocol.grpc_infer import GrpcInferCodec
from protocol.http_infer import HttpInferCodec
from tests.fuzz.mutation import mutate
from tests.hostile import http_framing
from tests.hostile.grpc_cases import CASES as GRPC_WIRE
from tests.hostile.grpc_cases import GOOD
from tests.hostile.grpc_wire import GrpcExchange, data, headers, prefixed
from tests.hostile.grpc_wire import read as read_frames
from tests.hostile.http_case import get, post
from tests.hostile.http_wire import split
from tests.hostile.sockets import Wire, exchange
from tests.hostile.watch import INFER, MAX_ERROR_BYTES, PRIVATE, Watch
from tests.protocol.cases import CASES
from tests.protocol.cases.models import SIGNATURES
from tests.protocol.cases.models import answer as model_answer
from tests.protocol.grpc_cases import GRPC_CASES

ANSWER_S = 2.0
PATIENCE_S = 0.02
"""After this the client ends its side, on which a server that waits for more closes."""
_SMALL = 4096
_DECLARED = {501, 503, 505}
_TRITONS = re.compile(
    rb'\{"error":"(unexpected error on creating Triton parameter'
    rb"|failed to load '.*', failed to poll from model repository)\"\}"
)
"""What Triton answers with 500 to a load with parameters that there are not, or of a model that there is not."""
_PATHS = tuple(
    b"/v2/" + path
    for path in (
        b"models/floats/infer",
        b"models/simple/versions/1/infer",
        b"models/strings/generate",
        b"models/floats/generate_stream",
        b"models/floats/config",
        b"models/floats/stats",
        b"models/floats/trace/setting",
        b"repository/index",
        b"repository/models/floats/load",
        b"trace/setting",
        b"logging",
        b"systemsharedmemory/region/r/register",
        b"systemsharedmemory/status",
        b"cudasharedmemory/region/r/unregister",
        b"docs/openapi.json",
        b"health/ready",
    )
)
_BODIES = tuple((case.model, case.body) for case in CASES if not callable(case.content) and len(case.body) <= _SMALL)
_DOCUMENTS = tuple(body for _, body in _BODIES)
_HEADS = (
    tuple(
        b"".join(piece for piece in case.pieces if isinstance(piece, bytes))
        for case in http_framing.CASES
        if sum(len(piece) for piece in case.pieces if isinstance(piece, bytes)) <= _SMALL
    )
    + tuple(get(path) for path in _PATHS)
    + tuple(post(path=path) for path in _PATHS)
)
_MESSAGES = tuple(case.body for case in GRPC_CASES if not callable(case.content) and len(case.body) <= _SMALL)
_CALL = headers(1) + data(1, prefixed(GOOD))
_FRAMES = tuple(
    made
    for case in GRPC_WIRE
    if case.greet
    and not callable(case.content)
    and len(made := b"".join(p for p in case.pieces if isinstance(p, bytes))) <= _SMALL
)
_CODES = {0, 1, 3, 4, 5, 8, 12, 13, 14, 16}
_METHODS = tuple(
    f"/inference.GRPCInferenceService/{name}"
    for name in (
        *("ModelInfer", "ModelInfer", "ModelInfer", "ModelMetadata", "ModelConfig", "ModelReady", "ModelStatistics"),
        *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "SystemSharedMemoryRegister"),
        *("CudaSharedMemoryRegister", "TraceSetting", "LogSettings"),
    )
)

Try = Callable[[random.Random, Watch], tuple[bytes, str]]
"""Makes and sends one input; returns it with what was wrong, "" for nothing."""


def _http(sent: bytes, watch: Watch) -> str:
    """An answer, or an open connection that waits for the rest, which ends when the client has ended."""

    def answered(wire: Wire) -> bool:
        return b"\r\n\r\n" in wire.received

    wire = exchange(watch.address, (sent, PATIENCE_S), answered, ANSWER_S, linger=True)
    if not wire.closed and not wire.received:
        return f"no answer within {ANSWER_S:g} s"
    answers, _ = split(wire.received, bodiless=sent.startswith(b"HEAD"))
    for answer in answers:
        if answer.status >= 500 and answer.status not in _DECLARED and not _TRITONS.fullmatch(answer.body):
            return f"answered {answer.status}: {answer.body[:300]!r}"
        if answer.status >= 400:
            if PRIVATE.search(answer.body):
                return f"leak: {answer.body[:300]!r}"
            if len(answer.body) > MAX_ERROR_BYTES:
                return f"an error of {len(answer.body)} bytes"
    return ""


def http_heads(rng: random.Random, watch: Watch) -> tuple[bytes, str]:
    sent = mutate(rng, rng.choice(_HEADS), _HEADS)
    return sent, _http(sent, watch)


def http_bodies(rng: random.Random, watch: Watch) -> tuple[bytes, str]:
    model, body = rng.choice(_BODIES)
    lengths = [b"Inference-Header-Content-Length: %d" % rng.randint(-1, len(body))] if rng.random() < 0.3 else []
    path = b"/v2/models/%s/infer" % model.encode() if rng.random() < 0.8 else rng.choice(_PATHS)
    sent = post(mutate(rng, body, _DOCUMENTS), *lengths, path=path)
    return sent, _http(sent, watch)


def http2_frames(rng: random.Random, watch: Watch) -> tuple[bytes, str]:
    sent = mutate(rng, rng.choice((_CALL, *_FRAMES)), _FRAMES)
    greeting = frames.PREFACE + frames.settings({})
    if rng.random() < 0.1:
        greeting = mutate(rng, greeting, _FRAMES)

    def answered(wire: Wire) -> bool:
        return _ended(read_frames(wire))

    got = read_frames(exchange(watch.grpc_address, (greeting + sent, PATIENCE_S), answered, ANSWER_S, linger=True))
    if not (got.closed or _ended(got)):
        return sent, f"no answer within {ANSWER_S:g} s"
    if PRIVATE.search(got.text):
        return sent, f"leak: {got.text[:300]!r}"
    if any("internal server error" in text for _, text in got.statuses.values()):
        return sent, "an internal error"
    # What is no gRPC call at all is refused by HTTP's status, and by UNKNOWN.
    codes = {code for stream_id, (code, _) in got.statuses.items() if got.http.get(stream_id) == "200"}
    return sent, "" if codes <= _CODES else f"a status of {got.statuses}"


def _ended(got: GrpcExchange) -> bool:
    return bool(got.statuses or got.resets) or got.goaway is not None


def grpc_messages(rng: random.Random, watch: Watch) -> tuple[bytes, str]:
    sent, method = mutate(rng, rng.choice(_MESSAGES), _MESSAGES), rng.choice(_METHODS)
    try:
        watch.channel.unary_unary(method if rng.random() < 0.95 else INFER + "x")(sent, timeout=ANSWER_S)
    except grpc.RpcError as error:
        code, details = error.code().value[0], error.details() or ""
        if code == 4:
            return sent, f"{method}: no answer within {ANSWER_S:g} s"
        if code not in _CODES or "internal server error" in details:
            return sent, f"{method}: status {code}: {details[:300]}"
        if PRIVATE.search(details.encode()) or len(details) > MAX_ERROR_BYTES:
            return sent, f"{method}: leak: {details[:300]}"
    return sent, ""


def http_codec(rng: random.Random, watch: Watch | None = None) -> tuple[bytes, str]:
    model, body = rng.choice(_BODIES)
    sent = mutate(rng, body, _DOCUMENTS)
    length = rng.randint(0, len(sent)) if rng.random() < 0.3 else None
    return sent, _codec(HttpInferCodec(SIGNATURES[model], "1"), model, sent, length)


def grpc_codec(rng: random.Random, watch: Watch | None = None) -> tuple[bytes, str]:
    sent = mutate(rng, rng.choice(_MESSAGES), _MESSAGES)
    model = rng.choice(("floats", "simple", "strings"))
    return sent, _codec(GrpcInferCodec(SIGNATURES[model], "1"), model, sent, None)


def _codec(codec: Any, model: str, sent: bytes, length: int | None) -> str:
    try:
        request = codec.decode(sent, length, lambda request, outcome: None)
        codec.encode(request, model_answer(model, request))
    except ServingError as error:
        return f"{error.http_status}: {error.message[:300]}" if error.http_status == 500 else ""
    except Exception:
        return traceback.format_exc()
    return ""


CLASSES: dict[str, Try] = {
    "HTTP codec": http_codec,
    "gRPC codec": grpc_codec,
    "HTTP heads": http_heads,
    "HTTP bodies": http_bodies,
    "HTTP/2 frames": http2_frames,
    "gRPC messages": grpc_messages,
}
