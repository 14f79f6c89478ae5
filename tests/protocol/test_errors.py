import pickle

import pytest

from protocol.errors import BY_GRPC_CODE, Internal, ServingError, from_grpc_code


@pytest.mark.parametrize("kind", BY_GRPC_CODE.values(), ids=lambda kind: kind.__name__)
def test_errors_survive_a_process_boundary(kind: type[ServingError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what")))
    assert type(error) is kind
    assert error.message == str(error) == "what"
    assert type(from_grpc_code(kind.grpc_code, "what")) is kind


def test_unknown_codes_are_internal() -> None:
    assert type(from_grpc_code(99, "what")) is Internal
