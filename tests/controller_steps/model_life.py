"""The life of a model, as operations: from its first load to its unload, in one place or from place to place."""

import json
import shutil
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from tests.controller_steps.cluster import CODE, Cluster, parameter, write
from tests.controller_steps.operations import Operation

BROKEN = "nonesuch"
STEP = """
platform: "ensemble"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "TAG" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling {
  step { model_name: "part" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "TAG" value: "MID" } }
  step { model_name: "model" model_version: -1 input_map { key: "X" value: "MID" } output_map { key: "TAG" value: "TAG" } }
}
"""


def loads(cluster: Cluster, placement: str) -> list[Operation]:
    """The life of a model, from its first load to its unload."""
    root, own = cluster.root, int(placement == "isolated")
    placed = parameter("placement", placement)
    everything = "version_policy { all {} }"

    def load(body: Any = None) -> Callable[[], None]:
        return lambda: cluster.control("model", "load", body)

    def fails(name: str = "model") -> None:
        answer = cluster.post(f"/v2/repository/models/{name}/load")
        assert (answer.status, BROKEN in answer.error) == (400, True), answer.body

    def shows(*versions: str, replicas: int = own) -> Callable[[], bool]:
        def look() -> bool:
            return cluster.ready("model") == [*versions] and (
                placement != "isolated" or cluster.replicas("model") == replicas
            )

        return look

    def instances() -> bool:
        config = cluster.get("/v2/models/model/config").json
        return config["instance_group"][0]["count"] == 2 and shows("1", "2", replicas=2 * own)()

    def writes(tag: object, version: int = 1, config: str = "") -> Callable[[], None]:
        return lambda: write(root, "model", tag, version, placed + config)

    def write_first() -> None:
        shutil.rmtree(root / "model", ignore_errors=True)
        writes(1)()

    def write_ensemble() -> None:
        writes(2, 1, ONE)()
        write(root, "part", 9, config=parameter("placement", "packed"))
        (root / "pipe/1").mkdir(parents=True, exist_ok=True)
        (root / "pipe/config.pbtxt").write_text(STEP)

    def write_good_and_broken_step() -> None:
        write(root, "part", 10, config=parameter("placement", "packed"))
        writes(BROKEN, 1, ONE)()

    def pipe_answers() -> bool:
        ready = cluster.ready("pipe") == cluster.ready("part") == ["1"] and shows("1")()
        return ready and (cluster.answer("pipe"), cluster.answer("part")) == (2, 9)

    given = {
        "backend": "python",
        "input": [{"name": "X", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "TAG", "data_type": "TYPE_INT32", "dims": [1]}],
        "parameters": {"eagleray.placement": {"string_value": placement}},
    }
    sent = {
        "parameters": {
            "config": json.dumps(given),
            "file:1/model.py": b64encode(f"TAG = 3\n{CODE}".encode()).decode(),
        }
    }
    ONE = "version_policy { specific { versions: 1 } }"
    asked = {"model": "model"}
    return [
        Operation("load", load(), shows("1"), brings=("model",), prepare=write_first),
        Operation("reload", load(), shows("1"), **asked, before={1}, after={2}, last={2}, prepare=writes(2)),
        Operation("load of files", load(sent), shows("1"), **asked, before={2}, after={3}, last={3}),
        Operation("load without files", load(), shows("1"), **asked, before={3}, after={2}, last={2}),
        Operation(
            "new version",
            load(),
            shows("1", "2", replicas=2 * own),
            **asked,
            before={2},
            after={5},
            last={5},
            prepare=writes(5, 2, everything),
        ),
        Operation(
            "two instances",
            load(),
            instances,
            **asked,
            before={5},
            after={5},
            last={5},
            prepare=writes(5, 2, everything + "instance_group { count: 2 kind: KIND_CPU }"),
        ),
        Operation(
            "version policy",
            load(),
            shows("1"),
            **asked,
            before={5},
            after={2},
            last={2},
            prepare=writes(2, 1, ONE),
        ),
        Operation(
            "load that fails",
            fails,
            shows("1"),
            **asked,
            before={2},
            after={2},
            last={2},
            prepare=writes(BROKEN, 1, ONE),
        ),
        Operation(
            "load of an ensemble",
            lambda: cluster.control("pipe", "load"),
            pipe_answers,
            **asked,
            before={2},
            after={2},
            last={2},
            brings=("pipe", "part"),
            prepare=write_ensemble,
        ),
        Operation(
            "load of an ensemble that fails",
            lambda: fails("pipe"),
            pipe_answers,
            **asked,
            before={2},
            after={2},
            last={2},
            prepare=write_good_and_broken_step,
        ),
        Operation(
            "unload with dependents",
            lambda: cluster.control("pipe", "unload", {"parameters": {"unload_dependents": True}}),
            lambda: cluster.ready("pipe") == cluster.ready("part") == [] and shows("1")(),
            **asked,
            before={2},
            after={2},
            last={2},
        ),
        Operation(
            "unload",
            lambda: cluster.control("model", "unload"),
            lambda: shows(replicas=0)() and cluster.answer("model") == -404,
        ),
    ]


def moves(cluster: Cluster) -> list[Operation]:
    """A model goes from place to place, each time with other files."""
    places = ("isolated", "packed", "embedded", "isolated", "embedded", "packed", "isolated")

    def moves_to(number: int) -> Operation:
        place, tags = places[number], {number, number + 1}
        config = parameter("placement", place)
        return Operation(
            f"goes from {places[number - 1]} to {place}",
            lambda: cluster.control("moves", "load"),
            lambda: cluster.ready("moves") == ["1"] and cluster.replicas("moves") == int(place == "isolated"),
            model="moves",
            before=tags,
            after=tags,
            last={number + 1},
            prepare=lambda: write(cluster.root, "moves", number + 1, config=config),
        )

    def begin() -> None:
        write(cluster.root, "moves", 1, config=parameter("placement", places[0]))

    return [
        Operation(
            "load of a model that moves",
            lambda: cluster.control("moves", "load"),
            lambda: cluster.ready("moves") == ["1"],
            brings=("moves",),
            prepare=begin,
        ),
        *map(moves_to, range(1, len(places))),
        Operation(
            "unload of a model that moves",
            lambda: cluster.control("moves", "unload"),
            lambda: cluster.ready("moves") == [] and cluster.replicas("moves") == 0,
        ),
    ]
