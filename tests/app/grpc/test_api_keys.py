"""What a call needs a key for, when it is asked for, and what becomes of calls whose key is revoked."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from app.edge.access import Access
from app.edge.api_keys import ApiKeys, new_key
from app.grpc.options import GrpcOptions
from tests.app.grpc.server import request, serving

SCOPES = ("infer", "read", "manage")
MADE = {scope: new_key(scope, scope) for scope in SCOPES}
UNAUTHENTICATED, PERMISSION_DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
CALLS = {
    "ServerLive": (pb.ServerLiveRequest(), ""),
    "ModelReady": (pb.ModelReadyRequest(name="identity"), ""),
    "ServerMetadata": (pb.ServerMetadataRequest(), "read"),
    "ModelConfig": (pb.ModelConfigRequest(name="identity"), "read"),
    "RepositoryIndex": (pb.RepositoryIndexRequest(), "read"),
    "ModelInfer": (request(), "infer"),
    "SystemSharedMemoryStatus": (pb.SystemSharedMemoryStatusRequest(), "infer"),
    "RepositoryModelLoad": (pb.RepositoryModelLoadRequest(model_name="identity"), "manage"),
    "TraceSetting": (pb.TraceSettingRequest(), "manage"),
    "LogSettings": (pb.LogSettingsRequest(), "manage"),
}


def key_of(scope: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {MADE[scope][0]}")]


def code_of(method: Any, message: Any, metadata: Any) -> grpc.StatusCode:
    try:
        method(message, metadata=metadata, timeout=10.0)
    except grpc.RpcError as error:
        return error.code()  # type: ignore[no-any-return]
    return grpc.StatusCode.OK


def test_every_method_wants_the_key_of_its_scope() -> None:
    options = GrpcOptions(access=Access(ApiKeys([line for _, line in MADE.values()])))
    with serving(options) as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for name, (message, wanted) in CALLS.items():
            method = getattr(stub, name)
            assert (code_of(method, message, []) == UNAUTHENTICATED) == bool(wanted), name
            for scope in SCOPES:
                refused = code_of(method, message, key_of(scope)) in (UNAUTHENTICATED, PERMISSION_DENIED)
                assert refused == (wanted not in ("", scope)), (name, scope)


def test_a_port_without_the_admin_api_refuses_what_manages() -> None:
    with serving(GrpcOptions(access=Access(admin=False))) as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="identity"))
        assert raised.value.details() == "this port does not serve the admin API"
        assert stub.ModelInfer(request()).model_name == "identity"


def test_a_revoked_key_opens_nothing_more_and_ends_its_streams(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(MADE["infer"][1])
    keys = ApiKeys(path=str(path))
    with serving(GrpcOptions(access=Access(keys))) as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(3):
            assert code_of(stub.ModelInfer, request(), key_of("infer")) == grpc.StatusCode.OK
        stream = stub.ModelStreamInfer(iter([request(request_id="hold")]), metadata=key_of("infer"), timeout=20.0)
        server.wait_arrived()
        path.write_text(MADE["read"][1])
        assert [keys.reload_if_changed() for _ in range(2)] == [False, True]
        server.call(server.front.keys_changed)
        assert code_of(stub.ModelInfer, request(), key_of("infer")) == UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as raised:
            list(stream)
        assert raised.value.code() == UNAUTHENTICATED
        server.wait_cancelled()
