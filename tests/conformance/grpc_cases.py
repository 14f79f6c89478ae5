"""What Triton answers over gRPC, as data; the models are those of `tests.repositories`."""

from typing import Any

from google.protobuf.message import Message
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2 as pb

from tests.conformance.grpc_case import GrpcCase
from tests.protocol.grpc_cases import GRPC_CASES, message, simple

INVALID, NOT_FOUND, UNIMPLEMENTED, UNAVAILABLE = 3, 5, 12, 14
UNKNOWN = "Request for unknown model: 'nope' is not found"
NO_CONTROL = "explicit model load / unload is not allowed if polling is enabled"
NO_SHM = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
NO_VERSION = "failed to get model version from specified version string '{}' (details: stol), version should be an integral value > 0"


def good(id: str, section: str, path: str, request: Message, has: Any = None) -> GrpcCase:
    return GrpcCase(id, section, path, (request,), has=None if has is None else (has,))


def bad(id: str, section: str, path: str, request: Message | bytes, code: int, error: str) -> GrpcCase:
    return GrpcCase(id, section, path, (request,), code, error)


_BY_NAME = {
    "ModelReady": pb.ModelReadyRequest,
    "ModelMetadata": pb.ModelMetadataRequest,
    "ModelConfig": pb.ModelConfigRequest,
    "ModelStatistics": pb.ModelStatisticsRequest,
}

HEALTH = (
    good("live", "5", "ServerLive", pb.ServerLiveRequest(), {"live": True}),
    good("not ready, as some models are broken", "5", "ServerReady", pb.ServerReadyRequest(), {"ready": False}),
    good("model ready", "5", "ModelReady", pb.ModelReadyRequest(name="floats"), {"ready": True}),
    good("version ready", "5", "ModelReady", pb.ModelReadyRequest(name="floats", version="1"), {"ready": True}),
    good("unknown model not ready", "5", "ModelReady", pb.ModelReadyRequest(name="nope"), {"ready": False}),
    good(
        "unknown version not ready",
        "5",
        "ModelReady",
        pb.ModelReadyRequest(name="floats", version="7"),
        {"ready": False},
    ),
    good("broken model not ready", "5", "ModelReady", pb.ModelReadyRequest(name="broken_initialize"), {"ready": False}),
    GrpcCase("health check", "5", "/grpc.health.v1.Health/Check", (b"",), sent=b"\x08\x02"),
    GrpcCase("health check of any service", "5", "/grpc.health.v1.Health/Check", (b"\x0a\x01x",), sent=b"\x08\x02"),
    GrpcCase("health watch", "5", "/grpc.health.v1.Health/Watch", (b"",), UNIMPLEMENTED),
    GrpcCase("no such method", "5", "/inference.GRPCInferenceService/Nope", (b"",), UNIMPLEMENTED),
    GrpcCase("no such service", "5", "/inference.Nope/ServerLive", (b"",), UNIMPLEMENTED),
)

METADATA = (
    good("server metadata", "4.3, 5", "ServerMetadata", pb.ServerMetadataRequest(), {"name": "triton"}),
    good(
        "model metadata",
        "4.3, 5",
        "ModelMetadata",
        pb.ModelMetadataRequest(name="simple"),
        {
            "name": "simple",
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [{"name": n, "datatype": "INT32", "shape": ["-1", "16"]} for n in ("INPUT0", "INPUT1")],
            "outputs": [{"name": n, "datatype": "INT32", "shape": ["-1", "16"]} for n in ("OUTPUT0", "OUTPUT1")],
        },
    ),
    good(
        "version metadata",
        "4.3, 5",
        "ModelMetadata",
        pb.ModelMetadataRequest(name="simple", version="1"),
        {"versions": ["1"]},
    ),
    good(
        "config",
        "5",
        "ModelConfig",
        pb.ModelConfigRequest(name="simple"),
        {"config": {"name": "simple", "backend": "onnxruntime", "max_batch_size": 8}},
    ),
    good(
        "config of version",
        "5",
        "ModelConfig",
        pb.ModelConfigRequest(name="strings", version="1"),
        {"config": {"name": "strings", "backend": "python"}},
    ),
    good("statistics of all", "5, 7.1", "ModelStatistics", pb.ModelStatisticsRequest()),
    good(
        "statistics of a version",
        "5, 7.1",
        "ModelStatistics",
        pb.ModelStatisticsRequest(name="flags", version="1"),
        {"model_stats": [{"name": "flags", "version": "1"}]},
    ),
)

_NOT_THERE = {
    "ModelStatistics": ("requested model 'nope' is not available", INVALID),
}
_NO_SUCH_VERSION = {
    "ModelStatistics": ("requested model version is not available for model 'floats'", INVALID),
}
WRONG_MODEL = (
    *(
        bad(
            f"unknown model, {name}",
            "4.2, 5",
            name,
            kind(name="nope"),
            _NOT_THERE.get(name, (UNKNOWN, NOT_FOUND))[1],
            _NOT_THERE.get(name, (UNKNOWN, NOT_FOUND))[0],
        )
        for name, kind in _BY_NAME.items()
        if name != "ModelReady"
    ),
    *(
        bad(
            f"unknown version, {name}",
            "4.2, 5",
            name,
            kind(name="floats", version="7"),
            _NO_SUCH_VERSION.get(name, ("", NOT_FOUND))[1],
            _NO_SUCH_VERSION.get(name, ("Request for unknown model: 'floats' version 7 is not found", NOT_FOUND))[0],
        )
        for name, kind in _BY_NAME.items()
        if name != "ModelReady"
    ),
    *(
        bad(
            f"version {version!r}, {name}",
            "4.2",
            name,
            kind(name="floats", version=version),
            INVALID,
            f"invalid model version specified '{version}' , version should be an integral value > 0"
            if version.startswith("-")
            else NO_VERSION.format(version),
        )
        for name, kind in _BY_NAME.items()
        for version in ("abc", "-2")
    ),
    bad(
        "broken model has no versions",
        "4.2",
        "ModelMetadata",
        pb.ModelMetadataRequest(name="broken_initialize"),
        NOT_FOUND,
        "Request for unknown model: 'broken_initialize' has no available versions",
    ),
    *(bad(f"no message of {name}", "5", name, b"\x0a\x7f", INVALID, f"failed to parse the request of {name}") for name in _BY_NAME),
)  # fmt: skip

_SIMPLE = {"model_name": "simple", "model_version": "1"}
INFERENCE = (
    GrpcCase(
        "sum and difference",
        "5.1",
        "ModelInfer",
        (simple(id="7"),),
        has=({**_SIMPLE, "id": "7", "outputs": [{"name": "OUTPUT0", "datatype": "INT32"}, {"name": "OUTPUT1"}]},),
    ),
    GrpcCase("version asked for", "5.1", "ModelInfer", (message(model_version="1"),), has=({"model_version": "1"},)),
    bad("unknown model", "4.2", "ModelInfer", pb.ModelInferRequest(model_name="nope"), NOT_FOUND, UNKNOWN),
    bad(
        "unknown version",
        "4.2",
        "ModelInfer",
        message(model_version="9"),
        NOT_FOUND,
        "Request for unknown model: 'floats' version 9 is not found",
    ),
    bad("version is no number", "4.2", "ModelInfer", message(model_version="abc"), INVALID, NO_VERSION.format("abc")),
    bad(
        "version is negative",
        "4.2",
        "ModelInfer",
        message(model_version="-2"),
        INVALID,
        "invalid model version specified '-2' , version should be an integral value > 0",
    ),
    bad(
        "model is broken",
        "4.2",
        "ModelInfer",
        pb.ModelInferRequest(model_name="broken_initialize", model_version="1"),
        UNAVAILABLE,
        "Request for unknown model: 'broken_initialize' version 1 is not at ready state",
    ),
)


def _answer(id: str, error: str = "") -> dict[str, Any]:
    return {"error_message": error, "infer_response": {"id": id}}


_NOPE = pb.ModelInferRequest(model_name="nope", id="bad")
STREAMS = (
    GrpcCase(
        "stream answers in order",
        "5, 5.2",
        "ModelStreamInfer",
        tuple(message(id=str(i)) for i in range(8)),
        has=tuple(
            {"infer_response": {"id": str(i), "parameters": {"triton_final_response": {"bool_param": True}}}}
            for i in range(8)
        ),
    ),
    GrpcCase("stream without requests", "5.2", "ModelStreamInfer", (), has=()),
    GrpcCase(
        "stream goes on after an error",
        "5, 5.2",
        "ModelStreamInfer",
        (message(id="1"), _NOPE, message(id="2")),
        has=(_answer("1"), _answer("bad", UNKNOWN), _answer("2")),
    ),
    GrpcCase(
        "stream ends at an error if the client wants it",
        "5",
        "ModelStreamInfer",
        (_NOPE,),
        NOT_FOUND,
        UNKNOWN,
        metadata=(("triton_grpc_error", "true"),),
    ),
    GrpcCase(
        "stream of different models",
        "5",
        "ModelStreamInfer",
        (message("strings", id="a"), simple(id="b"), message("flags", id="c")),
        has=(_answer("a"), _answer("b"), _answer("c")),
    ),
)

REPOSITORY = (
    good("index", "4.12, 5", "RepositoryIndex", pb.RepositoryIndexRequest()),
    good("index of what is ready", "4.12, 5", "RepositoryIndex", pb.RepositoryIndexRequest(ready=True)),
    bad("load", "4.12", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="floats"), UNAVAILABLE, NO_CONTROL),
    bad("load unknown", "4.12", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="nope"), UNAVAILABLE, NO_CONTROL),
    bad("unload", "4.12", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="floats"), UNAVAILABLE, NO_CONTROL),
    *(
        bad(f"{name} with a repository", "5", name, kind(repository_name="r", model_name="floats"), UNIMPLEMENTED, "'repository_name' specification is not supported")
        for name, kind in (("RepositoryModelLoad", pb.RepositoryModelLoadRequest), ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest))
    ),
)  # fmt: skip

SHARED_MEMORY = (
    *(
        good(f"{kind} status", "4.10, 5", f"{kind}SharedMemoryStatus", request(), {"regions": {}})
        for kind, request in (("System", pb.SystemSharedMemoryStatusRequest), ("Cuda", pb.CudaSharedMemoryStatusRequest))
    ),
    *(
        bad(f"{kind} status of unknown", "4.10", f"{kind}SharedMemoryStatus", request(name="r"), NOT_FOUND, f"Unable to find {kind.lower()} shared memory region: 'r'")
        for kind, request in (("System", pb.SystemSharedMemoryStatusRequest), ("Cuda", pb.CudaSharedMemoryStatusRequest))
    ),
    *(
        bad(name, "4.10", name, getattr(pb, f"{name}Request")(name="r"), UNIMPLEMENTED, NO_SHM)
        for name in ("SystemSharedMemoryRegister", "SystemSharedMemoryUnregister", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister")
    ),
)  # fmt: skip


def _trace(model: str = "", **settings: list[str]) -> Message:
    return pb.TraceSettingRequest(model_name=model, settings={key: {"value": value} for key, value in settings.items()})


def _log(**settings: dict[str, Any]) -> Message:
    return pb.LogSettingsRequest(settings=settings)


_OFF = {"settings": {"trace_level": {"value": ["OFF"]}, "trace_rate": {"value": ["1000"]}}}
SETTINGS = (
    good("trace settings", "4.13, 5", "TraceSetting", _trace(), _OFF),
    good("trace settings of a model", "4.13", "TraceSetting", _trace("floats"), _OFF),
    good("trace rate", "4.13", "TraceSetting", _trace("halves", trace_rate=["7"]), {"settings": {"trace_rate": {"value": ["7"]}}}),
    good("trace rate cleared", "4.13", "TraceSetting", _trace("halves", trace_rate=[]), _OFF),
    bad("trace rate no number", "4.13", "TraceSetting", _trace(trace_rate=["x"]), INVALID, "Unable to parse 'trace_rate', got: x"),
    bad("trace count", "4.13", "TraceSetting", _trace(trace_count=["-2"]), INVALID, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
    bad("trace rate twice", "4.13", "TraceSetting", _trace(trace_rate=["7", "8"]), INVALID, "expect only 1 value for 'trace_rate'"),
    bad("trace file twice", "4.13", "TraceSetting", _trace(trace_file=["x", "y"]), INVALID, "expect only 1 value for 'trace_file'"),
    bad("trace level twice", "4.13", "TraceSetting", _trace(trace_level=["OFF", "TENSORS"]), INVALID, "Expect only one trace level 'OFF' is specified"),
    bad("trace file", "4.13", "TraceSetting", _trace(trace_file=["x"]), UNIMPLEMENTED, "trace file location can not be updated through network protocol"),
    bad("trace of unknown", "4.13", "TraceSetting", _trace("nope"), INVALID, "Request for unknown model : nope"),
    good("log settings", "4.13, 5", "LogSettings", _log(), {"settings": {"log_info": {"bool_param": True}, "log_format": {"string_param": "default"}}}),
    good("log format", "4.13", "LogSettings", _log(log_format={"string_param": "ISO8601"}), {"settings": {"log_format": {"string_param": "ISO8601"}}}),
    good("log format back", "4.13", "LogSettings", _log(log_format={"string_param": "default"}), {"settings": {"log_format": {"string_param": "default"}}}),
    bad("unknown log format", "4.13", "LogSettings", _log(log_format={"string_param": "x"}), INVALID, "invalid argument for log_format, got: x"),
    bad("log file", "4.13", "LogSettings", _log(log_file={"string_param": "x"}), UNIMPLEMENTED, "log file location can not be updated through network protocol"),
)  # fmt: skip

REFLECTION = tuple(
    GrpcCase(
        f"reflection {version}",
        "5",
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        (
            ServerReflectionRequest(list_services=""),
            ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService"),
            ServerReflectionRequest(file_containing_symbol="nope"),
        ),
        has=(
            {"list_services_response": {}},
            {"file_descriptor_response": {}},
            {"error_response": {"error_code": NOT_FOUND}},
        ),
        deviates="Triton has no reflection",
    )
    for version in ("v1", "v1alpha")
)

ROUTED = {"message-empty": (NOT_FOUND, "Request for unknown model: '' is not found")}
"""What the codec never sees, as the message does not say to which model it goes."""

CODEC = tuple(
    GrpcCase(f"codec {case.id}", case.section, "ModelInfer", (case.body,), code, text or None, part=True)
    for case in GRPC_CASES
    for code, text in (ROUTED.get(case.id, (case.code, case.text)),)
)

CASES = (
    *HEALTH,
    *METADATA,
    *WRONG_MODEL,
    *INFERENCE,
    *STREAMS,
    *REPOSITORY,
    *SHARED_MEMORY,
    *SETTINGS,
    *REFLECTION,
    *CODEC,
)
