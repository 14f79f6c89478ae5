"""`python -m benchmarks.simulation`: the control plane's own code at sizes that no machine here has.

The publisher, the directories that follow it, the planner and the routing tables are Eagleray's; the nodes, their
network and Ray are not there. What is sent counts as pickled, as Ray sends it.
"""

import asyncio
import gc
import pickle
import random
import resource
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import click
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from app.service.models import Models
from app.service.routing import Routing
from deployments.control.autoscaler import Autoscaler
from deployments.control.controller_options import ControllerOptions
from deployments.control.directory import READY, Directory, ModelEntry, VersionEntry
from deployments.control.group_deployment import deployment_options
from deployments.control.publisher import Publisher
from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from deployments.lane.client import TableRow
from deployments.lane.routes import Routes
from deployments.lane.target import TargetContext
from deployments.replica.hosted_model import packages_by_name
from protocol.limits import Limits
from repository_loader.autoscaling import Autoscaling
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.config_json import config_to_json
from repository_loader.deployment_plan import DeploymentPlan, ModelPlan, Plan, PlanSettings
from repository_loader.normalisation import normalise
from repository_loader.package import ModelPackage
from repository_loader.plan import make_plan
from repository_loader.snapshot import LoaderOptions, RepositoryModel, Snapshot

CONFIG = """
backend: "onnxruntime" max_batch_size: 8 dynamic_batching { }
input [ { name: "X" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""
CHANGES = 100


@dataclass
class Figures:
    """What one run of a size showed; times are CPU times of one process."""

    plan_ms: float = 0.0
    reconcile_ms: float = 0.0
    first_bytes: int = 0
    change_bytes: int = 0
    change_ms: float = 0.0
    follow_ms: float = 0.0
    idle_ms: float = 0.0
    directory_kib: float = 0.0
    routes_mib: float = 0.0
    routing_us: float = 0.0
    choice_us: float = 0.0
    death_ms: float = 0.0
    scale_ms: float = 0.0
    converged: bool = False


class SimulatedLane:
    """A lane as the routing table sees it."""

    __slots__ = ("calls", "near", "withdrawn")

    def __init__(self, near: bool) -> None:
        self.calls: dict[int, object] = {}
        self.near = near
        self.withdrawn = False


def snapshot(count: int) -> Snapshot:
    """Return a repository of so many models."""
    models = {}
    for number in range(count):
        name = f"model_{number:05}"
        config = text_format.Parse(f'name: "{name}" {CONFIG}', ModelConfig())
        list(normalise(config, range(0)))
        package = ModelPackage(name, 1, config, f"/models/{name}", f"/models/{name}/1", "")
        models[name] = RepositoryModel(name, f"/models/{name}", config, (package,), (), None)
    return Snapshot(models)


def tables(models: Snapshot, ready: set[str]) -> dict[str, dict[str, Any]]:
    """Return the controller's tables: every model, those that are ready, and their deployments."""
    rows = {}
    for name, model in models.models.items():
        assert model.config is not None
        version = VersionEntry("LOADING", "", "isolated", "CPU", 1)
        if name in ready:
            version.state = READY
        rows[name] = ModelEntry(config_to_json(model.config), "onnxruntime", "", {1: version}).to_dict()
    return {"models": rows, "deployments": {f"{name}#v1": [name, "v1"] for name in rows}}


def time_ms(action: Callable[[], Any], repeats: int = 5) -> float:
    """Return the CPU time of an action, the median of several runs."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        action()
        times.append((time.process_time() - started) * 1e3)
    return median(times)


def memory_mib() -> float:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def compare(figures: Figures, plan: Plan) -> None:
    """Make what the reconciler compares in each pass: the options of every deployment."""
    options = ControllerOptions((), LoaderOptions(), PlanSettings(), Limits())
    former = packages_by_name(plan)
    before = [deployment_options(each, former, options, {}, "eagleray") for each in plan.deployments]

    def again() -> None:
        packages = packages_by_name(plan)
        packages.take_told(former, plan)
        after = [deployment_options(each, packages, options, {}, "eagleray") for each in plan.deployments]
        assert before == after, "equal plans must be equal to the reconciler"

    figures.reconcile_ms = time_ms(again)


async def converge(figures: Figures, models: Snapshot, node_count: int, seed: int) -> None:
    """Have a directory for each node follow a publisher through changes, pauses and a new controller."""
    chance = random.Random(seed)
    publisher = Publisher()
    ready: set[str] = set()
    current = tables(models, ready)
    publisher.publish(settled=False, **current)
    before_mib = memory_mib()
    followers = [Directory() for _ in range(node_count)]

    async def follow(chosen: list[Directory], source: Publisher) -> None:
        for follower in chosen:
            if (follower.epoch, follower.generation) != (source.epoch, source.generation):
                news = await source.news(follower.epoch, follower.generation)
                follower.take(pickle.loads(sent := pickle.dumps(news)))
                sizes.append(len(sent))

    sizes: list[int] = []
    await follow(followers, publisher)
    figures.first_bytes = sizes[0]
    figures.directory_kib = (memory_mib() - before_mib) * 1024 / node_count

    sizes.clear()
    changes_ms: list[float] = []
    follows_ms: list[float] = []
    for _ in range(CHANGES):
        name = chance.choice(sorted(models.models))
        row = dict(current["models"][name])
        row["versions"] = {"1": {**row["versions"]["1"], "state": READY, "seconds": chance.random()}}
        current = {**current, "models": {**current["models"], name: row}}
        started = time.process_time()
        publisher.publish(settled=True, **current)
        middle = time.process_time()
        await follow(
            followers[: max(1, node_count // 10)], publisher
        )  # the others are busy, and hear of several at once
        changes_ms.append((middle - started) * 1e3)
        follows_ms.append((time.process_time() - middle) * 1e3 / max(1, node_count // 10))
    figures.change_ms, figures.follow_ms = median(changes_ms), median(follows_ms)
    figures.change_bytes = sum(sizes) // len(sizes)
    await follow(followers, publisher)
    figures.idle_ms = time_ms(lambda: publisher.publish(settled=True, **current))

    successor = Publisher()
    gone = chance.sample(sorted(models.models), max(1, len(models.models) // 10))
    kept = {name: row for name, row in current["models"].items() if name not in gone}
    successor.publish(
        settled=True, models=kept, deployments={key: current["deployments"][key] for key in (f"{n}#v1" for n in kept)}
    )
    await follow(followers, successor)
    wanted = {name: ModelEntry.from_dict(row, None) for name, row in kept.items()}
    figures.converged = all(
        follower.epoch == successor.epoch
        and follower.deployments.keys() == {f"{name}#v1" for name in kept}
        and follower.models == wanted
        for follower in followers
    )


class SimulatedIngress:
    """An ingress that hosts nothing, and whose lanes lead to what the routes have."""

    def __init__(self, routes: Routes | None = None) -> None:
        self._routes = routes

    def target(self, name: str, version: int = -1) -> Any:
        return None if self._routes is None else self._routes.find(name, version)


def route(figures: Figures, models: Snapshot, node_count: int, replica_count: int) -> None:
    """Fill one ingress's routing table with every replica of the cluster, use it, and have a node die."""
    model_count = len(models.models)
    tracemalloc.start()
    routes = Routes(TargetContext(4096, Refusals(Totals())), lambda: None)
    per_node = max(1, replica_count // node_count)
    nodes: list[list[Any]] = []
    for number in range(replica_count):
        lane: Any = SimulatedLane(near=number < per_node)
        row = TableRow(0, f"model_{number % model_count:05}", 1, capacity=1, spill=False, fault="")
        routes.take_table(lane, [row])
        if number % per_node == 0:
            nodes.append([])
        nodes[-1].append(lane)
    figures.routes_mib = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    target = routes.find("model_00000", 1)
    assert target is not None
    known: Any = Models(SimulatedIngress(), SimulatedIngress(routes))  # type: ignore[arg-type]
    known.directory = Directory(
        models={
            name: ModelEntry.from_dict(row, None) for name, row in tables(models, set(models.models))["models"].items()
        }
    )
    routing, count = Routing(known, Refusals(Totals())), 20_000
    names = [b"model_%05d" % (number % min(model_count, replica_count)) for number in range(count)]
    random.Random(0).shuffle(names)
    figures.routing_us = time_ms(lambda: [routing.resolve(name, 1) for name in names]) * 1e3 / count
    figures.choice_us = time_ms(lambda: [target.choice.next(near=False) for _ in range(count)]) * 1e3 / count
    figures.death_ms = time_ms(lambda: deque(map(routes.withdraw, nodes[-1]), 0), repeats=1)


def scale(figures: Figures, model_count: int, node_count: int) -> None:
    """Have the autoscaler decide over every model with a report of every ingress."""
    config, rules = ModelConfig(), Autoscaling(1, 100)
    deployments = []
    for number in range(model_count):
        package = ModelPackage(f"model_{number:05}", 1, config, "", "", "")
        model = ModelPlan(package.name, 1, package, "isolated", (), 0)
        deployments.append(DeploymentPlan(package.name, "v1", "isolated", (model,), 1, 0.1, 0, 0, autoscaling=rules))
    autoscaler = Autoscaler()
    autoscaler.follow(deployments, {})
    busy = {f"model_{number:05}/1": (3.0, 10.0) for number in range(min(100, model_count))}
    for number in range(node_count):
        autoscaler.take(f"ingress-{number}", busy)
    figures.scale_ms = time_ms(autoscaler.decide)


def simulate(nodes: int, replicas: int, models: int, seed: int = 0) -> Figures:
    """Run every part at one size."""
    figures = Figures()
    repository = snapshot(models)
    facts = ClusterFacts(tuple(NodeFacts(64.0) for _ in range(nodes)))
    figures.plan_ms = time_ms(lambda: make_plan(repository, PlanSettings(placement="isolated"), facts))
    compare(figures, make_plan(repository, PlanSettings(placement="isolated"), facts))
    asyncio.run(converge(figures, repository, nodes, seed))
    route(figures, repository, nodes, replicas)
    scale(figures, models, nodes)
    return figures


COLUMNS = (
    "nodes",
    "replicas",
    "models",
    "plan, ms",
    "reconciler, ms per pass",
    "first news, KiB",
    "news of a change, KiB",
    "controller, ms per change",
    "controller, ms when nothing has changed",
    "follower, ms per news",
    "directory, KiB",
    "routes, MiB",
    "model of a new head, µs",
    "choice of a replica, µs",
    "death of a node, ms",
    "autoscaler, ms per decision",
    "all views equal",
)
SIZES = ((1, 10, 1), (10, 100, 10), (100, 1000, 100), (300, 3000, 300), (1000, 10_000, 1000))


@click.command(help=__doc__)
def main() -> None:
    click.echo(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for nodes, replicas, models in SIZES:
        found = simulate(nodes, replicas, models)
        click.echo(
            f"| {nodes:,} | {replicas:,} | {models:,} | {found.plan_ms:.1f} "
            f"| {found.reconcile_ms:.1f} | {found.first_bytes / 1024:.1f} "
            f"| {found.change_bytes / 1024:.2f} | {found.change_ms:.2f} | {found.idle_ms:.2f} | {found.follow_ms:.3f} "
            f"| {found.directory_kib:.0f} | {found.routes_mib:.1f} | {found.routing_us:.2f} | {found.choice_us:.2f} "
            f"| {found.death_ms:.2f} "
            f"| {found.scale_ms:.1f} | {'yes' if found.converged else 'NO'} |"
        )


if __name__ == "__main__":
    main()
