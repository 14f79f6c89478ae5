"""What `serve deploy` refuses before anything of the application that runs is replaced."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.builder import build
from tests.certificates import Authority
from tests.serving import environment, free_port, run

MISSING = {
    "certificate": {
        "http_use_ssl": True,
        "http_server_cert": "/nonexistent.pem",
        "http_server_key": "/nonexistent.pem",
    },
    "keys of the API": {"api_key_file": "/nonexistent"},
    "a setting": {"htttp_port": 8000},
    "a folder for the Unix socket": {"http_unix_socket": "/nonexistent/socket"},
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray's workers: a folder that holds an Eagleray may hold another one than they would run."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("arguments", MISSING.values(), ids=MISSING)
def test_what_no_ingress_could_start_with_is_refused(arguments: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments)).partition("_")[0]):
        build({"model_repository": [str(tmp_path)], **arguments})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"htttp_port": 8000}, "args: htttp_port: there is no such setting; did you mean http_port?"),
        ({"http-port": 8000}, "args: http-port: there is no such setting; did you mean http_port?"),
        ({"replicas": 2}, "args: replicas: there is no such setting"),
        ({"model_repository": "/models"}, "args: model_repository: must be a list"),
        ({"http_port": 9000, "grpc_port": 9000}, "args: --grpc-port and --http-port are both 9000 on 127.0.0.1"),
        (
            {"http_port": -1, "grpc_port": "x"},
            "args: http_port: Input should be greater than or equal to 0; "
            "args: grpc_port: Input should be a valid integer, unable to parse string as an integer",
        ),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(arguments: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        build({"model_repository": [str(tmp_path)], **arguments})
    assert str(error.value) == told
    # A traceback, which Serve shows, would have the text of pydantic's error as well.
    assert error.value.__context__ is None


def test_a_secret_among_wrong_settings_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="wealth") as error:
        build({"model_repository": [str(tmp_path)], "http_restricted_api": ["wealth:key=secret"]})
    assert "secret" not in str(error.value)


PROXY = """
import json, sys
import ray
from ray import serve
import eagleray

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
said = []
for location in ("Disabled", "HeadOnly"):
    serve.start(proxy_location=location, http_options={"host": "0.0.0.0", "port": int(sys.argv[1])})
    try:
        eagleray.build({"model_repository": ["."], "http_port": int(sys.argv[1])})
        said.append("taken")
    except ValueError as error:
        said.append(str(error))
    serve.shutdown()
print(json.dumps(said))
"""


@pytest.mark.ray
@pytest.mark.timeout(120)
def test_a_port_of_serves_own_proxies_is_refused() -> None:
    """They would share it, and each get some of the connections."""
    port = free_port()
    done = run(sys.executable, "-c", PROXY, str(port), env=environment(), timeout_s=100)
    assert done.returncode == 0, done.stderr
    told = f"args: --http-port and the proxies of Ray Serve (http_options) are both {port} on 0.0.0.0"
    assert json.dumps(["taken", told]) in done.stdout.splitlines()


def test_a_serve_that_takes_no_routers_is_refused() -> None:
    code = 'import eagleray; eagleray.build({"model_repository": ["."]})'
    done = run(sys.executable, "-c", code, env=environment(RAY_SERVE_ENABLE_HA_PROXY="1"))
    assert done.stderr.splitlines()[-1].startswith("RuntimeError: Ray Serve is set to run HAProxy")


def test_files_that_are_there_are_taken(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("server")
    (tmp_path / "keys").touch()
    files = {"http_server_cert": str(pair.certificate), "http_server_key": str(pair.key)}
    assert build(
        {"model_repository": [str(tmp_path)], "http_use_ssl": True, "api_key_file": str(tmp_path / "keys"), **files}
    )


@pytest.mark.parametrize(("min_nodes", "resources"), [(0, {}), (1, {"node:__internal_head__": 0.001})])
def test_the_controller_keeps_no_node_that_may_be_given_back(
    min_nodes: int, resources: dict[str, float], tmp_path: Path
) -> None:
    built = build({"model_repository": [str(tmp_path)], "min_ingress_nodes": min_nodes})
    ingress = built._bound_deployment
    controller = ingress.init_args[2]._bound_deployment
    assert (controller.ray_actor_options or {})["resources"] == resources
    assert ingress._deployment_config.autoscaling_config.policy.policy_kwargs["min_nodes"] == min_nodes


def test_each_deployment_has_room_of_its_own_for_ingresses_on_a_node(tmp_path: Path) -> None:
    """Those of the last one, which serve until its own do, hold theirs."""

    def room() -> dict[str, float]:
        built = build({"model_repository": [str(tmp_path)], "ingresses_per_node": 3})
        options = built._bound_deployment.ray_actor_options or {}
        return dict(options["resources"])

    first, second = room(), room()
    assert [*first.values(), *second.values()] == [1 / 3, 1 / 3]
    assert not first.keys() & second.keys()


def test_no_number_of_ingresses_is_given_that_serve_would_go_by_until_it_knows_the_nodes(tmp_path: Path) -> None:
    """What runs on other nodes would be ended at each `serve deploy`, before there is anything in its place."""
    built = build({"model_repository": [str(tmp_path)], "ingresses_per_node": 3})
    assert built._bound_deployment._deployment_config.autoscaling_config.initial_replicas is None
