"""Python models that call decoupled models of their process, and read their responses."""

import asyncio

import pytest

from tests.deployments.replica.hosted_models import COUNTDOWN, DECOUPLED, Models, on_a_loop
from tests.deployments.replica.hosted_models import models as models
from tests.deployments.replica.hosted_models import unfrozen as unfrozen


@pytest.mark.parametrize("way", ["for response in got", "async for response in got"])
@on_a_loop
async def test_the_responses_of_a_decoupled_model_come_one_by_one(models: Models, way: str) -> None:
    models.add("countdown", COUNTDOWN, DECOUPLED)
    models.add(
        "caller",
        f"""
        class TritonPythonModel:
            async def execute(self, requests):
                got = await request_to("countdown", x_of(requests[0])).async_exec(decoupled=True)
                numbers = []
                {way}:
                    numbers += [int(tensor.as_numpy()[0]) for tensor in response.output_tensors()]
                return [answer(np.array(numbers, np.int32)) for r in requests]
        """,
    )
    models.add(
        "blocking",
        """
        class TritonPythonModel:
            def execute(self, requests):
                got = list(request_to("countdown", x_of(requests[0])).exec(decoupled=True))
                assert not got[-1].output_tensors() and not got[-1].has_error()
                return [answer(np.concatenate([r.output_tensors()[0].as_numpy() for r in got[:-1]])) for _ in requests]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 3) == [3, 2, 1]
        assert await call("blocking", 4) == [4, 3, 2, 1]


@on_a_loop
async def test_async_exec_of_a_decoupled_model_is_done_with_the_first_response(models: Models) -> None:
    models.add(
        "pairs",
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.senders = []
            def execute(self, requests):
                self.senders += [request.get_response_sender() for request in requests]
                if len(self.senders) == 2:
                    for sender in self.senders:
                        sender.send(answer(np.array([7], np.int32)), flags=1)
        """,
        DECOUPLED,
    )
    models.add(
        "caller",
        """
        class TritonPythonModel:
            async def execute(self, requests):
                def ask():
                    return request_to("pairs", np.array([0], np.int32)).async_exec(decoupled=True)
                calls = [ask()]
                await asyncio.sleep(0)
                assert not calls[0].done()
                calls.append(ask())
                got = [response for responses in await asyncio.gather(*calls) for response in responses]
                return [answer(np.concatenate([response.output_tensors()[0].as_numpy() for response in got]))]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 0) == [7, 7]


@on_a_loop
async def test_a_decoupled_call_is_given_up_with_the_future_of_its_first_response(models: Models) -> None:
    models.add(
        "waits",
        """
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    sender = request.get_response_sender()
                    while not sender.is_cancelled():
                        self.turn.wait(0.01)
                    sender.send(flags=1)
            def initialize(self, args):
                self.turn = threading.Event()
        """,
        DECOUPLED,
    )
    models.add(
        "caller",
        """
        class TritonPythonModel:
            async def execute(self, requests):
                call = request_to("waits", np.array([0], np.int32)).async_exec(decoupled=True)
                assert call.cancel()
                await asyncio.wait([call])
                return [answer(np.array([1], np.int32))]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 0) == [1]
        async with asyncio.timeout(60):
            while call.host.served[("waits", 1)].model.streams.open_count:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)


@on_a_loop
async def test_responses_that_have_ended_can_be_iterated_again(models: Models) -> None:
    models.add("countdown", COUNTDOWN, DECOUPLED)
    models.add(
        "caller",
        """
        class TritonPythonModel:
            def execute(self, requests):
                def values(responses):
                    return [int(t.as_numpy()[0]) for r in responses for t in r.output_tensors()]
                got = request_to("countdown", x_of(requests[0])).exec(decoupled=True)
                heard = values([next(got)]) + values(got)
                assert next(got, None) is None
                heard += values(got)
                for response in got:
                    break
                heard += values(got)
                return [answer(np.array(heard, np.int32))]
        """,
    )
    async with models.hosted() as call:
        assert await call("caller", 3) == [3, 2, 1, 3, 2, 1, 2, 1]
        assert await call("caller", 2000) == [*range(2000, 0, -1)]
