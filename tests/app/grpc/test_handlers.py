import asyncio
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from app.grpc.handlers import HANDLERS
from app.grpc.port_options import port_options
from app.service.trace_settings import TraceSettings
from app.settings import Settings
from protocol.errors import InvalidArgument, NotFound, Restricted, ServingError, Unavailable, Unsupported
from tests.app.http.served import Served


def call(method: str, request: Any, **options: Any) -> bytes:
    async def run() -> bytes:
        answer = HANDLERS[method](Served(**options).service, request.SerializeToString())
        return await answer if inspect.isawaitable(answer) else answer

    return asyncio.run(run())


REFUSED: dict[str, tuple[str, Any, type[ServingError], str]] = {
    "load": (
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(model_name="good"),
        Unavailable,
        "explicit model load / unload is not allowed if polling is enabled",
    ),
    "unload": (
        "RepositoryModelUnload",
        pb.RepositoryModelUnloadRequest(model_name="good"),
        Unavailable,
        "explicit model load / unload is not allowed if polling is enabled",
    ),
    "repository name": (
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(repository_name="r", model_name="good"),
        Unsupported,
        "'repository_name' specification is not supported",
    ),
    "repository name of an index": (
        "RepositoryIndex",
        pb.RepositoryIndexRequest(repository_name="r"),
        Unsupported,
        "'repository_name' specification is not supported",
    ),
    "status of unknown": (
        "SystemSharedMemoryStatus",
        pb.SystemSharedMemoryStatusRequest(name="r"),
        NotFound,
        "Unable to find system shared memory region: 'r'",
    ),
    "register": (
        "SystemSharedMemoryRegister",
        pb.SystemSharedMemoryRegisterRequest(name="r", key="/x", byte_size=1),
        Unsupported,
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
    ),
    "cuda status of unknown": (
        "CudaSharedMemoryStatus",
        pb.CudaSharedMemoryStatusRequest(name="r"),
        NotFound,
        "Unable to find cuda shared memory region: 'r'",
    ),
    "log format": (
        "LogSettings",
        pb.LogSettingsRequest(settings={"log_format": pb.LogSettingsRequest.SettingValue(string_param="x")}),
        InvalidArgument,
        "invalid argument for log_format, got: x",
    ),
    "nothing chosen": (
        "LogSettings",
        pb.LogSettingsRequest(settings={"log_info": pb.LogSettingsRequest.SettingValue()}),
        InvalidArgument,
        "expect boolean for 'log_info'",
    ),
    "log level": (
        "LogSettings",
        pb.LogSettingsRequest(settings={"log_verbose_level": pb.LogSettingsRequest.SettingValue(bool_param=True)}),
        InvalidArgument,
        "expect int32 for 'log_verbose_level'",
    ),
    "unload with a number": (
        "RepositoryModelUnload",
        pb.RepositoryModelUnloadRequest(
            model_name="good", parameters={"unload_dependents": pb.ModelRepositoryParameter(int64_param=1)}
        ),
        InvalidArgument,
        "invalid value type for 'unload_dependents' parameter, expected bool_param.",
    ),
    "trace of unknown": (
        "TraceSetting",
        pb.TraceSettingRequest(model_name="x"),
        InvalidArgument,
        "Request for unknown model : x",
    ),
}


@pytest.mark.parametrize(("method", "request_", "kind", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_with_tritons_texts(method: str, request_: Any, kind: type[ServingError], text: str) -> None:
    with pytest.raises(kind) as error:
        call(method, request_)
    assert error.value.message == text


def test_trace_settings_are_lists_of_strings() -> None:
    setting: Callable[..., Any] = pb.TraceSettingRequest.SettingValue
    request = pb.TraceSettingRequest(
        settings={"trace_level": setting(value=["TENSORS", "TIMESTAMPS"]), "trace_rate": setting(value=["5"])}
    )
    trace = TraceSettings(["triton,file=/tmp/traces.json"])
    answer = pb.TraceSettingResponse.FromString(call("TraceSetting", request, trace=trace))
    assert list(answer.settings["trace_level"].value) == ["TIMESTAMPS", "TENSORS"]
    assert list(answer.settings["trace_rate"].value) == ["5"]
    cleared = pb.TraceSettingRequest(settings={"trace_rate": setting()})
    assert list(pb.TraceSettingResponse.FromString(call("TraceSetting", cleared)).settings["trace_rate"].value) == [
        "1000"
    ]


def test_log_settings_have_their_types() -> None:
    settings = pb.LogSettingsResponse.FromString(call("LogSettings", pb.LogSettingsRequest())).settings
    assert settings["log_info"].bool_param is True
    assert settings["log_verbose_level"].uint32_param == 0
    assert settings["log_format"].string_param == "default"


def test_settings_that_cannot_be_changed_at_present_are_no_fault_of_the_client() -> None:
    class Away:
        async def update_log(self, changes: object) -> dict[str, object]:
            raise Unavailable("settings cannot be changed at present")

    service = SimpleNamespace(settings=Away())
    with pytest.raises(Unavailable):
        asyncio.run(HANDLERS["LogSettings"](service, pb.LogSettingsRequest().SerializeToString()))


def test_options_have_the_units_of_the_listener() -> None:
    settings = Settings(
        model_repository=("/m",),
        grpc_keepalive_time=1500,
        grpc_max_connection_age=60_000,
        grpc_restricted_protocol=("health,inference:Key=value",),
    )
    options = port_options(settings)
    assert options.http2.keepalive_time_s == 1.5
    assert options.http2.max_connection_age_s == 60.0
    options.restricted.check("metadata", [])
    with pytest.raises(Restricted, match="expecting header 'triton-grpc-protocol-key'"):
        options.restricted.check("health", [(b"triton-grpc-protocol-key", b"other")])
    options.restricted.check("inference", [(b"triton-grpc-protocol-key", b"value")])
