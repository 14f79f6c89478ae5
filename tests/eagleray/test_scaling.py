"""On how many nodes there are ingresses."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagleray import scaling
from eagleray.scaling import OnEveryNode

NAMES = ("head", "a", "b", "c", "d", "e")


def node(number: int, *, alive: bool) -> dict[str, Any]:
    resources = {"CPU": 1.0} if number else {"CPU": 1.0, "node:__internal_head__": 1.0}
    return {"NodeID": NAMES[number], "Alive": alive, "Resources": resources}


class Cluster:
    """Nodes, of which some are in use besides ingresses, and the policy that counts them."""

    def __init__(self, alive: int, in_use: set[str], per_node: int = 1, min_nodes: int = 1) -> None:
        self.alive = alive
        self.draining: frozenset[str] = frozenset()
        self.in_use = in_use
        self.now_s = 100.0
        self._state: dict[str, Any] = {}
        self._policy = OnEveryNode(
            per_node,
            min_nodes,
            nodes=lambda: [node(each, alive=each < self.alive) for each in range(self.alive + 1)],
            draining=lambda: self.draining,
            in_use=lambda: frozenset(self.in_use),
            clock=lambda: self.now_s,
        )

    def ingresses(self, after_s: float = 0.0) -> int:
        """Have Serve ask again after so long."""
        self.now_s += after_s
        context: Any = SimpleNamespace(policy_state=self._state)
        count, self._state = self._policy(context)
        return count


def test_every_node_has_ingresses_though_nothing_else_runs_there() -> None:
    cluster = Cluster(3, {"head"}, per_node=2, min_nodes=0)
    assert [cluster.ingresses(), cluster.ingresses(100)] == [6, 6]


def test_a_node_on_which_nothing_else_runs_loses_its_ingresses_after_a_while() -> None:
    cluster = Cluster(3, {"head", "a", "b"}, per_node=2)
    assert [cluster.ingresses(), cluster.ingresses(31)] == [6, 6]
    cluster.in_use = {"head", "a"}
    assert [cluster.ingresses(3), cluster.ingresses(20), cluster.ingresses(11)] == [6, 6, 4]
    cluster.alive = 2
    assert cluster.ingresses(3) == 4


def test_a_node_on_which_something_begins_to_run_has_ingresses_at_once() -> None:
    """Those of another node would do for the number alone: all have some until Serve has placed them."""
    cluster = Cluster(3, {"head"})
    assert [cluster.ingresses(), cluster.ingresses(31)] == [3, 1]
    cluster.in_use = {"head", "b"}
    assert [cluster.ingresses(3), cluster.ingresses(31)] == [3, 2]


@pytest.mark.parametrize(("alive", "expected"), [(5, 3), (3, 3), (2, 2)])
def test_so_many_nodes_keep_their_ingresses_whatever_runs(alive: int, expected: int) -> None:
    cluster = Cluster(alive, {"head"}, min_nodes=3)
    assert [cluster.ingresses(), cluster.ingresses(31)] == [alive, expected]


@pytest.mark.parametrize("min_nodes", [0, 1])
def test_no_ingress_is_to_take_the_place_of_those_on_a_node_that_drains(min_nodes: int) -> None:
    """There is no room for it, and Ray's autoscaler would start a node."""
    cluster = Cluster(3, {"head", "a", "b"}, per_node=2, min_nodes=min_nodes)
    assert [cluster.ingresses(), cluster.ingresses(31)] == [6, 6]
    cluster.draining = frozenset({"b"})
    assert cluster.ingresses(0.1) == 4
    cluster.alive, cluster.draining = 2, frozenset()
    assert [cluster.ingresses(0.1), cluster.ingresses(3)] == [4, 4]


def test_ingresses_of_the_only_worker_stay_until_another_has_some() -> None:
    """Clients may not reach those of the head."""
    cluster = Cluster(2, {"head", "a"})
    assert [cluster.ingresses(), cluster.ingresses(31)] == [2, 2]
    cluster.draining = frozenset({"a"})
    assert cluster.ingresses(0.1) == 2
    cluster.alive = 3
    assert cluster.ingresses(3) == 2


def test_it_needs_nothing_that_the_controller_may_have_imported_of_another_version() -> None:
    """Else `serve deploy` after an installation in place would stay DEPLOYING, with its errors in a log of Serve's."""
    imported = set()
    for statement in ast.walk(ast.parse(Path(scaling.__file__).read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            imported |= {name.name for name in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            imported.add(str(statement.module))
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names == {"ray"}
