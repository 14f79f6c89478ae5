"""What a client may ask for, over either protocol."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from app.grpc.handlers import HANDLERS
from app.service.model_control import ExplicitControl, LoadRequest
from protocol.errors import InvalidArgument
from tests.app.http.served import Served


class Loads:
    """Counts them."""

    def __init__(self) -> None:
        self.count = 0

    async def load(self, request: LoadRequest) -> None:
        self.count += 1


async def load_over_http(served: Served, config: str) -> str:
    body = json.dumps({"parameters": {"config": config}}).encode()
    answer = await served.request("POST", "/v2/repository/models/m/load", body)
    return "" if answer.status == 200 else f"{answer.status} {answer.error}"


async def load_over_grpc(served: Served, config: str) -> str:
    parameters = {"config": pb.ModelRepositoryParameter(string_param=config)}
    message = pb.RepositoryModelLoadRequest(model_name="m", parameters=parameters).SerializeToString()
    answer: Any = HANDLERS["RepositoryModelLoad"](served.service, message)
    try:
        await answer
    except InvalidArgument as error:
        return f"{error.http_status} {error.message}"
    return ""


@pytest.mark.parametrize("load", [load_over_http, load_over_grpc])
def test_the_configuration_of_a_load_is_no_larger_than_its_file_may_be(
    load: Callable[[Served, str], Awaitable[str]],
) -> None:
    async def test() -> None:
        loads: Any = Loads()
        served = Served(control=ExplicitControl(loads))
        assert await load(served, "ż" * (1 << 19)) == ""
        refusal = "400 failed to load 'm', Invalid config override: the configuration has more than the allowed "
        for config in ("ż" * (1 << 19) + "x", "x" * (3 << 20)):
            assert await load(served, config) == f"{refusal}1048576 bytes"
        many = f'{{"input": [{",".join(["{}"] * (1 << 15))}]}}'
        assert await load(served, many) == f"{refusal}65536 elements"
        assert loads.count == 1

    asyncio.run(test())
