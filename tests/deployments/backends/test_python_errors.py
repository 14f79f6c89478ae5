"""What a Python model does wrong, and who hears of it."""

import re

import pytest
from python_models import floats, request_of, run

from deployments.backends.python.tensor import BFloat16Tensor, DeviceTensor, InputOnDevice
from protocol.errors import Internal, InvalidArgument, ServingError, Unavailable
from protocol.infer import InferResponse


def test_an_error_fails_only_its_request(load):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                errors = [pb_utils.TritonError("bad row", pb_utils.TritonError.INVALID_ARG),
                          pb_utils.TritonError("plain"),
                          pb_utils.TritonError("full", pb_utils.TritonError.UNAVAILABLE)]
                return [pb_utils.InferenceResponse(error=e) for e in errors] + [pb_utils.InferenceResponse()]
    """)
    outcomes = run(instance, *(request_of(X=floats(1)) for _ in range(4)))
    assert [type(outcome) for outcome in outcomes] == [InvalidArgument, Internal, Unavailable, InferResponse]
    assert [outcome.message for outcome in outcomes[:3]] == ["bad row", "plain", "full"]


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("pb_utils.InferenceResponse(error=pb_utils.TritonError(Own('own')))", "own"),
        ("pb_utils.InferenceResponse(error=pb_utils.TritonError('text', [1]))", "TypeError"),
        (
            "pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.array([['x']], np.dtypes.StringDType()))])",
            "Cannot use",
        ),
    ],
)
def test_a_response_that_cannot_be_read_fails_only_its_request(load, entry, told):
    instance = load(
        f"""
        class Own(str):
            def __str__(self):
                return self

        class TritonPythonModel:
            def execute(self, requests):
                good = [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests[1:]]
                return [{entry}, *good]
        """
    )
    bad, good = run(instance, request_of(X=floats(1)), request_of(X=floats(2)))
    assert isinstance(bad, ServingError) and told in bad.message
    assert isinstance(good, InferResponse) and good.outputs["Y"].tolist() == floats(2).tolist()


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("requests[0].priority()", "'InferenceRequest' object has no attribute 'priority'"),
        ("requests[0].get_response_sender().close()", "'InferenceResponseSender' object has no attribute 'close'"),
    ],
    ids=["request", "sender"],
)
def test_an_exception_calls_what_the_model_was_given_as_triton_does(load, statement, told):
    instance = load(f"""
        class TritonPythonModel:
            def execute(self, requests):
                {statement}
    """)
    with pytest.raises(Internal) as failure:
        run(instance, request_of(X=floats(1)))
    assert failure.value.message.endswith(f"message: AttributeError: {told}")


@pytest.mark.parametrize("made", [BFloat16Tensor, DeviceTensor, InputOnDevice])
def test_an_exception_calls_every_tensor_so(made):
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'numpy'"):
        made.__new__(made).numpy()


@pytest.mark.parametrize(
    ("statement", "told"),
    [('raise KeyError("nothing here")', "KeyError: 'nothing here'"), ("assert 0", "AssertionError: <EMPTY MESSAGE>")],
)
def test_an_exception_fails_the_batch_and_only_the_log_knows_where(load, caplog, statement, told):
    instance = load(f"""
        class TritonPythonModel:
            def execute(self, requests):
                {statement}
    """)
    request = request_of(X=floats(1))
    request.id = "r-17"
    with pytest.raises(ServingError) as raised:
        run(instance, request)
    assert type(raised.value) is Internal
    assert raised.value.message == f"Failed to process the request(s) for model 'echo_0', message: {told}"
    assert "model.py" in caplog.text and "in execute" in caplog.text and "r-17" in caplog.text


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("(1,)", "Expected a list in the execute return, found type '<class 'tuple'>'."),
        (
            "[]",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0",
        ),
    ],
    ids=["no list", "too few"],
)
def test_refuses_a_wrong_return(load, returned, message):
    instance = load(f"""
        class TritonPythonModel:
            def execute(self, requests):
                return {returned}
    """)
    with pytest.raises(Internal, match=re.escape(message)):
        run(instance, request_of(X=floats(1)))


def test_a_wrong_entry_fails_only_its_request(load):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                return [7, pb_utils.InferenceResponse(), None]
    """)
    wrong, right, nothing = run(instance, *(request_of(X=floats(1)) for _ in range(3)))
    assert wrong.message == (
        "Failed to process the request(s) for model 'echo_0', message: Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'."
    )
    assert right.outputs == {}
    assert nothing.message == "The model dropped the response sender before it sent the final response."


def test_sys_exit_of_a_model_is_an_error_of_the_request(load):
    for kind in ("def", "async def"):
        instance = load(f"""
            class TritonPythonModel:
                {kind} execute(self, requests):
                    raise SystemExit(3)
        """)
        with pytest.raises(Internal, match="SystemExit: 3"):
            run(instance, request_of(X=floats(1)))


def test_a_message_of_megabytes_and_an_id_of_as_many_are_cut(load, caplog):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                raise RuntimeError("begin" + "x" * 20_000_000 + "end")
    """)
    request = request_of(X=floats(1))
    request.id = "i" * 20_000_000
    with pytest.raises(Internal) as raised:
        run(instance, request)
    assert "message: RuntimeError: beginxxx" in raised.value.message and raised.value.message.endswith("xxxend")
    assert len(raised.value.message) < 5000
    assert all(len(record.getMessage()) < 1000 and len(record.request_id) <= 512 for record in caplog.records)
