"""The page of the console in a browser, on an ingress of 300 models that run nowhere: what needs no cluster."""

import json
from collections.abc import Iterator
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from benchmarks.console import serve
from deployments.control.plan_report import report_plan
from repository_loader.deployment_plan import DeploymentPlan, ModelPlan, Plan
from tests.chromium import Browser, needs_chromium

pytestmark = needs_chromium


def plan_with_gpus() -> dict[str, Any]:
    """Return what an ingress tells of two replicas that share a card, and of a model that has no place."""
    card = {"num_cpus": 0.05, "memory_bytes": 4 << 30, "gpu": 0}
    deployments = [
        DeploymentPlan(name, "v1", "isolated", (model_plan(name),), 1, num_gpus=share, **card)
        for name, share in (("resnet", 0.25), ("bert", 0.4))
    ]
    report = report_plan(Plan(tuple(deployments), (), {"huge": "model 'huge' needs more memory than a GPU has"}))
    return report | {
        "replicas": [[f"{each.app_name}#v1", f"{each.app_name}_v1#abc", "node", ["0"]] for each in deployments]
    }


def model_plan(name: str) -> ModelPlan:
    package: Any = SimpleNamespace(config=ModelConfig(name=name))
    return ModelPlan(name, 1, package, "isolated", (), 1 << 20, (), "runs on a GPU")


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    """The page, in the light of the machine that runs the tests."""
    ours, theirs = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve, args=(theirs, 300, True, plan_with_gpus()))
    server.start()
    theirs.close()
    browser = Browser()
    try:
        browser.open(f"http://127.0.0.1:{ours.recv()}/")
        browser.wait("document.querySelectorAll('.rows .row').length === 300")
        yield browser
    finally:
        browser.close()
        ours.close()
        server.join(10)


@pytest.fixture
def page(opened: Browser) -> Iterator[Browser]:
    opened.problems.clear()
    opened.evaluate("location.hash = '#/'")
    yield opened
    assert not opened.problems


def test_of_300_models_only_those_that_are_seen_are_drawn(page: Browser) -> None:
    page.wait("document.querySelectorAll('.rows .row').length === 300")
    page.evaluate("""(() => {
        window.drawn = new Set();
        new MutationObserver((changes) => {
            for (const { target } of changes) drawn.add((target.nodeType === 1 ? target : target.parentElement).closest(".row"));
        }).observe(document.querySelector(".rows"), { subtree: true, childList: true, characterData: true, attributes: true });
    })()""")
    page.wait("window.drawn.size > 5")
    assert page.evaluate("drawn.size") < 60


def test_a_gpu_has_one_name_where_it_is_busy_and_where_it_is_held(page: Browser) -> None:
    page.evaluate("location.hash = '#/cluster'")
    page.wait_for_text(".node .meters", "GPU 0 …1234")
    page.wait_for_text(".node", "GPU 0 …1234 65 % held")
    page.wait_for_text(".node", "bert v1 40 %")
    page.wait_for_text(".cluster .about", "1 model without a place")
    assert "[object" not in page.text("#main")
    node = {"gpus": [{"number": 0, "uuid": "GPU-aa11"}, {"number": 1, "uuid": "GPU-bb22"}]}
    cases = [[["1"], "GPU 1 …bb22"], [["GPU-aa11", "7"], "GPU 0 …aa11, GPU 7"], [[], "a GPU"]]
    script = (
        f"import('/console/format.js').then(m => {json.dumps(cases)}.map(c => m.gpusNamed({json.dumps(node)}, c[0])))"
    )
    assert page.evaluate(script) == [name for _, name in cases]


def test_the_bars_of_a_vocabulary_are_its_highest(page: Browser) -> None:
    found = page.evaluate("""import("/console/outputs.js").then((outputs) => {
        const data = Array.from({ length: 200_000 }, (_, at) => at);
        const shown = outputs.showOutput({ name: "Y", datatype: "FP32", shape: [1, data.length], data });
        return shown.querySelector(".bars .best span").textContent;
    })""")
    assert found == "199999"


def test_texts_are_elements_by_line_or_a_list_in_json(page: Browser) -> None:
    texts = ['["a", "b"]', "[INST] a\nb"]
    script = f"import('/console/tensors.js').then(m => {json.dumps(texts)}.map(t => m.parseValues(t, 'BYTES', [2])))"
    assert page.evaluate(script) == [["a", "b"], ["[INST] a", "b"]]


@pytest.mark.parametrize(
    ("shape", "place"), [("[1, 3, 2, 2]", "4 * c + p"), ("[-1, 2, 2, 3]", "3 * p + c")], ids=["NCHW", "NHWC"]
)
def test_an_image_lies_in_a_tensor_as_its_shape_says_and_is_shown_again(page: Browser, shape: str, place: str) -> None:
    shape = shape.replace("-1", "1")
    found = page.evaluate(f"""(async () => {{
        const tensors = await import("/console/tensors.js"), outputs = await import("/console/outputs.js");
        const pixels = Uint8ClampedArray.from({{ length: 16 }}, (_, at) => 10 * at);
        const layout = tensors.imageLayout({shape}, "UINT8");
        const bytes = tensors.fromPixels(pixels, layout, "UINT8", "0 to 1");
        const wrong = [0, 1, 2, 3].flatMap((p) => [0, 1, 2].filter((c) => bytes[{place}] !== pixels[4 * p + c]));
        const floats = tensors.fromPixels(pixels, layout, "FP32", "-1 to 1".replace("-", "−"));
        const shown = outputs.showOutput({{ name: "Y", datatype: "UINT8", shape: {shape}, data: bytes }});
        [...shown.querySelectorAll("button")].find((each) => each.textContent === "Image").click();
        const drawn = shown.querySelector("canvas").getContext("2d").getImageData(0, 0, 2, 2).data;
        const lost = [0, 1, 2, 3].flatMap((p) => [0, 1, 2].filter((c) => drawn[4 * p + c] !== pixels[4 * p + c]));
        return [wrong.length, lost.length, Math.min(...floats), Math.max(...floats) < 0.1];
    }})()""")
    assert found == [0, 0, -1, True]


def test_halves_are_those_of_numpy(page: Browser) -> None:
    values = [0.0, -0.0, 1.0, -2.5, 65504.0, 65520.0, 6e-8, 2.98e-8, 6.1e-5, 0.1, 1 / 3, 1e-10, 2049.0, 2051.0, -1e5]
    script = f"import('/console/tensors.js').then(m => {json.dumps(values)}.map(v => m.halfBits(v, 'FP16')))"
    with np.errstate(over="ignore"):
        expected = np.array(values, dtype=np.float32).astype(np.float16)
    assert page.evaluate(script) == expected.view(np.uint16).tolist()
    bits = [0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0xC100]
    script = f"import('/console/tensors.js').then(m => {bits}.map(b => m.halfValue(b, 'FP16')))"
    assert page.evaluate(script) == np.array(bits, dtype=np.uint16).view(np.float16).tolist()


def test_a_history_that_comes_or_goes_with_a_node_is_no_traffic(page: Browser) -> None:
    states = [
        (10**6, "ab"),
        (10**6 + 5, "ab"),
        (10, "a"),
        (13, "a"),
        (10**6 + 9, "ab"),
        (10**6, "ab"),
        (10**6 + 4, "ab"),
    ]
    documents = [document(at, count, nodes) for at, (count, nodes) in enumerate(states, 1)]
    assert followed(page, documents) == [[5, 0, 3, 0, 0, 4], [0, 5, 0, 3, 0, 0, 4]]


def test_a_clock_of_the_server_that_is_set_back_begins_the_history_anew(page: Browser) -> None:
    documents = [document(at, count) for at, count in ((3600, 10), (3601, 15), (3600, 10), (1, 17), (2, 20))]
    assert followed(page, documents) == [[3], [0, 3]]


def document(at_s: int, count: int, nodes: str = "a") -> dict[str, Any]:
    """Return a state in which a model of these nodes has answered so many requests."""
    return {
        "at_ms": 1000 * at_s,
        "server": {},
        "bounds_us": [100, 200],
        "nodes": [{"id": each} for each in nodes],
        "models": [{"id": "m", "version": 1, "success": count, "latency": [0, count]}],
    }


def followed(page: Browser, documents: list[dict[str, Any]]) -> Any:
    """Return the rates of the model, and of all, that the page makes of states."""
    return page.evaluate(f"""import("/console/store.js").then(({{ Store }}) => {{
        const store = new Store();
        for (const each of {json.dumps(documents)}) store._take(each);
        return [store.rows[0].history.map((point) => point.rate), store.totals.map((total) => total.clients)];
    }})""")


def test_a_restricted_api_is_asked_for_by_its_header(page: Browser) -> None:
    text = "This API is restricted, expecting header 'admin-key'"
    script = f"import('/console/api.js').then(m => new m.ServerError(403, {json.dumps(text)}).header)"
    assert page.evaluate(script) == "admin-key"


def test_light_and_dark(page: Browser) -> None:
    colours = {}
    for _ in range(3):
        page.click("#theme")
        theme = page.evaluate("document.documentElement.dataset.theme")
        colours[theme] = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).map(Number)")
    assert colours.keys() == {"", "light", "dark"}
    assert max(colours["dark"][:3]) < 64 and min(colours["light"][:3]) > 192
    assert colours[""] in (colours["dark"], colours["light"])
    assert page.evaluate("localStorage.clear() || true")
