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
    module, server = SimpleNamespace(blocks_loop=lambda: left.append(1)), SimpleNamespace(may_wait=lambda: False)
    monkeypatch.setattr(bls, "_server_for", lambda made_by: (module, server))
    monkeypatch.setattr(bls, "_send", lambda *_: pytest.fail("nobody hears of it"))

    async def call():
        return bls.execute_async(None, lambda *_: None, decoupled)

    with pytest.raises(TritonModelException, match="cannot wait on the thread of the event loop"):
        asyncio.run(call()) if awaits else bls.execute(None, lambda *_: None, decoupled)
    assert left == [1]
