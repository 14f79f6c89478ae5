"""What the console asks for, as its page gets it."""

import asyncio
import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from app.console.assets import read_assets
from app.console.live_state import LiveState
from app.http.console_api import ConsoleApi
from app.service.cluster_view import NodeLog
from app.service.model_control import ExplicitControl
from app.service.statistics import NodeTotals
from deployments.control.directory import UNAVAILABLE
from deployments.core.counts import BATCH_SIZE, CLIENT, CPU, GPU, MODEL, STATE, Label, Totals
from deployments.core.request_meter import FIRST_BUCKET
from tests.app.http.served import Served, entry

MAX_PAGE_BYTES = 150_000
HOSTILE = "<img src=x onerror=alert(1)>"


def run(test: Any) -> None:
    asyncio.run(test())


def test_the_page_and_all_its_files_are_small_and_may_load_nothing_from_elsewhere() -> None:
    async def test() -> None:
        served = Served()
        answer = await served.request("GET", "/")
        assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-frame-options"] == "DENY" and answer.headers["x-content-type-options"] == "nosniff"
        total = len(answer.body)
        for name in read_assets():
            file = await served.request("GET", f"/console/{name}")
            assert file.status == 200 and file.headers["x-content-type-options"] == "nosniff"
            total += len(file.body) if name != "index.html" else 0
            text = file.body.decode()
            assert (
                "innerHTML" not in text
                and "eval(" not in text
                and "http://" not in text.replace("http://www.w3.org/", "")
            )
            known = await served.request("GET", f"/console/{name}", If_None_Match=file.headers["etag"])
            assert (known.status, known.body) == (304, b"")
        assert total <= MAX_PAGE_BYTES, total

    run(test)


@pytest.mark.parametrize("name", ["..%2fassets.py", "%2e%2e", "assets.py", "%00", "../assets.py", "main.js%2f"])
def test_other_files_are_not_served(name: str) -> None:
    async def test() -> None:
        answer = await Served().request("GET", f"/console/{name}")
        assert (answer.status, answer.error) == (404, "Not Found")

    run(test)


def test_everything_that_the_page_names_is_there() -> None:
    assets = read_assets()
    named = {word.split('"')[0] for asset in assets.values() for word in asset.content.decode().split('"/console/')[1:]}
    named |= {word.split('"')[0] for asset in assets.values() for word in asset.content.decode().split('from "./')[1:]}
    assert named <= assets.keys() and assets.keys() - named == {"index.html"}


def test_the_state_has_every_version_with_what_it_counted() -> None:
    async def test() -> None:
        served = Served()
        rows: Any = served.counters.totals
        model = rows.row(Label(MODEL, "good", 2))
        model.success_count, model.success_ns, model.queue_ns, model.pending_count = 7, 7_000_000, 2_000_000, 3
        model.backend_count, model.canceled_count = 1, 40  # clients that gave up are no failures
        rows.row(Label(BATCH_SIZE, "good", 2, 4)).count = 5
        for wire in (0, 1):
            cells = rows.row(Label(CLIENT, "good", 2, wire)).cells
            cells[FIRST_BUCKET + 1] = 3
        rows.row(Label(STATE, "good", 2)).executing_count = 2
        rows.row(Label(CPU, "", 0)).utilization_ppm = 250_000
        rows.row(Label(GPU, "GPU-2", 0, 1)).utilization_ppm = 0
        rows.row(Label(GPU, "GPU-1", 0, 0)).utilization_ppm = 500_000
        state = (await served.request("GET", "/v2/console/state")).json
        found = {(row["name"], row["version"]): row for row in state["models"]}
        assert found["good", 2]["success"] == 7 and found["good", 2]["failed"] == 1
        assert found["good", 2]["request_us"] == 7000 and found["good", 2]["queue_us"] == 2000
        assert (found["good", 2]["pending"], found["good", 2]["executing"]) == (3, 2)
        assert found["good", 2]["batch_sizes"] == {"4": 5}
        assert found["good", 2]["latency"] == [0, 6]
        assert (found["bad", 1]["state"], found["bad", 1]["reason"]) == ("UNAVAILABLE", "it does not load")
        assert found["half", 1]["state"] == "READY"
        (node,) = state["nodes"]
        assert node["cpu"] == 0.25 and node["gpus"][0] | {"memory": 0} == {
            "number": 0,
            "uuid": "GPU-1",
            "busy": 0.5,
            "power_w": 0.0,
            "memory": 0,
        }
        assert [gpu["uuid"] for gpu in node["gpus"]] == ["GPU-1", "GPU-2"]
        assert len(state["bounds_us"]) == 24

    run(test)


def test_the_state_is_of_all_nodes() -> None:
    async def test() -> None:
        served = Served()
        nodes = [NodeTotals(address, address, Totals()) for address in ("10.0.0.1", "10.0.0.2")]
        for count, node in enumerate(nodes, 2):
            rows: Any = node.totals
            rows.row(Label(MODEL, "good", 2)).success_count = count

        async def of_nodes() -> list[NodeTotals]:
            return nodes

        served.counters.of_nodes = of_nodes  # type: ignore[method-assign]
        state = (await served.request("GET", "/v2/console/state")).json
        assert [row["success"] for row in state["models"] if (row["name"], row["version"]) == ("good", 2)] == [5]
        assert [node["address"] for node in state["nodes"]] == ["10.0.0.1", "10.0.0.2"]

    run(test)


def test_one_document_serves_all_who_look_within_a_second() -> None:
    async def test() -> None:
        served, now_s = Served(), [100.0]
        state = LiveState(served.service, lambda: now_s[0])
        first, second = await asyncio.gather(state.document(), state.document())
        assert first is second
        assert gzip.decompress(first.compressed) == first.content
        now_s[0] += first.good_s - 0.001
        assert await state.document() is first
        now_s[0] += 0.002
        later = await state.document()
        assert later is not first and json.loads(later.content)["at_ms"] >= json.loads(first.content)["at_ms"]

    run(test)


def test_the_state_is_of_when_the_counters_were_read_not_of_when_the_last_node_answered() -> None:
    async def test() -> None:
        served, read_ms = Served(), [0.0]
        of_nodes = served.counters.of_nodes

        async def slow() -> Any:
            nodes, read_ms[0] = await of_nodes(), time.time() * 1000
            while time.time() * 1000 < read_ms[0] + 3:
                await asyncio.sleep(0)
            return nodes

        served.counters.of_nodes = slow  # type: ignore[method-assign]
        document = await LiveState(served.service).document()
        assert json.loads(document.content)["at_ms"] <= read_ms[0] + 1

    run(test)


def test_the_state_comes_compressed_where_that_is_taken() -> None:
    async def test() -> None:
        answer = await Served().request("GET", "/v2/console/state", Accept_Encoding="gzip, br")
        assert answer.headers["content-encoding"] == "gzip"
        assert json.loads(gzip.decompress(answer.body))["models"]

    run(test)


def test_a_model_is_shown_with_its_tensors_and_a_sentence_on_its_fields() -> None:
    async def test() -> None:
        served = Served()
        model = (await served.request("GET", "/v2/console/models/good")).json
        assert model["inputs"] == [
            {"name": "X", "datatype": "FP32", "shape": [-1, 2], "optional": False, "format": "FORMAT_NONE"}
        ]
        assert ["max_batch_size: 8", "0: the model does not batch"] in model["config"]
        assert model["versions"] == ["1", "2"] and model["traffic"]["shares"] == {"2": 1.0}
        assert model["may_load"] is False and model["may_shift_traffic"] is True
        assert (await served.request("GET", "/v2/console/models/nobody")).status == 404

    run(test)


def test_loading_is_offered_in_explicit_mode_and_where_the_port_serves_it() -> None:
    async def test() -> None:
        served = Served()
        served.service.control = ExplicitControl(served.service.control)
        assert (await served.request("GET", "/v2/console/models/good")).json["may_load"] is True
        state = LiveState(served.service)
        elsewhere = ConsoleApi(served.service, state, manages=False)
        served.context.app.endpoints.update(elsewhere.endpoints())  # type: ignore[attr-defined]
        model = (await served.request("GET", "/v2/console/models/good")).json
        assert (model["may_load"], model["may_shift_traffic"]) == (False, False)

    run(test)


def test_an_ensemble_is_shown_as_its_steps_and_tensors() -> None:
    async def test() -> None:
        served = Served()
        steps = """
        ensemble_scheduling {
          step { model_name: "good" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "t" } }
          step { model_name: "half" model_version: 1 input_map { key: "X" value: "t" } output_map { key: "Y" value: "Y" } }
        }"""
        served.service.models.directory.models["both"] = entry("both", (1, "READY", ""), more=steps)
        graph = (await served.request("GET", "/v2/console/models/both")).json["graph"]
        assert (graph["inputs"], graph["outputs"]) == (["X"], ["Y"])
        assert [(step["model"], step["version"], step["takes"], step["makes"]) for step in graph["steps"]] == [
            ("good", -1, ["X"], ["t"]),
            ("half", 1, ["t"], ["Y"]),
        ]
        assert graph["tensors"]["t"] == "FP32 [2]"

    run(test)


def test_a_model_whose_tensors_have_no_datatype_is_shown_as_it_is() -> None:
    async def test() -> None:
        served = Served()
        steps = """
        input { name: "bare" dims: [ 1 ] }
        output { name: "nothing" dims: [ 3 ] }
        ensemble_scheduling {
          step { model_name: "good" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } }
        }"""
        served.service.models.directory.models["typeless"] = entry("typeless", (1, UNAVAILABLE, "no"), more=steps)
        model = (await served.request("GET", "/v2/console/models/typeless")).json
        assert [tensor["datatype"] for tensor in model["inputs"]] == ["FP32", "<invalid>"]
        assert model["graph"]["tensors"]["nothing"] == "<invalid> [3]"

    run(test)


@pytest.mark.parametrize("path", ["/v2/console/state", "/v2/console/models/good"])
def test_what_tells_of_the_repository_asks_for_its_header_too(path: str) -> None:
    async def test() -> None:
        rules = ("model-repository:admin=a", "statistics,model-config:reader=b")
        served = Served(rules)
        for headers in ({}, {"admin": "a"}, {"reader": "b"}, {"reader": "b", "admin": "wrong"}):
            assert (await served.request("GET", path, **headers)).status == 403
        answer = await served.request("GET", path, reader="b")
        assert answer.error == "This API is restricted, expecting header 'admin'"
        assert (await served.request("GET", path, reader="b", admin="a")).status == 200

    run(test)


def test_the_log_marks_what_went_wrong_and_carries_markup_as_text() -> None:
    class View:
        async def logs(self, model: str, count: int) -> list[NodeLog]:
            lines = [
                f"one {HOSTILE}",
                "E1122 it failed",
                "    Traceback (most recent call last):",
                '      File "/models/bad/1/model.py", line 3, in initialize',
                "        self.weights = open('weights')",
                '      File "/usr/lib/python3/x.py", line 1, in open',
                "        raise",
                f"    OSError: {HOSTILE}",
                "I1122 goes on",
            ]
            return [NodeLog("node", [("file", line) for line in lines])]

    async def test() -> None:
        served = Served()
        served.service.cluster = View()  # type: ignore[assignment]
        answer = await served.request("GET", "/v2/console/models/bad/log")
        (node,) = answer.json["nodes"]
        assert answer.headers["content-type"] == "application/json"
        assert node["lines"][0] == f"one {HOSTILE}" and node["failed"] == [4, 7]
        assert (await served.request("GET", "/v2/console/models/nobody/log")).status == 404

    run(test)


def test_the_plan_needs_the_controller() -> None:
    async def test() -> None:
        answer = await Served().request("GET", "/v2/console/plan")
        assert (answer.status, answer.error) == (503, "the plan cannot be told at present")

    run(test)


def test_without_a_console_its_paths_are_none() -> None:
    async def test() -> None:
        served = Served(console=False)
        for path in ("/", "/console/main.js", "/v2/console/state", "/v2/console/plan", "/v2/console/models/good/log"):
            answer = await served.request("GET", path)
            assert (answer.status, answer.error) == (404, "Not Found"), path

    run(test)


def test_no_module_is_longer_than_a_person_reads() -> None:
    folder = Path(__file__).parents[3] / "app" / "console" / "static"
    assert max(len(path.read_text().splitlines()) for path in folder.glob("*.js")) < 500
