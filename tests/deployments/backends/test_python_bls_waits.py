"""Calls of a model on the thread of the event loop that would bring their answers."""

import asyncio
from types import SimpleNamespace

import pytest

from deployments.backends.python import bls
from deployments.backends.python.errors import TritonModelException


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("awaits", [False, True])
def test_a_model_waits_for_no_answer_on_the_loop_that_would_bring_it(monkeypatch, decoupled, awaits):
    left = []
    server = SimpleNamespace(may_wait=lambda: False)
    module = SimpleNamespace(blocks_loop=lambda: left.append(1), server=server, may_call=True, forked=False)
    monkeypatch.setattr(bls, "_send", lambda *_: pytest.fail("nobody hears of it"))

    async def call():
        return bls.execute_async(module, lambda *_: None, decoupled)

    with pytest.raises(TritonModelException, match="cannot wait on the thread of the event loop"):
        asyncio.run(call()) if awaits else bls.execute(module, lambda *_: None, decoupled)
    assert left == [1]
