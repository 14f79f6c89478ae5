import logging
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from app.builder import build
from app.cli.main import main, read_settings, settings_options, triton_options
from app.cli.option_groups import group_of
from app.environment import unknown_variables
from app.settings import Settings
from app.triton_flags import DEPRECATED, OLD_FLAGS, REASONS, merged_settings

FLAGS = [
    "allow-client-shm=false",
    "allow-cpu-metrics=true",
    "allow-gpu-metrics=true",
    "allow-grpc=true",
    "allow-http=true",
    "allow-metrics=true",
    "allow-sagemaker=false",
    "allow-vertex-ai=false",
    "backend-config=onnxruntime,intra_op_thread_count=2",
    "backend-directory=/opt/tritonserver/backends",
    "buffer-manager-thread-count=0",
    "cache-config=local,size=1048576",
    "cache-directory=/opt/tritonserver/caches",
    "cuda-memory-pool-byte-size=0:67108864",
    "cuda-virtual-address-size=0:1073741824",
    "disable-auto-complete-config",
    "enable-peer-access=true",
    "exit-on-error=true",
    "exit-timeout-secs=30",
    "grpc-address=127.0.0.1",
    "grpc-header-forward-pattern=x-.*",
    "grpc-http2-max-ping-strikes=2",
    "grpc-http2-max-pings-without-data=2",
    "grpc-http2-min-recv-ping-interval-without-data=300000",
    "grpc-infer-allocation-pool-size=8",
    "grpc-infer-response-compression-level=none",
    "grpc-infer-thread-count=2",
    "grpc-keepalive-permit-without-calls=0",
    "grpc-keepalive-time=7200000",
    "grpc-keepalive-timeout=20000",
    "grpc-max-connection-age=1000",
    "grpc-max-connection-age-grace=1000",
    "grpc-max-response-pool-size=100",
    "grpc-port=8001",
    "grpc-restricted-protocol=health:key=value",
    "grpc-root-cert=",
    "grpc-server-cert=",
    "grpc-server-key=",
    "grpc-use-ssl=false",
    "grpc-use-ssl-mutual=false",
    "host-policy=name,numa-node=0",
    "http-address=127.0.0.1",
    "http-header-forward-pattern=x-.*",
    "http-max-input-size=67108864",
    "http-port=8000",
    "http-restricted-api=health:key=value",
    "http-thread-count=8",
    "id=triton",
    "load-model=*",
    "log-error=1",
    "log-file=/tmp/log",
    "log-format=default",
    "log-info=on",
    "log-verbose=1",
    "log-verbose=true",
    "log-warning=yes",
    "metrics-address=127.0.0.1",
    "metrics-config=counter_latencies=true",
    "metrics-interval-ms=2000",
    "metrics-port=8002",
    "min-supported-compute-capability=6.0",
    "model-config-name=",
    "model-control-mode=explicit",
    "model-control-mode=NONE",
    "model-control-mode=poll",
    "model-load-gpu-limit=0:0.5",
    "model-load-retry-count=0",
    "model-load-thread-count=4",
    "model-namespacing=true",
    "pinned-memory-pool-byte-size=268435456",
    "rate-limit=execution_count",
    "rate-limit-resource=R1:10:0",
    "repoagent-directory=/opt/tritonserver/repoagents",
    "repository-poll-secs=0",
    "repository-poll-secs=15",
    "response-cache-byte-size=1048576",
    "reuse-grpc-port=false",
    "reuse-http-port=false",
    "sagemaker-port=8080",
    "sagemaker-safe-port-range=1-2",
    "sagemaker-thread-count=8",
    "strict-model-config=false",
    "strict-readiness=true",
    "trace-config=level=TIMESTAMPS",
    "trace-count=-1",
    "trace-file=/tmp/trace",
    "trace-level=OFF",
    "trace-log-frequency=0",
    "trace-rate=1000",
    "vertex-ai-default-model=m",
    "vertex-ai-port=8080",
    "vertex-ai-thread-count=8",
]
"""Every flag of `tritonserver --help` but --help, --model-repository and --model-store, with a value that it takes."""


@click.command()
@settings_options
@triton_options
def command(**flags: object) -> None:
    click.echo(f"ran {read_settings(flags).trace_config}")


def invoke(*arguments: str) -> tuple[str, int]:
    result = CliRunner().invoke(command, arguments)
    return result.output, result.exit_code


@pytest.mark.parametrize("given", FLAGS)
@pytest.mark.parametrize("repository", ["--model-repository", "--model-store"])
def test_every_flag_of_tritonserver_is_taken(given: str, repository: str, tmp_path: Path) -> None:
    explicit = () if "control" in given or "load-model=" not in given else ("--model-control-mode=explicit",)
    output, code = invoke(f"{repository}={tmp_path}", f"--{given}", *explicit)
    assert (code, "ran" in output) == (0, True), output
    name = given.partition("=")[0]
    if name in REASONS:
        assert f"warning: --{name} has no effect: {REASONS[name]}" in output
    elif name in OLD_FLAGS:
        flag, key = OLD_FLAGS[name]
        assert f"warning: --{name} is deprecated: use --{flag} {key}=" in output
    else:
        assert name.replace("-", "_") in Settings.model_fields
        told = f"warning: --{name} is deprecated: use --{DEPRECATED[name]}\n" if name in DEPRECATED else "warning"
        assert (told in output) == (name in DEPRECATED)


@pytest.mark.parametrize("given", FLAGS)
def test_every_flag_of_tritonserver_is_taken_by_serve_deploy(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("ray.serve"), "propagate", True)
    flag, equals, value = given.partition("=")
    name = flag.replace("-", "_")
    field = Settings.model_fields.get(name)
    several = field is not None and str(field.annotation).startswith("tuple")
    args = {"model_store": [str(tmp_path)], name: [value] if several else value.lower() if equals else True}
    assert build({"model_control_mode": "explicit", **args} if name == "load_model" else args)
    warned = [record.getMessage() for record in caplog.records]
    assert any(each.startswith(f"--{flag} ") for each in warned) == (flag in {**REASONS, **OLD_FLAGS, **DEPRECATED})


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("python,shm-default-byte-size", "the memory between a Python model's process and its replica is as large"),
        ("onnxruntime,enable-global-threadpool", "each session has a pool of threads"),
        ("onnxruntime,enable-global-thread-pool", "Eagleray has no such setting"),
        ("tensorflow,version", "Eagleray has no such setting"),
        ("nonesuch", "Eagleray has no such setting"),
    ],
)
def test_a_backends_setting_without_effect_is_said_so(setting: str, reason: str, tmp_path: Path) -> None:
    output, code = invoke(f"--model-repository={tmp_path}", f"--backend-config={setting}=1")
    assert code == 0 and f"warning: --backend-config {setting} has no effect: {reason}" in output, output


@pytest.mark.parametrize(
    "setting",
    [
        "default-max-batch-size=8",
        "python,default-max-batch-size=8",
        "execution_mode=1",
        "onnxruntime,execution_mode=1",
        "tensorrt,plugins=a.so;b.so",
    ],
)
def test_a_backends_setting_with_effect_is_not_warned_of(setting: str, tmp_path: Path) -> None:
    output, code = invoke(f"--model-repository={tmp_path}", f"--backend-config={setting}")
    assert code == 0 and "warning" not in output, output


def test_flags_stand_over_the_environment_and_other_names_beside_each_other() -> None:
    given = {"model_store": ["b"], "model_repository": ["a"], "trace_rate": 5, "trace_level": ["MIN", "TENSORS"]}
    merged, warnings = merged_settings(given, {"model_repository": ("c",), "trace_config": ("count=1",), "id": "x"})
    traces = ("count=1", "rate=5", "level=MIN", "level=TENSORS")
    assert merged == {"model_repository": ("a", "b"), "trace_config": traces, "id": "x"}
    assert warnings[0] == "--trace-rate is deprecated: use --trace-config rate=5" and len(warnings) == 3


def test_old_flags_of_traces_are_what_they_stand_for(tmp_path: Path) -> None:
    old = ("--trace-file=traces.json", "--trace-level=TIMESTAMPS", "--trace-level=TENSORS", "--trace-rate=5")
    output, code = invoke(f"--model-repository={tmp_path}", *old, "--trace-config=rate=7")
    expected = (f"triton,file={os.getcwd()}/traces.json", "level=TIMESTAMPS", "level=TENSORS", "rate=5", "rate=7")
    assert code == 0 and f"ran {expected}" in output, output
    output, code = invoke(f"--model-repository={tmp_path}", "--trace-level=MOST")
    assert code == 2 and "Unable to parse 'trace_level', got: MOST" in output


@pytest.mark.parametrize("environment", [{}, {"cache_config": ("local,size=4096",)}], ids=["alone", "over a variable"])
def test_the_old_flag_of_the_cache_is_what_it_stands_for(environment: dict[str, tuple[str, ...]]) -> None:
    merged, warnings = merged_settings({"response_cache_byte_size": "1048576"}, environment)
    assert warnings == ["--response-cache-byte-size is deprecated: use --cache-config local,size=1048576"]
    assert Settings(model_repository=("models",), **merged).response_cache_bytes() == 1048576


def test_two_sizes_of_the_cache_are_refused(tmp_path: Path) -> None:
    flags = ("--response-cache-byte-size=12345", "--cache-config=local,size=67890")
    output, code = invoke(f"--model-repository={tmp_path}", *flags)
    assert code == 2 and "Incompatible flags --response-cache-byte-size and --cache-config both provided" in output


def test_a_flag_may_be_followed_by_its_value(tmp_path: Path) -> None:
    output, code = invoke("--model-store", str(tmp_path), "--log-file", "/tmp/log", "--log-verbose", "1")
    assert code == 0, output


@pytest.mark.parametrize("offline", ["validate", "plan"])
def test_what_starts_nothing_takes_every_flag_of_serve(offline: str, tmp_path: Path) -> None:
    def flags(name: str) -> set[str]:
        return {
            flag for parameter in main.commands[name].params for flag in (*parameter.opts, *parameter.secondary_opts)
        }

    assert flags(offline) > flags("serve") - {"repositories"}
    given = ["--num-gpus=1", "--kind-gpu-fallback-to-cpu", "--no-dashboard", "--http-port=0", "--rate-limit=off"]
    result = CliRunner().invoke(main, [offline, *given, f"--model-store={tmp_path}"])
    assert result.exit_code == 0, result.output


def test_no_setting_is_among_the_flags_without_effect() -> None:
    assert not {flag.replace("-", "_") for flag in REASONS} & set(Settings.model_fields)


@pytest.mark.parametrize(
    "command", [("validate", "."), ("status", "--url", "http://127.0.0.1:1"), ("doctor", "--help")]
)
@pytest.mark.parametrize("wrong", ["EAGLERAY_HTTP_PROT", "EAGLERAY_CLIENT_KYE"])
def test_each_command_names_a_mistyped_variable_with_the_closest_right_one(
    command: tuple[str, ...], wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(wrong, "9000")
    right = {"EAGLERAY_HTTP_PROT": "EAGLERAY_HTTP_PORT", "EAGLERAY_CLIENT_KYE": "EAGLERAY_CLIENT_KEY"}[wrong]
    expected = f"warning: the environment variable {wrong} is no setting; did you mean {right}?"
    assert CliRunner().invoke(main, command).output.count(expected) == 1


@pytest.mark.parametrize("far", ["FOO", "HOME", "SERVICE_HOST", "SERVICE_PORT", "PORT_8000_TCP", ""])
def test_a_variable_that_is_near_no_setting_is_named_without_one(
    far: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"EAGLERAY_{far}", "9000")
    printed = CliRunner().invoke(main, ("validate", str(tmp_path))).output
    assert f"warning: the environment variable EAGLERAY_{far} is no setting\n" in printed


@pytest.mark.parametrize(("near", "meant"), [("MODEL_REPO", "MODEL_REPOSITORY"), ("API_KEYS", "API_KEY")])
def test_a_variable_that_is_near_a_setting_is_named_with_it(
    near: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"EAGLERAY_{near}", "9000")
    printed = CliRunner().invoke(main, ("validate", str(tmp_path))).output
    assert (
        f"warning: the environment variable EAGLERAY_{near} is no setting; did you mean EAGLERAY_{meant}?\n" in printed
    )


def test_a_variable_for_what_a_flag_alone_says_is_named_with_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [each for each in main.commands["serve"].params if group_of(str(each.name)) == "Ray"]
    assert len(flags) == 5
    for flag in flags:
        with monkeypatch.context() as there:
            there.setenv(f"EAGLERAY_{str(flag.name).upper()}", "1")
            (told,) = unknown_variables()
        assert told.endswith(f" is no setting; give {flag.opts[0]}")


def test_right_variables_and_those_of_the_benchmarks_are_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLERAY_HTTP_PORT", "9000")
    monkeypatch.setenv("EAGLERAY_BENCH_HOME", "/tmp")
    monkeypatch.setenv("EAGLERAY_CLIENT_KEY", "k")
    assert "no setting" not in CliRunner().invoke(main, ("validate", str(tmp_path))).output
