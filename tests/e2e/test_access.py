"""A server with API keys and a port for the admin API, as its clients and `ss` see it."""

import ipaddress
import json
import math
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from ray._private.ray_constants import PROMETHEUS_SERVICE_DISCOVERY_FILE
from tritonclient.utils import InferenceServerException

from tests.chromium import Browser, needs_chromium
from tests.e2e.rays_dashboards import queries, session_folder
from tests.hostile.watch import grpc_address
from tests.prometheus import needs_prometheus, prometheus
from tests.repeating import repeating
from tests.repositories import write_small_models
from tests.serving import EAGLERAY, ROOT, Client, Server, environment, run, title_of, wait_until

SCOPES = ("infer", "read", "manage")


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys"


@pytest.fixture(scope="module")
def keys(keys_file: Path) -> dict[str, str]:
    """A key for each scope, as the command prints it."""
    made = {}
    for scope in SCOPES:
        done = run(EAGLERAY, "new-api-key", scope, "--for", scope, "--file", str(keys_file))
        assert done.returncode == 0, done.stderr
        made[scope] = done.stdout.strip()
    return made


@pytest.fixture(scope="module")
def guarded(keys: dict[str, str], keys_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = write_small_models(tmp_path_factory.mktemp("guarded"))
    log = tmp_path_factory.mktemp("guarded-log") / "log"
    flags = ("--placement", "packed", "--num-cpus", "4", "--api-key-file", str(keys_file), "--admin-port", "0")
    server = Server(repository, log, *flags, env=environment(RAY_metrics_report_interval_ms="1000"))
    try:
        yield server.wait_ready()
        server.stop()
    finally:
        server.kill()


def header(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_clients_need_a_key_that_is_good_for_what_they_do(guarded: Server, keys: dict[str, str]) -> None:
    http = tritonclient.http.InferenceServerClient(guarded.address)
    grpc = tritonclient.grpc.InferenceServerClient(grpc_address(guarded.log()))
    metrics = Client(guarded.metrics_address)
    for client in (http, grpc):
        assert client.is_server_live()
        assert client.is_model_ready("simple")
        with pytest.raises(InferenceServerException, match="expects an API key"):
            client.get_server_metadata()
        with pytest.raises(InferenceServerException, match="is not good for 'read'"):
            client.get_server_metadata(headers=header(keys["infer"]))
        assert client.get_server_metadata(headers=header(keys["read"]))
        with pytest.raises(InferenceServerException, match="is not good for 'infer'"):
            client.infer("simple", [], headers=header(keys["read"]))
        with pytest.raises(InferenceServerException, match="expected 2 inputs but got 0"):
            client.infer("simple", [], headers=header(keys["infer"]))
    assert metrics.get("/metrics").status == 401
    assert metrics.request("GET", "/metrics", headers=header(keys["read"])).status == 200
    assert 'curl -s -H "Authorization: Bearer $KEY"' in guarded.log()


def test_the_admin_api_has_a_port_of_its_own(guarded: Server, keys: dict[str, str]) -> None:
    load, manage = "/v2/repository/models/simple/load", header(keys["manage"])
    admin = guarded.wait_for(r"admin\s+http://(\S+)")[1]
    with guarded.client() as client:
        refused = client.request("POST", load, {}, manage)
        assert (refused.status, refused.error) == (403, "this port does not serve the admin API")
    with Client(admin) as client:
        assert client.request("POST", load, {}).status == 401
        # Not in the mode of this server, which says so to whoever may manage.
        assert client.request("POST", load, {}, manage).status not in (401, 403)
        assert client.request("POST", "/v2/logging", {"log_verbose_level": 0}, manage).status == 200


def test_a_key_is_revoked_while_the_server_runs(guarded: Server, keys: dict[str, str], keys_file: Path) -> None:
    with guarded.client() as client:

        def status() -> int:
            return client.request("GET", "/v2", headers=header(keys["read"])).status

        assert status() == 200
        lines = keys_file.read_text()
        keys_file.write_text("\n".join(line for line in lines.splitlines() if " read " not in line))
        wait_until(lambda: status() == 401, "401 for the revoked key", 10.0)
        keys_file.write_text(lines)
        wait_until(lambda: status() == 200, "200 for the key that is back", 10.0)


@needs_chromium
def test_the_printed_url_shows_the_models_in_rays_dashboard(guarded: Server) -> None:
    browser = Browser(1400, 1000)
    try:
        browser.open(guarded.wait_for(r"dashboard\s+(http\S+)")[1])
        browser.wait_for_text("body", "Applications / Deployments")
        assert str(browser.evaluate("location.hash")).startswith("#/serve")
        browser.wait_for_text("body", "eagleray-packed")
        links = "[...document.querySelectorAll('a')]"
        browser.wait(f"{links}.some((each) => each.innerText === 'two_replicas')")
        browser.evaluate(f"{links}.find((each) => each.innerText === 'two_replicas').click()")
        browser.wait("location.hash === '#/serve/applications/two_replicas'")
        browser.wait_for_text("body", "HEALTHY")
        assert "v1" in browser.text("body").split()
    finally:
        browser.close()


@contextmanager
def asked_for_what_panels_show(server: Server, key: str) -> Iterator[None]:
    """Have clients ask a packed model, one of two replicas, and one that fails, over HTTP and gRPC."""

    def asks(client: Any, module: Any) -> Callable[[], None]:
        given = [module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        for each in given:
            each.set_data_from_numpy(np.ones((1, 16), np.int32))
        seconds, mode = module.InferInput("SECONDS", [1], "FP32"), module.InferInput("MODE", [1, 1], "BYTES")
        seconds.set_data_from_numpy(np.zeros(1, np.float32))
        mode.set_data_from_numpy(np.array([[b"error"]], object))

        def ask() -> None:
            client.infer("simple", given, headers=header(key))
            client.infer("two_replicas", [seconds], headers=header(key))
            with suppress(InferenceServerException):
                client.infer("failing", [mode], headers=header(key))

        return ask

    with (
        tritonclient.http.InferenceServerClient(server.address) as http,
        tritonclient.grpc.InferenceServerClient(grpc_address(server.log())) as grpc,
        repeating(asks(http, tritonclient.http), asks(grpc, tritonclient.grpc), pause_s=0.02),
    ):
        yield


@needs_prometheus
def test_the_panels_of_rays_serve_pages_show_the_models(guarded: Server, keys: dict[str, str], tmp_path: Path) -> None:
    """As Grafana asks a Prometheus that scrapes what Ray's file names."""
    session = session_folder(guarded)
    ray = {"job_name": "ray", "file_sd_configs": [{"files": [str(session / PROMETHEUS_SERVICE_DISCOVERY_FILE)]}]}
    left = [*queries(session)]
    assert len(left) > 20
    rules = tmp_path / "none.yml"
    with prometheus(tmp_path, guarded.metrics_address, rules, ray, credentials=keys["read"]) as source:

        def value(query: str) -> float:
            found = source.query(query)
            return float(found[0]["value"][1]) if found else math.nan

        def shows(query: str) -> bool:
            series = [each["metric"] for each in source.query(query) if math.isfinite(float(each["value"][1]))]
            wanted = {"failing"} if "error" in query else {"simple", "two_replicas"}
            return bool(series) and (
                "by (application" not in query or wanted <= {each.get("application") for each in series}
            )

        def look() -> bool:
            left[:] = [(panel, query) for panel, query in left if not shows(query)]
            return not left

        with asked_for_what_panels_show(guarded, keys["infer"]):
            try:
                wait_until(look, "data for every panel", timeout_s=120, poll_s=0.5)
            except AssertionError as error:
                raise AssertionError(f"{error}: {left}") from None
        same = {
            'ray_serve_deployment_request_counter_total{application="%s"}': 'eagleray_responses_total{model="%s"}',
            'ray_serve_num_http_requests_total{application="%s"}': 'eagleray_responses_total{model="%s",protocol="http"}',
            'ray_serve_num_grpc_requests_total{application="%s"}': 'eagleray_responses_total{model="%s",protocol="grpc"}',
            'ray_serve_deployment_error_counter_total{application="%s"}': (
                'eagleray_responses_total{model="%s",code!~"200|OK"}'
            ),
            # Of models with an application of their own Serve tells, every 10 s: gone where Ray asks each second.
            'ray_serve_deployment_replica_healthy{application="%s"}': 'eagleray_replicas{model="%s",state="ready"}',
        }
        models = {"error": ("failing",), "replica": ("simple",)}
        for theirs, ours in same.items():
            kind = theirs.split("_")[3]
            for model in models.get(kind, ("simple", "two_replicas")):
                pair = f"sum({theirs % model})", f"sum({ours % model})"
                wait_until(lambda pair=pair: 0 < value(pair[0]) == value(pair[1]), f"{pair} to be equal", timeout_s=60)
        for model in ("simple", "two_replicas"):
            bounds = "ray_serve_deployment_processing_latency_ms_bucket", "eagleray_request_duration_seconds_bucket"
            median_ms, median_s = (
                value(f'histogram_quantile(0.5, sum by (le) ({name}{{{label}="{model}"}}))')
                for name, label in zip(bounds, ("application", "model"), strict=True)
            )
            assert 0.2 < median_ms / (1000 * median_s) < 5


KINDS = {
    r":Ingress(\.|$)": "ingress",
    r":RepositoryController(\.|$)": "controller",
    r"^ray::ServeReplica": "replica",
    r"^ray::ServeController": "Serve's controller",
    r"^ray::(DashboardAgent|RuntimeEnvAgent)": "agents of the node",
    r"dashboard/dashboard\.py|^ray-dashboard-": "dashboard",
    r"autoscaler/_private/monitor\.py": "monitor",
    r"/gcs_server ": "gcs_server",
    r"/raylet ": "raylet",
    r"bin/eagleray serve ": "`eagleray serve`",
}
"""Processes as the table calls them, by their titles."""


def documented() -> set[tuple[str, str]]:
    """Return process and address of each row of the table of listening ports."""
    page = (ROOT / "SECURITY.md").read_text().partition("## Listening ports")[2]
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    return {(process, "all" if row[1] == "all" else "loopback") for row in rows for process in row[0].split(", ")}


def listening(server: Server) -> set[tuple[str, str]]:
    found = set()
    for process in (psutil.Process(server.pid), *server.descendants()):
        title = title_of(process)
        for connection in process.net_connections("inet") if title else ():
            if connection.status != psutil.CONN_LISTEN:
                continue
            kind = next((kind for pattern, kind in KINDS.items() if re.search(pattern, title)), title)
            address = ipaddress.ip_address(connection.laddr.ip.removeprefix("::ffff:"))
            found.add((kind, "loopback" if address.is_loopback else "all" if address.is_unspecified else str(address)))
    return found


def test_the_documented_ports_are_those_that_listen(guarded: Server) -> None:
    found, expected = listening(guarded), documented()
    assert found <= expected
    # The monitor's one port is the same for every Ray of the machine, of which another one may have it.
    assert expected - found <= {("monitor", "loopback")}


def ask(server: Server, key: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that asks a server."""
    return run(EAGLERAY, *command, "--url", f"http://{server.address}", env=environment(EAGLERAY_CLIENT_KEY=key))


def test_doctor_tells_those_who_manage_where_the_admin_api_is(guarded: Server, keys: dict[str, str]) -> None:
    command = (EAGLERAY, "doctor", "--json", "--url", guarded.wait_for(r"admin\s+(http://\S+)")[1])
    assert "expects an API key" in run(*command).stderr
    reader = run(*command, env=environment(EAGLERAY_CLIENT_KEY=keys["read"]))
    assert (reader.returncode, "is not good for 'manage'" in reader.stderr) == (1, True)
    manager = run(*command, "--header", f"authorization=Bearer {keys['manage']}")
    assert "ray token" in {each["check"] for each in json.loads(manager.stdout)}, manager.stderr


@pytest.fixture(scope="module")
def all_scopes(guarded: Server, keys_file: Path) -> str:
    done = run(EAGLERAY, "new-api-key", "person", "--for", "infer,read,manage", "--file", str(keys_file))
    key = done.stdout.strip()
    with guarded.client() as client:
        wait_until(lambda: client.request("GET", "/v2", headers=header(key)).status == 200, "the new key", 10.0)
    return key


def test_status_shows_every_model(guarded: Server, all_scopes: str) -> None:
    done = ask(guarded, all_scopes, "status")
    assert done.returncode == 0, done.stderr
    assert f"at http://{guarded.address}: ready" in done.stdout
    assert re.search(r"simple\s+1\s+READY", done.stdout)
    document = json.loads(ask(guarded, all_scopes, "status", "--json").stdout)
    assert document["ready"] is True
    (row,) = [row for row in document["models"] if row["name"] == "simple"]
    assert row["statistics"]["inference_stats"]["success"]["count"] >= 0


def test_infer_takes_values_and_files_and_prints_what_comes_back(
    guarded: Server, all_scopes: str, tmp_path: Path
) -> None:
    ones = ",".join(["1"] * 16)
    np.save(tmp_path / "b.npy", np.arange(16))
    inputs = ("--input", f"INPUT0={ones}", "--input", f"INPUT1=@{tmp_path}/b.npy")
    done = ask(guarded, all_scopes, "infer", "simple", *inputs, "--output", "OUTPUT0")
    assert done.returncode == 0, done.stderr
    assert "OUTPUT0  INT32 [1, 16]" in done.stdout and "OUTPUT1" not in done.stdout
    answer = json.loads(ask(guarded, all_scopes, "infer", "simple", *inputs, "--json").stdout)
    assert answer["outputs"][0]["data"] == [list(range(1, 17))]
    texts = json.loads(ask(guarded, all_scopes, "infer", "strings", "--input", "grüß dich", "--json").stdout)
    assert texts["outputs"][0]["data"] == [["grüß dich"]]


def test_commands_say_what_went_wrong_in_one_line(guarded: Server, all_scopes: str, keys: dict[str, str]) -> None:
    for command, text in (
        (("infer", "nobody", "--input", "1"), "Request for unknown model: 'nobody' is not found (404)"),
        (("infer", "simple", "--input", "1"), "which one of INPUT0, INPUT1? write NAME=VALUE"),
        (("infer", "simple", "--input", "INPUT0=1"), "16"),
        (("load", "simple"), "this port does not serve the admin API (403)"),
        (("doctor",), "this port does not serve the admin API (403)"),
        (("reload", "nobody"), "model 'nobody' is not loaded"),
    ):
        done = ask(guarded, all_scopes, *command)
        assert done.returncode, command
        assert text in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "is not good for 'read' (403)" in ask(guarded, keys["infer"], "status").stderr
    done = run(EAGLERAY, "status", "--url", "http://127.0.0.1:1")
    assert (done.returncode, "no server can be reached at http://127.0.0.1:1" in done.stderr) == (1, True)
