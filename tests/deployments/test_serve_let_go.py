"""What a process has let go of costs Serve nothing any more; on a Serve that runs."""

import json
import sys

import pytest

from tests.serving import environment, run

LET_GO = """
import json, queue
import ray
from ray import serve
from ray.serve._private.router import SharedRouterLongPollClient, SingletonThreadRouter
from ray.serve.config import RequestRouterConfig
from ray.serve.context import _get_global_client
from deployments.control import replica_directory
from deployments.serve_internals import LANE_ROUTER, handle_of, let_go_of, watch_replicas
from tests.serving import wait_until

class Model:
    def describe(self):
        return "described"

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
serve.start(proxy_location="Disabled")
lists = queue.Queue()
model = serve.deployment(Model).options(
    name="v1",
    ray_actor_options={"num_cpus": 0},
    graceful_shutdown_wait_loop_s=0.1,
    request_router_config=RequestRouterConfig(request_router_class=LANE_ROUTER),
)

def run(app):
    return serve._run(model.bind(), name=app, route_prefix=None, _blocking=True)

def watch(app):
    return watch_replicas(app, "v1", lambda replicas: lists.put((app, len(replicas))))

def until_heard(*expected):
    while lists.get(timeout=30) != expected:
        pass

def asked():
    poll = SharedRouterLongPollClient.get_or_create(
        _get_global_client()._controller, SingletonThreadRouter._asyncio_loop
    ).long_poll_client
    return {key[1].app_name for known in (poll.snapshot_ids, poll.key_listeners) for key in known}

ends = {app: watch(app) for app in ("stays", "comes", "never")}
for app in ("stays", "comes"):
    run(app)
    until_heard(app, 1)
serve.delete("comes")
until_heard("comes", 0)
ends.pop("comes")()
ends.pop("never")()
wait_until(lambda: asked() == {"stays"}, "what was let go of is asked for no longer")
told = {"kept": sorted(replica_directory._replicas)}
run("comes")
described = handle_of("v1", "comes").describe.remote().result(timeout_s=30)
ends["comes"] = watch("comes")
until_heard("comes", 1)
told["again"] = [described, sorted(asked())]
ends.pop("comes")()
wait_until(lambda: asked() == {"stays"}, "what was let go of once more is asked for no longer")
serve.delete("comes")
serve.delete("stays")
until_heard("stays", 0)
run("asked")
told["asked"] = handle_of("v1", "asked").describe.remote().result(timeout_s=30)
let_go_of("asked", "v1")
wait_until(lambda: asked() == {"stays"}, "what was only asked is let go of")
run("stays")
until_heard("stays", 1)
serve.shutdown()
ray.shutdown()
print(json.dumps(told))
"""


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_serve_is_asked_no_more_for_deployments_that_were_let_go_of() -> None:
    """What is watched still is heard of, and what is watched or asked again."""
    done = run(sys.executable, "-c", LET_GO, env=environment(RAY_SERVE_LOG_TO_STDERR="0"), timeout_s=150)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "kept": ["stays#v1"],
        "again": ["described", ["comes", "stays"]],
        "asked": "described",
    }
