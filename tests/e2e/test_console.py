"""The console in a browser: what a person sees and clicks, on a server with API keys whose models they may load."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.chromium import Browser, needs_chromium
from tests.e2e.test_terminal import Terminal
from tests.repositories import EXAMPLES
from tests.serving import EAGLERAY, Server, environment, run, wait_until

pytestmark = needs_chromium

HOSTILE = "<img src=x onerror=alert(1)>"
BROKEN = f"""
import sys
class TritonPythonModel:
    def initialize(self, args):
        print("{HOSTILE}", file=sys.stderr)
        raise RuntimeError("{HOSTILE}")
    def execute(self, requests):
        return []
"""
ECHO = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(each, "TEXT").as_numpy())]) for each in requests]
"""
ODD = """
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        found = {
            "PIXELS": np.linspace(0, 1, 3 * 224 * 224, dtype=np.float32).reshape(1, 3, 224, 224),
            "LOGITS": np.array([-np.inf, np.nan, np.inf, 1.5], np.float32),
            "IDS": np.array([2**62 + 1, -(2**53) - 1, 7], np.int64),
        }
        answers = []
        for request in requests:
            found["SAME"] = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in found.items()]))
        return answers
"""
ODD_MODEL = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "PIXELS" data_type: TYPE_FP32 dims: [ 1, 3, 224, 224 ] }
output { name: "LOGITS" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "IDS" data_type: TYPE_INT64 dims: [ 3 ] }
output { name: "SAME" data_type: TYPE_FP32 dims: [ 3 ] }
"""
ENDLESS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, number = request.get_response_sender(), 0
            while not sender.is_cancelled():
                number += 1
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([str(number).encode()], np.object_))]))
                time.sleep(0.02)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TEXT_MODEL = """
backend: "python"
input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""
DIFFICULT = 'it\'s "grüß" $HOME `id` \\n 😀 </script>'


def write_model(root: Path, name: str, code: str, config: str = TEXT_MODEL) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    (root / name / "1" / "model.py").write_text(code)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    done = run(EAGLERAY, "new-api-key", "person", "--for", "infer,read,manage", "--file", str(path))
    return done.stdout.strip(), path


@pytest.fixture(scope="module")
def console(key: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("console")
    for name in ("digits", "digits_pipeline", "digits_preprocess", "digits_postprocess"):
        shutil.copytree(EXAMPLES / name, repository / name, ignore=shutil.ignore_patterns("__pycache__"))
    write_model(repository, HOSTILE, BROKEN)
    write_model(repository, "echo", ECHO)
    write_model(repository, "odd", ODD, ODD_MODEL)
    write_model(repository, "endless", ENDLESS, TEXT_MODEL + "model_transaction_policy { decoupled: true }")
    flags = ("--placement", "packed", "--num-cpus", "4", "--no-dashboard", "--strict-readiness=false")
    flags += ("--model-control-mode", "explicit", "--load-model", "*", "--api-key-file", str(key[1]))
    server = Server(repository, tmp_path_factory.mktemp("console-log") / "log", *flags)
    try:
        yield server.wait_ready()
        server.stop()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    started = Browser()
    yield started
    started.close()


@pytest.fixture(scope="module")
def let_in(console: Server, browser: Browser, key: tuple[str, Path]) -> Browser:
    """The page of a person who was asked for a key, and has given it."""
    browser.open(f"http://{console.address}/")
    browser.wait_for_text("#ask", "this server expects an API key")
    browser.type("#key-value", key[0])
    browser.click("#use-key")
    browser.wait("document.querySelectorAll('.rows .row').length === 9")
    assert browser.evaluate("localStorage.length === 0 && sessionStorage.length === 1")
    return browser


@pytest.fixture
def page(console: Server, let_in: Browser) -> Iterator[Browser]:
    let_in.problems.clear()
    yield let_in
    assert not let_in.problems


def show(page: Browser, console: Server, place: str) -> None:
    page.evaluate(f"location.hash = {json.dumps(place)}")


def test_models_are_found_by_keyboard_and_a_name_is_only_a_name(console: Server, page: Browser) -> None:
    show(page, console, "#/")
    page.wait_for_text(".rows", HOSTILE)
    assert page.evaluate("document.querySelectorAll('.rows img').length") == 0
    assert "UNAVAILABLE" in page.text(".rows") and page.text(".rows").count("READY") >= 8
    page.press("/")
    page.wait("document.activeElement.id === 'search'")
    page.command("Input.insertText", text="pipeline")
    page.wait("document.querySelectorAll('.rows .row').length === 1")
    page.press("ArrowDown")
    page.wait("document.activeElement.classList.contains('row')")
    page.press("Enter")
    page.wait_for_text("h1", "digits_pipeline")
    page.wait_for_text("#config", "the models that a request passes")


def test_a_request_of_an_image_is_answered_and_can_be_sent_elsewhere(
    console: Server, page: Browser, key: tuple[str, Path], tmp_path: Path
) -> None:
    picture = Image.new("L", (16, 16), 0)
    picture.paste(255, (6, 2, 10, 14))
    picture.save(tmp_path / "one.png")
    show(page, console, "#/model/digits/2")
    page.wait("document.querySelector('#send') !== null")
    page.choose_file("#try input[type=file]", tmp_path / "one.png")
    page.wait("!document.querySelector('#try canvas').hidden")
    page.click("#send")
    page.wait("document.querySelectorAll('#try .bars li').length === 10")
    best = page.text(".bars .best span")
    page.click(".output .segments button:last-of-type")
    shown = [float(cell) for cell in page.text(".output .values").split()]
    assert shown.index(max(shown)) == int(best)
    answer = json.loads(paste(page, "curl", key, tmp_path))
    assert [round(value, 5) for value in answer["outputs"][0]["data"]] == pytest.approx(shown, abs=1e-4)
    assert "SCORES [[" in paste(page, "Python", key, tmp_path)


def test_a_request_too_long_for_a_line_comes_in_a_file(
    console: Server, page: Browser, key: tuple[str, Path], tmp_path: Path
) -> None:
    show(page, console, "#/model/digits/1")
    page.wait("document.querySelector('h1').textContent === 'digits' && document.querySelector('#send') !== null")
    page.type("#try input.dim", "40")
    page.type("#try textarea", "0.5")
    page.click("#pin")
    page.click("#send")
    page.wait("document.querySelector('.snippets a') !== null")
    page.command("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click(".snippets a")
    wait_until(lambda: (tmp_path / "request.json").exists(), "the saved request")
    answer = json.loads(paste(page, "curl", key, tmp_path))
    assert (answer["model_version"], answer["outputs"][0]["shape"]) == ("1", [40, 10])
    assert "SCORES [[" in paste(page, "Python", key, tmp_path)


def test_a_text_comes_back_whole_wherever_it_is_sent_from(
    console: Server, page: Browser, key: tuple[str, Path], tmp_path: Path
) -> None:
    show(page, console, "#/model/echo")
    page.type("#try textarea", DIFFICULT)
    page.click("#send")
    page.wait(f"document.querySelector('#try .answer-text')?.textContent === {json.dumps(DIFFICULT)}")
    assert json.loads(paste(page, "curl", key, tmp_path))["outputs"][0]["data"] == [DIFFICULT]
    assert repr(DIFFICULT.encode()) in paste(page, "Python", key, tmp_path)
    page.type("#try textarea", "[INST] hello")
    page.click("#send")
    page.wait("document.querySelector('#try .answer-text')?.textContent === '[INST] hello'")


def test_large_answers_and_numbers_that_json_lacks_are_shown(console: Server, page: Browser) -> None:
    show(page, console, "#/model/odd")
    page.type("[data-input=X] textarea", "Infinity, -inf, nan")
    page.click("#send")
    page.wait("document.querySelector('[data-output=SAME]') !== null")
    assert page.evaluate("document.querySelector('[data-output=PIXELS] canvas').width") == 224
    assert shown_numbers(page, "LOGITS") == ["-Infinity", "NaN", "Infinity", "1.5"]
    assert shown_numbers(page, "IDS") == [str(2**62 + 1), str(-(2**53) - 1), "7"]
    assert shown_numbers(page, "SAME") == ["Infinity", "-Infinity", "NaN"]


def test_an_endless_stream_ends_by_a_button_and_with_its_view(
    console: Server, page: Browser, key: tuple[str, Path]
) -> None:
    def under_way() -> int:
        with console.client() as client:
            state = client.request("GET", "/v2/console/state", headers={"authorization": f"Bearer {key[0]}"}).json
        return int(next(row.get("in_flight", 0) for row in state["models"] if row["name"] == "endless"))

    show(page, console, "#/model/endless")
    for stop in ("document.querySelector('#stop').click()", "location.hash = '#/cluster'"):
        page.wait("document.querySelector('#send')?.disabled === false && document.querySelector('#stop').hidden")
        page.click("#send")
        page.wait("document.querySelectorAll('#try .stream li').length > 2")
        wait_until(lambda: under_way() == 1, "the stream", 60.0)
        page.evaluate(stop)
        wait_until(lambda: under_way() == 0, "the end of the stream", 60.0)


def test_an_address_that_was_typed_wrong_is_no_model(console: Server, page: Browser) -> None:
    show(page, console, "#/model/%")
    page.wait_for_text("#main .error", "There is no such model.")


def shown_numbers(page: Browser, output: str) -> list[str]:
    place = f"[data-output={output}]"
    page.click(f"{place} .segments button:last-of-type")
    return page.text(f"{place} .shown pre").split()


def paste(page: Browser, language: str, key: tuple[str, Path], folder: Path) -> str:
    """Run what the page shows, as a person who pastes it."""
    text = str(page.evaluate(f"document.querySelector('[data-snippet={language}] pre').textContent"))
    assert key[0] not in text
    command = ["bash", "-c", text] if language == "curl" else [sys.executable, "-c", text]
    done = subprocess.run(
        command, cwd=folder, env=environment(EAGLERAY_CLIENT_KEY=key[0]), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_graph_of_an_ensemble_has_its_steps_and_their_times(console: Server, page: Browser, tmp_path: Path) -> None:
    Image.new("L", (8, 8), 0).save(tmp_path / "image.png")
    done = run(
        EAGLERAY, "infer", "digits_pipeline", "--input", f"@{tmp_path}/image.png", "--url", f"http://{console.address}",
        env=environment(EAGLERAY_CLIENT_KEY=str(page.evaluate("JSON.parse(Object.values(sessionStorage)[0]).authorization.slice(7)"))),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    show(page, console, "#/model/digits_pipeline/1")
    page.wait("document.querySelectorAll('#graph .box.step').length === 3")
    titles = page.evaluate("[...document.querySelectorAll('#graph .title')].map(each => each.textContent)")
    assert set(titles) == {"IMAGE_BYTES", "digits_preprocess", "digits", "digits_postprocess", "LABEL", "CONFIDENCE"}
    page.wait(
        "[...document.querySelectorAll('#graph .when')].filter(each => / (µs|ms|s)$/.test(each.textContent)).length === 4"
    )


def test_a_failed_model_shows_the_line_that_failed(console: Server, page: Browser) -> None:
    show(page, console, "#/model/" + "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    page.wait_for_text(".model > .error", HOSTILE)
    page.wait("document.querySelectorAll('#log .failed').length > 0")
    marked = page.evaluate("[...document.querySelectorAll('#log .failed')].map(each => each.textContent).join('\\n')")
    assert f"RuntimeError: {HOSTILE}" in marked and "raise RuntimeError(" in marked
    assert page.evaluate("document.querySelectorAll('#log img').length") == 0


def test_a_model_is_unloaded_and_loaded(console: Server, page: Browser) -> None:
    show(page, console, "#/model/echo/1")
    page.click("#unload")
    page.wait_for_text(".model .title .pill", "UNAVAILABLE")
    page.wait_for_text("#load", "Load")
    page.click("#load")
    page.wait_for_text(".model .title .pill", "READY")
    page.wait("document.querySelector('#try') !== null")


def test_traffic_is_shifted_by_a_slider(console: Server, page: Browser, key: tuple[str, Path]) -> None:
    show(page, console, "#/model/digits/2")
    page.wait("document.querySelectorAll('#traffic input[type=range]').length === 2")
    page.evaluate("document.querySelector('#traffic input').focus()")
    page.press("End")
    page.wait_for_text("#traffic .weight", "50 %")
    page.click("#set-traffic")

    def shares() -> bool:
        with console.client() as client:
            answer = client.request(
                "GET", "/v2/repository/models/digits/traffic", headers={"authorization": f"Bearer {key[0]}"}
            )
        return bool(answer.json["shares"] == {"1": 0.5, "2": 0.5})

    wait_until(shares, "half of the requests for each version", 60.0)


def test_the_plan_says_where_a_model_runs_and_why(console: Server, page: Browser) -> None:
    show(page, console, "#/model/digits/1")
    page.wait_for_text("#plan", "Version 1 is packed: --placement packed")
    page.wait_for_text("#plan", "on 127.0.0.1 with 0.05 CPU")
    show(page, console, "#/cluster")
    page.wait_for_text(".node", "packed model versions")
    page.wait_for_text(".node .meters", "GiB of")


def test_the_same_table_is_shown_in_a_terminal(console: Server, key: tuple[str, Path]) -> None:
    env = environment(EAGLERAY_CLIENT_KEY=key[0])
    done = run(EAGLERAY, "top", f"http://{console.address}", "--sort", "state", env=env)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "8 of 9 versions ready" in lines[0] and lines[2].startswith(HOSTILE)
    document = json.loads(run(EAGLERAY, "top", "--json", "--url", console.address, env=env).stdout)
    assert {row["name"] for row in document["models"]} >= {"digits", "echo", HOSTILE}
    refused = run(EAGLERAY, "top", "--once", "--url", console.address)
    assert refused.returncode == 1 and "expects an API key" in refused.stderr


def test_the_table_in_a_terminal_goes_on_until_q(console: Server, key: tuple[str, Path]) -> None:
    terminal = Terminal(EAGLERAY, "top", "--url", console.address, "--api-key", key[0])
    try:
        terminal.wait_for("; by rate")
        terminal.wait_for("digits_pipeline")
        terminal.press(b"s")
        terminal.wait_for("; by p99")
        terminal.press(b"q")
        assert terminal.process.wait(30) == 0
    finally:
        if terminal.process.is_running():
            terminal.process.kill()
        terminal.process.wait(10)
        terminal.close()


@pytest.mark.parametrize(
    ("place", "parts"),
    [
        ("#/", ".rows .row"),
        ("#/model/digits/2", "#send, #config, #plan .deployment"),
        ("#/model/digits_pipeline/1", "#graph .box, #send, #config, #plan .deployment"),
        ("#/cluster", ".node .meters, .node .held"),
    ],
)
def test_a_phone_shows_all_of_it(console: Server, page: Browser, place: str, parts: str) -> None:
    page.resize(360, 740)
    try:
        show(page, console, place)
        for part in parts.split(", "):
            page.wait(f"document.querySelector({json.dumps(part)}) !== null")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    finally:
        page.resize(1280, 900)
