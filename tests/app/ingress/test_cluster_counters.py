"""What was counted on all nodes, as one ingress adds it up."""

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import ray

from app.ingress import cluster_counters
from app.ingress.cluster_counters import ClusterCounters
from app.service.statistics import NodeTotals
from deployments.core.counts import CPU, GPU, MODEL, CpuState, GpuState, Label, ModelCounts, Totals
from deployments.core.row_forms import written
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder


class Counters:
    """Those of a node on which nothing was counted."""

    def totals(self) -> Totals:
        return Totals()


def test_a_node_that_answers_while_the_others_are_added_up_harms_nobody() -> None:
    counters: Any = Counters()
    cluster = ClusterCounters("here", counters)
    cluster._elsewhere = {"one": [], "two": []}

    class Alive(dict[str, str]):
        """The nodes that are alive; one more answers, on another thread, whenever somebody looks."""

        def __contains__(self, node_id: object) -> bool:
            cluster._elsewhere[f"after {node_id}"] = []
            return super().__contains__(node_id)

    read = cluster._read(Alive(here="", one="", two=""))
    assert [node.node_id for node in read] == ["here", "one", "two"]


def rows(success_count: int) -> list[list[object]]:
    totals = Totals()
    cast(ModelCounts, totals.row(Label(MODEL, "m", 1))).success_count = success_count
    cast(CpuState, totals.row(Label(CPU, "", 0))).total_bytes = 1 << 30
    cast(GpuState, totals.row(Label(GPU, f"GPU-{success_count}", 0))).total_bytes = 80 << 30
    return list(written(totals.to_list()))


def counted(nodes: list[NodeTotals]) -> int:
    return sum(node.totals.models()["m", 1].success_count for node in nodes if node.totals.rows)


def test_nodes_that_came_and_went_are_one_row_with_all_that_they_counted() -> None:
    counters: Any = Counters()
    cluster, names = ClusterCounters("here", counters), set()
    for number in range(100):
        cluster._elsewhere[str(number)] = rows(number)
        alive = {"here": "10.0.0.1", "other": "10.0.0.3", str(number): "10.0.0.2"}
        cluster._elsewhere["other"] = rows(1000)
        read = cluster._read(alive)
        assert {node.address for node in read if node.address} == set(alive.values())
        assert counted(read) == 1000 + sum(range(number + 1))
        names.add(read[-1].node_id)
    read = cluster._read({"here": "10.0.0.1", "other": "10.0.0.3"})
    assert [node.address for node in read] == ["10.0.0.1", "10.0.0.3", ""]
    assert counted(read) == 1000 + sum(range(100))
    assert [label.kind for label in read[-1].totals.rows] == [MODEL], "a dead node has no memory and no GPU"
    assert len(names) == 100, "whoever knows of other dead nodes is told apart"
    assert cluster._elsewhere.keys() == {"other"}


def test_a_dead_node_whose_answer_comes_late_counts_once() -> None:
    counters: Any = Counters()
    cluster = ClusterCounters("here", counters)
    cluster._elsewhere["gone"] = rows(5)
    assert counted(cluster._read({"here": ""})) == 5
    cluster._elsewhere["gone"] = rows(5)
    assert counted(cluster._read({"here": ""})) == 5
    assert not cluster._elsewhere


def test_what_dead_nodes_had_counted_of_versions_that_are_gone_is_dropped(tmp_path: Path) -> None:
    here = NodeCounters(NodeFolder("node", tmp_path))
    cluster = ClusterCounters("here", here)
    cluster._elsewhere["dead"] = rows(5)
    cast(ModelCounts, here.row(Label(MODEL, "m", 1))).success_count = 2
    cast(ModelCounts, here.row(Label(MODEL, "other", 1))).success_count = 3
    assert counted(cluster._read({"here": ""})) == 7
    cluster.give_back(lambda name, _: name == "m")
    here_now, dead = cluster._read({"here": ""})
    assert (list(here_now.totals.models()), list(dead.totals.models())) == ([("other", 1)], [])
    here.close()


def test_what_a_node_of_another_version_counts_otherwise_is_left_out() -> None:
    counters: Any = Counters()
    cluster = ClusterCounters("here", counters)
    cluster._elsewhere["newer"] = [
        *rows(5),
        ["moods 0123abcd", "m", 1, 0, "", [3]],
        ["model 0123abcd", "m", 1, 0, "", [4]],
    ]
    assert counted(cluster._read({"here": "", "newer": ""})) == 5
    assert counted(cluster._read({"here": ""})) == 5, "its node is dead"


def test_while_ray_does_not_answer_the_nodes_are_those_it_named_last(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"NodeID": "here", "NodeManagerAddress": "10.0.0.1", "Alive": True}
    other = {"NodeID": "other", "NodeManagerAddress": "10.0.0.2", "Alive": False}
    answers, asked = threading.Event(), []

    def nodes() -> list[dict[str, Any]]:
        asked.append(1)
        assert answers.wait(30)
        return [here, other]

    monkeypatch.setattr(ray, "nodes", nodes)
    counters: Any = Counters()
    cluster = ClusterCounters("here", counters, timeout_s=0.1)
    answers.set()

    async def run() -> None:
        await cluster.connect()
        asked.clear()
        answers.clear()
        try:
            of_many = await asyncio.gather(*(cluster.of_nodes() for _ in range(100)))
            assert [[node.address for node in each] for each in of_many] == [["10.0.0.1"]] * 100
            assert len(asked) == 1, "one thread waits, and what else needs one has it"
            here["NodeManagerAddress"] = "10.0.0.3"
        finally:
            answers.set()
        await asyncio.wait_for(until_told("10.0.0.3"), 30)

    async def until_told(address: str) -> None:
        while [node.address for node in await cluster.of_nodes()] != [address]:
            pass

    asyncio.run(run())


def test_ingresses_tell_the_same_of_a_dead_node_whatever_each_has_heard_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One has heard of it early, one late, one never, and one starts when the node is dead."""
    counters: Any = Counters()
    early, late, never, new = ingresses = [ClusterCounters("here", counters) for _ in range(4)]
    nodes = {"here": True, "gone": True}

    async def ask_each(among: object, method: str, *arguments: object, timeout_s: float) -> list[Any]:
        return [TimeoutError(), *[await each.of_dead() for each in ingresses]] if method == "counts_of_dead" else []

    def table() -> list[dict[str, Any]]:
        return [{"NodeID": id, "NodeManagerAddress": "", "Alive": alive} for id, alive in nodes.items()]

    monkeypatch.setattr(ray, "nodes", table)
    monkeypatch.setattr(cluster_counters, "ask_each", ask_each)
    monkeypatch.setattr(cluster_counters, "all_ingresses", lambda: None)
    early._elsewhere["gone"], late._elsewhere["gone"] = rows(5), rows(7)
    assert [counted(asyncio.run(each.of_nodes())) for each in (early, late, never)] == [5, 7, 0]
    nodes["gone"] = False
    asyncio.run(new.inherit())
    assert [counted(asyncio.run(each.of_nodes())) for each in (new, never, early, late)] == [7] * 4
    nodes["other"] = False
    never._elsewhere["other"] = rows(100)
    asyncio.run(new.inherit())
    assert counted(asyncio.run(new.of_nodes())) == 107
    assert len({each._name_of_dead for each in (new, never)}) == 1
