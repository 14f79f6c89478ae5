"""Python models through the backend's seam: requests and responses."""

import asyncio
import json

import numpy as np
import pytest
from python_models import ECHO, ECHO_CONFIG, floats, request_of, run

from deployments.backends.backend import Batch
from protocol.errors import Internal
from protocol.infer import InferResponse
from protocol.trace import TIMESTAMPS, new_trace
from tests.gpus import on_a_gpu


def test_runs_a_batch_and_measures_the_models_own_time(load):
    instance = load(ECHO)
    batch = Batch([request_of(X=floats(1, 2)), request_of(X=floats(3))], 2)
    instance.execute(batch)
    assert [response.outputs["Y"].tolist() for response in batch.results] == [[[1, 2]], [[3]]]
    assert 0 < batch.infer_start_ns <= batch.infer_end_ns
    assert instance.name == "echo_0"


def test_a_model_may_run_inline_here_and_not_in_a_process_of_its_own(load, runs_here):
    assert load(ECHO).may_run_inline is runs_here


def test_awaits_a_coroutine_model_off_the_loops_thread(load):
    instance = load("""
        import asyncio
        class TritonPythonModel:
            async def execute(self, requests):
                await asyncio.sleep(0)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() * 2)])
                        for r in requests]
    """)
    assert not instance.may_run_inline
    [response] = run(instance, request_of(X=floats(4)))
    assert response.outputs["Y"].tolist() == [[8]]


def test_tasks_of_a_coroutine_model_go_on_between_batches(load):
    instance = load("""
        import asyncio, threading
        class TritonPythonModel:
            def initialize(self, args):
                self.went_on = threading.Event()
            async def later(self):
                await asyncio.sleep(0)
                self.went_on.set()
            async def execute(self, requests):
                self.task = asyncio.get_running_loop().create_task(self.later())
                return [pb_utils.InferenceResponse() for r in requests]
            def is_ready(self):
                return self.went_on.wait(4)
    """)
    run(instance, request_of(X=floats(4)))
    assert instance.is_ready()


def test_a_model_may_run_a_loop_of_its_own_inline(load):
    instance = load("""
        import asyncio
        class TritonPythonModel:
            def execute(self, requests):
                async def value():
                    return np.ones((1, 1), np.float32)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", asyncio.run(value()))]) for r in requests]
    """)

    async def on_the_loop():
        loop = asyncio.get_running_loop()
        results = run(instance, request_of(X=floats(0)))
        assert asyncio.get_running_loop() is loop
        return results

    assert asyncio.run(on_the_loop())[0].outputs["Y"].tolist() == [[1]]


def test_initialize_gets_tritons_strings(load):
    config = (
        ECHO_CONFIG
        + 'parameters { key: "k" value { string_value: "v" } } dynamic_batching { max_queue_delay_microseconds: 7 }'
    )
    instance = load(
        """
        import json
        class TritonPythonModel:
            def initialize(self, args):
                self.args = args
            def execute(self, requests):
                return [pb_utils.InferenceResponse([], parameters={"seen": json.dumps(self.args)})]
        """,
        config,
    )
    args = json.loads(run(instance, request_of(X=floats(1)))[0].parameters["seen"])
    parsed = json.loads(args.pop("model_config"))
    repository = args.pop("model_repository")
    assert repository.endswith("/echo")
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "echo_0",
        "model_instance_device_id": "0",
        "model_version": "1",
        "model_name": "echo",
    }
    assert parsed["max_batch_size"] == 8
    assert parsed["input"][0]["dims"] == [-1]
    assert parsed["input"][0]["data_type"] == "TYPE_FP32"
    assert parsed["parameters"]["k"]["string_value"] == "v"
    assert parsed["dynamic_batching"]["max_queue_delay_microseconds"] == 7
    assert parsed["dynamic_batching"]["preferred_batch_size"] == []


def test_request_shows_what_the_client_sent(load):
    instance = load("""
        import json
        class TritonPythonModel:
            def execute(self, requests):
                [r] = requests
                seen = (r.request_id(), r.correlation_id(), r.flags(), r.timeout(), json.loads(r.parameters()),
                        list(r.requested_output_names()), r.is_cancelled(), [t.name() for t in r.inputs()],
                        pb_utils.get_input_tensor_by_name(r, "NO"), isinstance(r, pb_utils.InferenceRequest))
                return [pb_utils.InferenceResponse([], parameters={"seen": json.dumps(seen)})]
    """)
    request = request_of(X=floats(1))
    request.id, request.sequence_id, request.flags, request.timeout_us = "id-1", "corr", 3, 250
    request.parameters = {"a": 1, "b": True}
    request.cancelled = True
    [response] = run(instance, request)
    seen = json.loads(response.parameters["seen"])
    assert seen == ["id-1", "corr", 3, 250, {"a": 1, "b": True}, ["Y"], True, ["X"], None, True]


def test_inputs_may_be_written_to_even_if_the_request_is_read_only(load):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                for r in requests:
                    pb_utils.get_input_tensor_by_name(r, "X").as_numpy()[...] += 1
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
    """)
    body = floats(1, 2).tobytes()
    [response] = run(instance, request_of(X=np.frombuffer(body, np.float32).reshape(1, 2)))
    assert response.outputs["Y"].tolist() == [[2, 3]]
    assert body == floats(1, 2).tobytes()


STRINGS = """
    name: "strings" backend: "python" max_batch_size: 8
    input { name: "X" data_type: TYPE_STRING dims: [-1] }
    output { name: "Y" data_type: TYPE_STRING dims: [-1] }
"""


@pytest.mark.parametrize(
    "expression",
    [
        "np.array([['grüß', 'b']], dtype=object)",
        "np.array([['grüß', 'b']])",
        "np.array([['grüß'.encode(), b'b']])",
        "np.array([['grüß'.encode(), 'b']], dtype=object)",
    ],
    ids=["str objects", "U", "S", "mixed"],
)
def test_string_outputs_become_bytes(load, expression):
    instance = load(
        f"""
        class TritonPythonModel:
            def execute(self, requests):
                assert requests[0].inputs()[0].as_numpy().tolist() == [[b"in\\0"]]
                assert requests[0].inputs()[0].triton_dtype() == 13
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", {expression})])]
        """,
        STRINGS,
    )
    [response] = run(instance, request_of(X=np.array([[b"in\0"]], dtype=object)))
    assert response.outputs["Y"].dtype == object
    assert response.outputs["Y"].tolist() == [["grüß".encode(), b"b"]]


def test_response_parameters_reach_the_client(load):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([], parameters={"n": 1, "s": "x", "b": True})]
    """)
    assert run(instance, request_of(X=floats(1)))[0].parameters == {"n": 1, "s": "x", "b": True}


def test_float_response_parameters_are_refused(load):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([], parameters={"n": 1.5})]
    """)
    with pytest.raises(
        Internal, match="Expect parameters values to have type bool/int/str, found type <class 'float'>"
    ):
        run(instance, request_of(X=floats(1)))


def test_only_configured_and_requested_outputs_are_sent(load):
    config = ECHO_CONFIG + 'output { name: "Z" data_type: TYPE_FP32 dims: [-1] }'
    instance = load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([pb_utils.Tensor(n, np.ones((1, 1), np.float32)) for n in "ZYQ"])
                        for r in requests]
        """,
        config,
    )
    outcomes = run(instance, request_of(X=floats(1)), request_of(X=floats(1), outputs=("Y",)))
    assert [list(outcome.outputs) for outcome in outcomes] == [["Z", "Y"], ["Y"]]


def test_sends_an_output_of_another_datatype_as_it_is_and_warns_once(load, caplog):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                arrays = np.ones((1, 1)), np.ones((1, 1), ">f4"), np.ones((1, 1), np.uint8), np.array([["a", 2]], object)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in arrays]
    """)
    outcomes = run(instance, *(request_of(X=floats(1)) for _ in range(4)))
    assert [outcome.outputs["Y"].dtype.str for outcome in outcomes] == ["<f8", "<f4", "|u1", "|O"]
    assert outcomes[3].outputs["Y"].tolist() == [[b"a", b"2"]]
    assert [record.getMessage() for record in caplog.records] == [
        "model 'echo' returned output 'Y' as FP64, the model configuration specifies FP32"
    ]


@pytest.mark.parametrize(
    ("array", "said"),
    [
        ("np.ones((1, 1))", "model 'echo' returned output 'Y' as FP64"),
        ("np.ones((1, 1, 9, 9), np.float32)", "model 'echo' returned output 'Y' with shape [1, 1, 9, 9]"),
    ],
)
def test_a_warning_about_an_output_names_the_trace_of_its_request(load, caplog, array, said):
    instance = load(f"""
        class TritonPythonModel:
            def execute(self, requests):
                made = [request.inputs()[0].as_numpy() for request in requests]
                made[-1] = {array}
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each)]) for each in made]
    """)
    others, caused = new_trace(TIMESTAMPS), new_trace(TIMESTAMPS)
    requests = [request_of(X=floats(1)) for _ in range(3)]
    requests[0].trace, requests[2].trace = others, caused
    run(instance, *requests)
    (record,) = caplog.records
    assert record.getMessage().startswith(said)
    assert (record.model, record.trace_id, record.span_id) == (
        "echo",
        f"{caused.trace_id:032x}",
        f"{caused.id:016x}",
    )


def test_a_generator_is_no_list_of_responses(load):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                yield pb_utils.InferenceResponse([])
    """)
    with pytest.raises(Internal, match="Expected a list in the execute return, found type '<class 'generator'>'"):
        run(instance, request_of(X=floats(0)))


def test_a_model_may_empty_the_list_of_its_requests(load):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                responses = []
                while requests:
                    tensor = requests.pop(0).inputs()[0]
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor.as_numpy())]))
                return responses
    """)
    outcomes = run(instance, request_of(X=floats(1)), request_of(X=floats(2)))
    assert [float(outcome.outputs["Y"][0, 0]) for outcome in outcomes] == [1.0, 2.0]


def test_a_response_that_is_returned_after_the_sender_has_answered_goes_nowhere(load, caplog):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                sent, returned = [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), n, np.float32))])
                                  for n in (1, 2)]
                requests[0].get_response_sender().send(sent, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                self.unused = requests[1].get_response_sender()
                return [returned, returned]
    """)
    outcomes = run(instance, request_of(X=floats(1)), request_of(X=floats(1)))
    assert [float(outcome.outputs["Y"][0, 0]) for outcome in outcomes] == [1.0, 2.0]
    assert [record.getMessage() for record in caplog.records] == [
        "model instance 'echo_0' returned a response to a request that it had answered"
    ]


def test_what_has_no_datatype_fails_only_its_request(load):
    instance = load("""
        class Silent(Exception):
            def __str__(self):
                raise RuntimeError("no words")
        class Mute:
            def __str__(self):
                raise Silent
        class TritonPythonModel:
            def execute(self, requests):
                if len(requests) == 1:
                    raise Silent
                arrays = [np.ones((1, 1), complex), np.array([["\\ud800"]], object), np.array([[Mute()]], object), np.ones((1, 1))]
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in arrays]
    """)
    outcomes = run(instance, *(request_of(X=floats(1)) for _ in range(4)))
    assert [type(outcome) for outcome in outcomes] == [Internal, Internal, Internal, InferResponse]
    assert "'Y' as complex128, which is no datatype of the protocol" in outcomes[0].message
    assert "'Y' with an element that is no text: UnicodeEncodeError: " in outcomes[1].message
    assert outcomes[2].message.endswith("no text: Silent")
    with pytest.raises(Internal, match="message: Silent"):
        run(instance, request_of(X=floats(1)))


def test_warns_once_of_a_shape_that_the_configuration_does_not_describe(load, caplog):
    config = ECHO_CONFIG.replace("dims: [-1]", "dims: [2]")
    instance = load(ECHO, config)
    for values in (floats(1, 2), floats(1), floats(1, 2, 3)):
        [response] = run(instance, request_of(X=values))
        assert response.outputs["Y"].shape == values.shape
    assert [record.getMessage() for record in caplog.records] == [
        "model 'echo' returned output 'Y' with shape [1, 1], which its dims [2] behind a batch dimension do not "
        "describe"
    ]


def test_undoes_reshape_of_an_output(load):
    config = ECHO_CONFIG.replace(
        'output { name: "Y" data_type: TYPE_FP32 dims: [-1] }',
        'output { name: "Y" data_type: TYPE_FP32 dims: [2, -1] reshape { shape: [-1, 1, 2] } }',
    )
    instance = load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros((5, 3, 1, 2), np.float32))])]
        """,
        config,
    )
    assert run(instance, request_of(X=floats(1)))[0].outputs["Y"].shape == (5, 2, 3)


def test_output_that_cannot_be_reshaped_fails_only_its_request(load):
    config = ECHO_CONFIG.replace(
        'output { name: "Y" data_type: TYPE_FP32 dims: [-1] }',
        'output { name: "Y" data_type: TYPE_FP32 dims: [4] reshape { shape: [2, 2] } }',
    )
    instance = load(ECHO, config)
    wrong, right = run(instance, request_of(X=floats(1, 2)), request_of(X=np.zeros((1, 2, 2), np.float32)))
    assert wrong.message == "model 'echo' returned output 'Y' with shape [1, 2], which cannot be reshaped to [4]"
    assert right.outputs["Y"].shape == (1, 4)


def test_answers_through_the_response_sender_from_another_thread(load):
    instance = load("""
        import threading
        class TritonPythonModel:
            def execute(self, requests):
                def answer(sender):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 1), np.float32))]))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                threading.Thread(target=answer, args=(requests[0].get_response_sender(),)).start()
                return [None, pb_utils.InferenceResponse()]
    """)
    assert not instance.may_run_inline
    sent, returned = run(instance, request_of(X=floats(1)), request_of(X=floats(1)))
    assert sent.outputs["Y"].tolist() == [[1]]
    assert returned.outputs == {}


SENDER_MISUSE = """
    class TritonPythonModel:
        def execute(self, requests):
            sender, errors = requests[0].get_response_sender(), []
            response = pb_utils.InferenceResponse()
            for args in (("text", 0), ([response], 1), (response, 2), (None, 0), (None, 1), (response,), (response,), (None, 1), (response,), (None, 1)):
                try:
                    sender.send(*args)
                except (TypeError, pb_utils.TritonModelException) as error:
                    errors.append(str(error))
            pb_utils.Logger.log_warn("\\n".join(errors))
            return None
"""


def test_sender_of_a_model_that_is_not_decoupled_sends_once(load, caplog):
    instance = load(SENDER_MISUSE)
    [response] = run(instance, request_of(X=floats(1)))
    assert isinstance(response, InferResponse)
    instance.close()
    assert caplog.messages[-1].split("\n") == [
        "'response' must be an InferenceResponse, found type '<class 'str'>'.",
        "'response' must be an InferenceResponse, found type '<class 'list'>'.",
        "Unable to send response. Unsupported flag provided.",
        "Inference Response object must be provided when the response flags is set to zero.",
        "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
        "Unable to send response. Non-decoupled model cannot send more than one response.",
        "Unable to send response. Non-decoupled model cannot send more than one response.",
        "Unable to send response. Response sender has been closed.",
    ]


def test_what_the_sender_has_sent_stays_when_the_model_fails_afterwards(load):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 1), np.float32))])
                requests[0].get_response_sender().send(response)
                self.unused = requests[1].get_response_sender()
                raise ValueError("too late")
    """)
    answered, unanswered, untouched = run(instance, *[request_of(X=floats(1)) for _ in range(3)])
    assert answered.outputs["Y"].tolist() == [[1]]
    assert unanswered.message == untouched.message
    assert untouched.message.endswith("ValueError: too late")


def test_strings_of_numpy_are_strings(load):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                name, text = np.array(["Y", "text"])
                tensor = pb_utils.Tensor(name, requests[0].inputs()[0].as_numpy())
                error = pb_utils.TritonError(text)
                return [
                    pb_utils.InferenceResponse([tensor], parameters={name: text}), pb_utils.InferenceResponse(error=error)
                ]
    """)
    answer, error = run(instance, request_of(X=floats(1)), request_of(X=floats(1)))
    assert {type(text) for text in (*answer.outputs, *answer.parameters, *answer.parameters.values())} == {str}
    assert (answer.outputs["Y"].tolist(), answer.parameters, error.message) == ([[1]], {"Y": "text"}, "text")


@pytest.mark.gpu
@on_a_gpu
def test_outputs_on_a_gpu_come_in_host_memory(load):
    instance = load("""
        import torch
        from torch.utils.dlpack import to_dlpack
        class TritonPythonModel:
            def execute(self, requests):
                doubled = [torch.from_dlpack(r.inputs()[0].to_dlpack()).cuda() * 2 for r in requests]
                return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", to_dlpack(y))]) for y in doubled]
    """)
    [response] = run(instance, request_of(X=floats(4)))
    assert response.outputs["Y"].tolist() == [[8]]
