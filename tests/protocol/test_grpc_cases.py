"""Every gRPC case against the codec: the code, the text, and that the codec serves a good request afterwards."""

import pytest

from protocol.errors import ServingError
from protocol.grpc_infer import GrpcInferCodec
from tests.protocol.cases.models import SIGNATURES, answer
from tests.protocol.grpc_case import GrpcCase, message, simple
from tests.protocol.grpc_cases import GRPC_CASES

CODECS = {name: GrpcInferCodec(signature, "1") for name, signature in SIGNATURES.items()}
GOOD = {name: (simple() if name == "simple" else message(name)).SerializeToString() for name in SIGNATURES}


def serve(codec: GrpcInferCodec, model: str, body: bytes) -> tuple[int, str]:
    try:
        request = codec.decode(body, None, lambda request, outcome: None)
        codec.encode(request, answer(model, request))
    except ServingError as error:
        return error.grpc_code, error.message
    return 0, ""


@pytest.mark.parametrize("case", GRPC_CASES, ids=[case.id for case in GRPC_CASES])
def test_case_gets_its_answer(case: GrpcCase) -> None:
    for codec in (CODECS[case.model], GrpcInferCodec(SIGNATURES[case.model], "1")):
        for body in (case.body, memoryview(bytearray(case.body))):
            for _ in range(2):
                code, text = serve(codec, case.model, body)  # type: ignore[arg-type]
                assert code == case.code, text
                assert case.text in text
                assert len(text.encode()) <= 1024
        assert serve(codec, case.model, GOOD[case.model]) == (0, "")


def test_there_are_enough_cases_and_none_twice() -> None:
    assert len(GRPC_CASES) >= 120
    assert len({case.id for case in GRPC_CASES}) == len(GRPC_CASES)
