"""Python models that call other models of their process."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import Cancelled, Internal, ServingError
from protocol.infer import InferRequest, InferResponse
from repository_loader.namespaces import identifier
from tests.deployments.replica.hosted_models import (
    ADD_ONE,
    CALLER,
    CONFIG,
    COUNTDOWN,
    DECOUPLED,
    IDENTITY,
    Models,
    on_a_loop,
)
from tests.deployments.replica.hosted_models import models as models
from tests.deployments.replica.hosted_models import models_here as models_here
from tests.deployments.replica.hosted_models import unfrozen as unfrozen


@on_a_loop
async def test_a_model_calls_models_of_its_process(models: Models) -> None:
    models.add("add_one", ADD_ONE).add("caller", CALLER % "add_one").add("outer", CALLER % "caller")
    async with models.hosted() as call:
        assert await call("outer", 1, 2) == [2, 3]
        assert await asyncio.gather(*(call("outer", number) for number in range(20))) == [[n + 1] for n in range(20)]


@on_a_loop
async def test_a_model_calls_the_one_of_its_own_repository_where_several_share_a_name(
    models: Models, tmp_path: Path
) -> None:
    roots = [tmp_path / name for name in ("a", "b", "c")]
    for number, root in enumerate(roots[:2], 1):
        one = Models(root, False).add("add", ADD_ONE.replace("+ 1", f"+ {number}"))
        one.add(f"caller_{number}", CALLER % "add").add("asker", CALLER % "add")
    Models(roots[2], False).add("only_here", ADD_ONE).add("caller_3", CALLER % "only_here").add("lost", CALLER % "add")
    models.root, *others = roots
    models.others = tuple(others)
    async with models.hosted() as call:
        assert (await call("caller_1", 1), await call("caller_2", 1)) == ([2], [3])
        askers = [identifier("asker", str(root)) for root in roots[:2]]
        assert [await call(asker, 1) for asker in askers] == [[2], [3]]
        assert await call("caller_3", 1) == [2]
        assert (await call.error("lost", 1)).message.endswith("Model 'add' is not ready.")


@on_a_loop
async def test_an_async_model_awaits_several_at_a_time(models: Models) -> None:
    models.add("add_one", ADD_ONE)
    models.add(
        "caller",
        """
        class TritonPythonModel:
            async def execute(self, requests):
                responses = []
                for request in requests:
                    calls = [request_to("add_one", x_of(request).as_numpy() + n).async_exec() for n in range(3)]
                    got = await asyncio.gather(*calls)
                    responses.append(answer(np.concatenate([r.output_tensors()[0].as_numpy() for r in got])))
                return responses
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 5) == [6, 7, 8]


@on_a_loop
async def test_async_exec_calls_at_once_and_returns_a_future(models: Models) -> None:
    models.add("add_one", ADD_ONE)
    models.add(
        "caller",
        """
        class TritonPythonModel:
            async def execute(self, requests):
                calls = [request_to("add_one", x_of(requests[0]).as_numpy() + n).async_exec() for n in range(3)]
                done, pending = await asyncio.wait(calls)
                assert not pending and all(call.done() for call in calls)
                return [answer(np.concatenate([call.result().output_tensors()[0].as_numpy() for call in calls]))]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 5) == [6, 7, 8]


@pytest.mark.parametrize("decoupled", [False, True])
@on_a_loop
async def test_an_input_that_is_named_twice_is_refused_in_a_call(models: Models, decoupled: bool) -> None:
    models.add("add_one", ADD_ONE)
    models.add(
        "caller",
        f"""
        class TritonPythonModel:
            def execute(self, requests):
                request = pb_utils.InferenceRequest(
                    model_name="add_one", inputs=[x_of(requests[0])] * 2, requested_output_names=["Y"]
                )
                answered = request.exec(decoupled={decoupled})
                return [outcome(next(answered) if {decoupled} else answered)]
        """,
    )
    async with models.hosted() as call:
        error = await call.error("caller", 0)
        assert error.message == "[request id: <id_unknown>] input 'X' already exists in request"


@on_a_loop
async def test_elements_of_strings_become_bytes_in_a_call(models: Models) -> None:
    strings = IDENTITY.replace("TYPE_INT32", "TYPE_STRING")
    models.add("strings", config=strings)
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                given = pb_utils.Tensor("INPUT0", np.array(["é", b"\\xff", 7, 1.5], object))
                request = pb_utils.InferenceRequest(
                    model_name="strings", inputs=[given], requested_output_names=["OUTPUT0"]
                )
                got = request.exec().output_tensors()[0].as_numpy().tolist()
                return [answer(np.array([got == ["é".encode(), b"\\xff", b"7", b"1.5"]], np.int32))]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 0) == [1]


@on_a_loop
async def test_a_tensor_goes_to_a_model_of_the_same_process_without_a_copy(models_here: Models) -> None:
    models_here.add("same", config=IDENTITY)
    models_here.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                array = x_of(requests[0]).as_numpy()
                inputs = [pb_utils.Tensor("INPUT0", array)]
                got = pb_utils.InferenceRequest(model_name="same", inputs=inputs, requested_output_names=[]).exec().output_tensors()[0]
                return [answer(np.array([np.shares_memory(got.host_array(False), array)], np.int32)) for r in requests]
        """,
    )
    async with models_here.hosted() as call:
        assert await call("caller", 5) == [1]


@on_a_loop
async def test_a_called_model_cannot_write_to_its_callers_tensors(models: Models) -> None:
    models.add(
        "writer",
        """
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    x_of(request).as_numpy()[:] = 99
                return [answer(x_of(r).as_numpy()) for r in requests]
        """,
    )
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                array = np.array([7], np.int32)
                got = request_to("writer", array).exec().output_tensors()[0].as_numpy()
                return [answer(np.concatenate([array, got])) for r in requests]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 0) == [7, 99]


@pytest.mark.parametrize("count", [1, 5_000], ids=["small", "large"])
@on_a_loop
async def test_a_model_may_write_to_what_it_is_answered(models: Models, count: int) -> None:
    models.add("add_one", ADD_ONE)
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                outputs = [request_to(np.array(["add_one"])[0], x_of(r)).exec().output_tensors()[0] for r in requests]
                for output in outputs:
                    output.as_numpy()[:] *= 2
                return [answer(output.as_numpy()) for output in outputs]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", *range(count)) == [2 * (number + 1) for number in range(count)]


@on_a_loop
async def test_errors_are_responses_with_tritons_texts(models: Models) -> None:
    models.add("countdown", COUNTDOWN, DECOUPLED).add("to_countdown", CALLER % "countdown")
    models.add("to_nobody", CALLER % "nobody")
    models.add("failing", "class TritonPythonModel:\n    def execute(self, requests): raise ValueError('no')")
    models.add("to_failing", CALLER % "failing")
    models.add("add_one", ADD_ONE)
    models.add("wrong_input", CALLER.replace("x_of(r)", "x_of(r).as_numpy().astype(np.float32)") % "add_one")
    async with models.hosted() as call:
        text = "Failed for execute the inference request. Model 'nobody' is not ready."
        assert (await call.error("to_nobody", 1)).message == text
        assert "Please use 'decoupled=True'" in (await call.error("to_countdown", 1)).message
        failed = await call.error("to_failing", 1)
        assert isinstance(failed, Internal)
        assert failed.message.endswith("ValueError: no")
        assert "inference input 'X' data-type is 'FP32'" in (await call.error("wrong_input", 1)).message


@on_a_loop
async def test_a_call_carries_all_that_a_request_can(models: Models) -> None:
    models.add(
        "echo",
        """
        class TritonPythonModel:
            def execute(self, requests):
                (r,) = requests
                told = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters()]
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([json.dumps(told)], object))])]
        """,
        CONFIG.replace('name: "Y" data_type: TYPE_INT32', 'name: "Y" data_type: TYPE_STRING'),
    )
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                request = request_to("echo", x_of(requests[0]), request_id="me", correlation_id=7, flags=3, timeout=9,
                    model_version=1, parameters={"depth": 2, "priority": 1},
                    preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
                    trace=requests[0].trace())
                told = json.loads(request.exec().output_tensors()[0].as_numpy()[0])
                assert told == ["me", 7, 3, 9, '{"depth":2}'], told
                return [answer(np.array([1], np.int32))]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 0) == [1]


@on_a_loop
async def test_a_trace_goes_on_in_calls_that_are_given_it(models: Models) -> None:
    echo = """
        class TritonPythonModel:
            def execute(self, requests):
                context = requests[0].trace().get_context()
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([context or "none"], object))])]
    """
    strings = CONFIG.replace('name: "Y" data_type: TYPE_INT32', 'name: "Y" data_type: TYPE_STRING')
    models.add("echo", echo, strings)
    models.add("with_trace", CALLER.replace("x_of(r)", "x_of(r), trace=r.trace()") % "echo", strings)
    models.add("without", CALLER % "echo", strings)
    async with models.hosted() as call:
        parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        assert await call("with_trace", 1, parameters=parent) == [json.dumps(parent).encode()]
        assert await call("without", 1, parameters=parent) == [b"none"]
        assert await call("with_trace", 1) == [b"none"]


@on_a_loop
async def test_a_model_that_calls_itself_is_told_so(models: Models) -> None:
    models.add("itself", CALLER % "itself")
    models.add("ping", CALLER % "pong").add("pong", CALLER % "ping")
    async with models.hosted() as call:
        for name, chain in (("itself", "itself -> itself"), ("ping", "ping -> pong -> ping")):
            error = await call.error(name, 1)
            assert error.message.endswith(
                f"Model '{name}' would wait for an instance of its own that waits for it: {chain}"
            )
            assert (await call.error(name, 1)).message == error.message


@on_a_loop
async def test_a_version_calls_another_of_its_model_and_none_that_calls_it_back(models: Models) -> None:
    calls = """
        class TritonPythonModel:
            def initialize(self, args):
                self.other = 3 - int(args["model_version"])
            def execute(self, requests):
                return [self.answered(x_of(r).as_numpy()) for r in requests]
            def answered(self, x):
                return outcome(request_to("m", x - 1, model_version=self.other).exec()) if x[0] else answer(x)
    """
    models.add("m", calls, CONFIG, "version_policy { all {} }")
    shutil.copytree(models.root / "m/1", models.root / "m/2")
    async with models.hosted() as call:
        for version in (1, 2):
            assert await call("m", 0, model_version=version) == [0]
            assert await call("m", 1, model_version=version) == [0]
            with pytest.raises(ServingError, match=r": m -> m -> m$"):
                await call("m", 2, model_version=version)


@on_a_loop
async def test_so_is_one_that_comes_back_through_an_ensemble(models: Models) -> None:
    models.add("caller", CALLER % "round")
    ensemble = CONFIG.replace('backend: "python"', 'platform: "ensemble"')
    step = """ensemble_scheduling { step { model_name: "caller" model_version: -1
        input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }"""
    models.add("round", "", ensemble, step)
    (models.root / "round" / "1" / "kept").write_text("")
    async with models.hosted() as call:
        assert "would wait for an instance of its own" in (await call.error("caller", 1)).message


@on_a_loop
async def test_a_cancelled_request_ends_the_calls_that_are_made_for_it(models: Models) -> None:
    models.add(
        "slow",
        """
        class TritonPythonModel:
            def execute(self, requests):
                def later(request, sender):
                    while not request.is_cancelled():
                        self.turn.wait(0.01)
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                for request in requests:
                    threading.Thread(target=later, args=(request, request.get_response_sender())).start()
            def initialize(self, args):
                self.turn = threading.Event()
        """,
        DECOUPLED,
    )
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                got = list(request_to("slow", x_of(requests[0])).exec(decoupled=True))
                seen.append(got[-1].error().code() == pb_utils.TritonError.CANCELLED)
                return [answer(np.array([1], np.int32)) for r in requests]
        seen = []
        """,
    )
    models.add("outer", CALLER % "caller")
    async with models.hosted() as call:
        started: asyncio.Future[InferResponse | ServingError] = asyncio.get_running_loop().create_future()
        served = call.host.served[("outer", 1)]
        inputs = {"X": np.array([0], np.int32)}
        request = InferRequest(inputs, 1, lambda _, result: started.set_result(result))
        served.submit_request(request)
        async with asyncio.timeout(60):
            while not call.host.served[("slow", 1)].model.streams.open_count:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            served.cancel_request(request)
            result = await started
        assert isinstance(result, Cancelled)


@on_a_loop
async def test_calls_are_refused_outside_execute(models: Models) -> None:
    models.add("add_one", ADD_ONE)
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def initialize(self, args):
                try:
                    request_to("add_one", np.array([1], np.int32)).exec()
                except pb_utils.TritonModelException as error:
                    self.error = str(error)
            def execute(self, requests):
                assert self.error == "BLS is only supported during the 'execute' function."
                return [answer(np.array([1], np.int32)) for r in requests]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 0) == [1]


@on_a_loop
async def test_threads_of_a_model_call_too(models: Models) -> None:
    models.add("add_one", ADD_ONE)
    models.add(
        "caller",
        """
        from concurrent.futures import ThreadPoolExecutor
        class TritonPythonModel:
            def execute(self, requests):
                with ThreadPoolExecutor(4) as pool:
                    calls = [pool.submit(request_to("add_one", np.array([n], np.int32)).exec) for n in range(8)]
                got = [call.result().output_tensors()[0].as_numpy() for call in calls]
                return [answer(np.concatenate(got)) for r in requests]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 0) == list(range(1, 9))


@pytest.mark.parametrize("later", [False, True], ids=["calls at once", "calls later"])
@on_a_loop
async def test_a_model_that_hides_its_calls_leaves_the_loops_thread(models_here: Models, later: bool) -> None:
    models_here.add("add_one", ADD_ONE)
    models_here.add(
        "caller",
        """
        import threading

        class TritonPythonModel:
            def execute(self, requests):
                value = int(requests[0].inputs()[0].as_numpy()[0])
                if not value:
                    on_loop = threading.current_thread() is threading.main_thread()
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([on_loop], np.int32))])]
                call = getattr(pb_utils, "Inference" + "Request")(
                    model_name="add_one", requested_output_names=["Y"],
                    inputs=[pb_utils.Tensor("X", np.array([value], np.int32))])
                return [outcome(getattr(call, "exec")()) for r in requests]
        """,
        CONFIG,
        'parameters { key: "eagleray.inline" value { string_value: "true" } }',
    )
    text = models_here.root / "caller" / "1" / "model.py"
    text.write_text(
        text.read_text().split("def request_to")[0] + "def outcome" + text.read_text().split("def outcome")[1]
    )
    async with models_here.hosted() as call:
        async with asyncio.timeout(60):
            while later and await call("caller", 0) == [0]:  # the first ones measure how quick it is, in a thread
                pass
        errors = []
        for _ in range(100):
            try:
                assert await call("caller", 1) == [2]
            except ServingError as error:
                errors.append(error.message)
        assert len(errors) == later
        assert all("on the thread of the event loop" in error for error in errors)


@on_a_loop
async def test_is_model_ready(models: Models) -> None:
    models.add("add_one", ADD_ONE)
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                ready = [pb_utils.is_model_ready("add_one"), pb_utils.is_model_ready("add_one", "1"),
                         pb_utils.is_model_ready("add_one", "2"), pb_utils.is_model_ready("nobody")]
                return [answer(np.array(ready, np.int32)) for r in requests]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 0) == [1, 1, 0, 0]


@on_a_loop
async def test_flags_that_are_not_a_sequences_say_nothing_to_the_called_model(models: Models) -> None:
    sequences = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
    flags = "[r.set_flags(np.uint32(7)) for r in requests]\n        return"
    models.add("add_one", ADD_ONE.replace("return", flags), CONFIG + sequences)
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                got = request_to("add_one", x_of(requests[0]), correlation_id=7, flags=np.uint32(7)).exec()
                return [answer(got.output_tensors()[0].as_numpy())]
        """,
    )
    async with asyncio.timeout(20), models.hosted() as call:
        assert await call("caller", 1) == [2]
