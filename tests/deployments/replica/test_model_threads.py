"""What a Python model binds to its thread, and to an event loop of that thread, when it loads."""

import logging

import pytest

from tests.deployments.replica.hosted_models import Models, on_a_loop
from tests.deployments.replica.hosted_models import models as models
from tests.deployments.replica.hosted_models import unfrozen as unfrozen

CALLS = 20
"""Enough that a quick model would run on the loop's thread in the end."""


@on_a_loop
async def test_what_a_model_binds_to_its_thread_when_it_loads_is_there_in_each_batch(
    models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    models.add(
        "bound",
        """
        import sqlite3
        class TritonPythonModel:
            def initialize(self, args):
                self.kept = sqlite3.connect(":memory:")
            def execute(self, requests):
                return [answer(np.array(self.kept.execute("select 7").fetchone(), np.int32)) for r in requests]
            def finalize(self):
                self.kept.close()
        """,
    )
    with caplog.at_level(logging.ERROR):
        async with models.hosted() as call:
            assert [await call("bound", 1) for _ in range(CALLS)] == [[7]] * CALLS
    assert not caplog.messages


@on_a_loop
async def test_what_a_library_binds_to_the_thread_of_a_model_is_there_in_each_batch(models: Models) -> None:
    pytest.importorskip("torch")
    models.add(
        "bound",
        """
        import torch
        class TritonPythonModel:
            def initialize(self, args):
                torch.set_grad_enabled(False)
                self.layer = torch.nn.Linear(1, 1)
            def execute(self, requests):
                return [answer((0 * self.layer(torch.ones(1))).numpy().astype(np.int32)) for r in requests]
        """,
    )
    async with models.hosted() as call:
        assert [await call("bound", 1) for _ in range(CALLS)] == [[0]] * CALLS


@on_a_loop
async def test_a_model_has_an_event_loop_that_does_not_run_from_its_initialize_on(models: Models) -> None:
    models.add(
        "loops",
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.loop = asyncio.get_event_loop()
                self.lock = asyncio.Lock()
            async def add(self, array):
                async with self.lock:
                    await asyncio.sleep(0)
                return array + 1
            def execute(self, requests):
                assert asyncio.get_event_loop() is self.loop
                return [answer(self.loop.run_until_complete(self.add(x_of(r).as_numpy()))) for r in requests]
        """,
    )
    async with models.hosted() as call:
        assert [await call("loops", number) for number in range(CALLS)] == [[number + 1] for number in range(CALLS)]
