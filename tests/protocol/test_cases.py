"""Every case against the codec: the status, the text, and that the codec serves a good request afterwards."""

from collections import Counter

import orjson
import pytest

from protocol.errors import ServingError
from protocol.http_infer import HttpInferCodec, parse_json_length
from protocol.infer import InferRequest
from tests.protocol.cases import CASES, Case
from tests.protocol.cases.models import SIGNATURES, answer

CODECS = {name: HttpInferCodec(signature, "1") for name, signature in SIGNATURES.items()}


def serve(codec: HttpInferCodec, case: Case) -> tuple[int, bytes]:
    try:
        length = None if case.json_length is None else parse_json_length(str(case.json_length))
        request: InferRequest = codec.decode(case.body, length, lambda request, outcome: None)
        _, parts = codec.encode(request, answer(case.model, request))
    except ServingError as error:
        return error.http_status, orjson.dumps({"error": error.message})
    return 200, b"".join(parts)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case_gets_its_answer(case: Case) -> None:
    for codec in (CODECS[case.model], HttpInferCodec(SIGNATURES[case.model], "1")):
        status, body = serve(codec, case)
        assert status == case.status, body[:1000]
        if status != 200:
            assert len(body) <= 1024
            assert case.text in orjson.loads(body)["error"]
        else:
            assert case.text.encode() in body


def test_cases_are_told_apart_by_id() -> None:
    assert [id for id, count in Counter(case.id for case in CASES).items() if count > 1] == []
    assert len(CASES) >= 200
