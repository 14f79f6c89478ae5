import os
from pathlib import Path

import click
import pytest
from pydantic import ValidationError

from app.cli.main import read_settings
from app.environment import environment
from app.settings import Settings


def settings(**given: object) -> Settings:
    return Settings(model_repository=("/models",), **given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"http_use_ssl": True}, "needs --http-server-cert and --http-server-key"),
        ({"http_use_ssl": True, "http_server_cert": "c"}, "needs --http-server-cert and --http-server-key"),
        ({"http_use_ssl_mutual": True, "http_root_cert": "r"}, "needs --http-use-ssl and --http-root-cert"),
        ({"http_restricted_api": ("wealth:a=b",)}, "unknown restricted api 'wealth'"),
        ({"http_header_forward_pattern": "("}, "not a regular expression"),
        ({"grpc_header_forward_pattern": "["}, "not a regular expression"),
        ({"trace_config": ("rate=fast",)}, "Unable to parse 'trace_rate', got: fast"),
        ({"trace_config": ("triton,file=traces.json",)}, "must be an absolute path"),
        ({"trace_config": ("opentelemetry,uri=x",)}, "unknown trace setting 'opentelemetry,uri'"),
        ({"trace_config": ("opentelemetry,resource=x",)}, "expected opentelemetry,resource=<key>=<value>"),
        ({"trace_config": ("opentelemetry,bsp_max_queue_size=0",)}, "must be a whole number from 1 on, got: 0"),
        (
            {"trace_config": ("opentelemetry,bsp_max_queue_size=9", "opentelemetry,bsp_max_export_batch_size=10")},
            "must not be above bsp_max_queue_size",
        ),
        ({"http_max_decompression_ratio": 0}, "greater than 0"),
        ({"http_address": ""}, "at least 1 character"),
        ({"grpc_address": ""}, "at least 1 character"),
        ({"admin_address": ""}, "at least 1 character"),
        ({"backend_config": ("python",)}, "'python' is not of the form [<backend>,]<key>=<value>"),
        ({"backend_config": ("default-max-batch-size=many",)}, "must be a whole number from 0 on, got: many"),
        ({"backend_config": ("onnxruntime,default-max-batch-size=-1",)}, "must be a whole number from 0 on, got: -1"),
        ({"backend_config": (f"default-max-batch-size={2**40}",)}, "must be a whole number from 0 on, got: 1099"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(given: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError) as error:
        settings(**given)
    assert text in str(error.value)


@pytest.mark.parametrize(
    "name", [name for name, field in Settings.model_fields.items() if field.annotation in (int, float)]
)
@pytest.mark.parametrize("value", ["inf", "nan", "1e300", float("inf"), 1e300, 10**26, 1 << 63])
def test_a_number_that_nothing_can_count_with_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        settings(**{name: value})


@pytest.mark.parametrize("given", [{"log_verbose": (1 << 32) - 1}, {"exit_timeout_secs": 1e9}, {"max_queue_s": "1e9"}])
def test_large_numbers_are_taken(given: dict[str, object]) -> None:
    assert settings(**given)


def test_tls_needs_certificate_and_key() -> None:
    given = {"http_server_cert": "c", "http_server_key": "k", "http_root_cert": "r"}
    assert settings(http_use_ssl=True, http_use_ssl_mutual=True, **given).http_use_ssl_mutual


def test_restrictions_stand_one_per_line_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLERAY_HTTP_RESTRICTED_API", "health:a=b\nlogging,trace:c=d:e")
    monkeypatch.setenv("EAGLERAY_MODEL_REPOSITORY", "/a:/b")
    monkeypatch.setenv("EAGLERAY_RATE_LIMIT_RESOURCE", "R:4:0\nS:2")
    monkeypatch.setenv("EAGLERAY_TRACE_CONFIG", "mode=opentelemetry\nopentelemetry,url=localhost:4318/v1/traces")
    monkeypatch.setenv("EAGLERAY_BACKEND_CONFIG", "python,temporary-directory=a:b")
    found = environment()
    assert found["trace_config"] == ("mode=opentelemetry", "opentelemetry,url=localhost:4318/v1/traces")
    assert found["backend_config"] == ("python,temporary-directory=a:b",)
    assert settings(rate_limit_resource=found["rate_limit_resource"]).rate_limit_resource == ("R:4:0", "S:2")
    assert found["http_restricted_api"] == ("health:a=b", "logging,trace:c=d:e")
    assert found["model_repository"] == ("/a", "/b")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("http_port", "abc", "EAGLERAY_HTTP_PORT: Input should be a valid integer"),
        ("http_port", "70000", "EAGLERAY_HTTP_PORT: "),
        ("log_file", "/nowhere/log", "EAGLERAY_LOG_FILE: "),
        ("api_key_file", "/nowhere/keys", "EAGLERAY_API_KEY_FILE: "),
        ("model_repository", "/nowhere/models", "EAGLERAY_MODEL_REPOSITORY: the model repository /nowhere/models is "),
    ],
)
def test_an_error_names_the_variable_that_gave_a_value_and_else_the_flag(
    name: str, value: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, flag = f"EAGLERAY_{name.upper()}", f"--{name.replace('_', '-')}"
    flags = {"model_repository": (str(tmp_path),)} if name != "model_repository" else {}
    monkeypatch.setenv(variable, value)
    with pytest.raises(click.UsageError) as raised:
        read_settings(flags)
    assert raised.value.message.startswith(text)
    given = (value,) if name == "model_repository" else value
    with pytest.raises(click.UsageError) as raised:
        read_settings({**flags, name: given})
    assert variable not in raised.value.message
    assert flag in raised.value.message or name == "model_repository"


def test_an_empty_variable_names_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EAGLERAY_MODEL_REPOSITORY", "")
    with pytest.raises(click.UsageError, match="--model-repository must be specified"):
        read_settings({})
    with pytest.raises(click.UsageError, match="is not a folder"):
        read_settings({"model_repository": ("",)})


def test_a_repository_that_this_user_may_not_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))
    with pytest.raises(click.UsageError, match=f"^the model repository {tmp_path} cannot be read: Permission denied$"):
        read_settings({"model_repository": (str(tmp_path),)})


@pytest.mark.parametrize("other", ["127.0.0.1", "localhost", "0.0.0.0", "127.0.1"])
def test_two_listeners_on_one_address_are_refused_however_it_is_spelled(other: str) -> None:
    with pytest.raises(ValidationError, match="--grpc-port and --http-port are both 7000"):
        settings(http_address="127.0.0.1", http_port=7000, grpc_address=other, grpc_port=7000)
    assert settings(http_address="127.0.0.1", http_port=7000, grpc_address="127.0.0.2", grpc_port=7000)


def test_settings_of_backends_are_those_of_one_or_of_all() -> None:
    given = ("default-max-batch-size=8", "onnxruntime,a=b=c", "tensorrt,plugins=x,y")
    options = settings(backend_config=given).loader_options()
    assert options.backend_settings == {
        "": {"default-max-batch-size": "8"},
        "onnxruntime": {"a": "b=c"},
        "tensorrt": {"plugins": "x,y"},
    }


def test_paths_are_those_of_the_folder_that_the_command_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"model_repository": (".",), "model_cache_dir": "cache", "http_server_cert": "c"}
    found = read_settings(given)
    assert (found.model_cache_dir, found.http_server_cert) == (str(tmp_path / "cache"), str(tmp_path / "c"))
    assert read_settings(given | {"model_cache_dir": "~/cache"}).model_cache_dir == "~/cache"
