"""Ray's agent of a node is asked for its metrics by one ingress of the node, whatever becomes of either."""

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import ray

from app.metrics.ray_agent import AgentSweep, ask_agent
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from tests.serving import environment, run


class Agent:
    """What stands for the agent of a node: it counts who asks, and ends each third connection without an answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def nodes(self) -> list[dict[str, object]]:
        elsewhere = {"NodeID": "elsewhere", "NodeManagerAddress": "127.0.0.1", "MetricsExportPort": 9}
        without = {"NodeID": "without", "NodeManagerAddress": "127.0.0.1", "MetricsExportPort": 0}
        here = {"NodeManagerAddress": "127.0.0.1", "MetricsExportPort": self._server.server_port}
        return [elsewhere, without, {"NodeID": "node", **here}]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                if len(asked) % 3:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(b"x 1\n" * 100_000)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    made = Agent()
    monkeypatch.setattr(ray, "nodes", made.nodes)
    yield made
    made.close()


async def _until_asked(agent: Agent, counters: NodeCounters, times: int) -> None:
    task = asyncio.create_task(AgentSweep("node", counters.speaks_for_node, 0.01).run())
    try:
        async with asyncio.timeout(30):
            while len(agent.asked) < times:
                assert not task.done()
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_one_ingress_of_a_node_asks_and_another_goes_on(agent: Agent, tmp_path: Path) -> None:
    first, second = (NodeCounters(NodeFolder("node", tmp_path)) for _ in range(2))
    asyncio.run(_until_asked(agent, first, 7))  # two of these had no answer
    assert set(agent.asked) == {"/metrics"}
    agent.asked.clear()
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(AgentSweep("node", second.speaks_for_node, 0.01).run(), 0.3))
    assert not agent.asked
    first.close()
    asyncio.run(_until_asked(agent, second, 2))
    second.close()


def test_the_agent_of_the_own_node_is_asked_where_there_is_one(agent: Agent) -> None:
    assert ask_agent("node") == 400_000
    assert ask_agent("without") == ask_agent("unknown") == 0
    with pytest.raises(OSError):
        ask_agent("elsewhere")


ASKED = """
import json
import ray
from app.metrics.ray_agent import ask_agent
from tests.serving import wait_until

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
node_id = ray.get_runtime_context().get_node_id()
wait_until(lambda: ask_agent(node_id) > 1000, "the agent's metrics", 60)
print(json.dumps(ask_agent(node_id)))
"""


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_rays_own_agent_answers() -> None:
    done = run(sys.executable, "-c", ASKED, env=environment(), timeout_s=150)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) > 1000
