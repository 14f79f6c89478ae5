import asyncio
import base64
import hashlib
import re

from app.http.docs_api import read_document
from app.http.routes import ROUTES
from tests.app.http.served import Served


def test_the_document_lists_every_route_and_no_other() -> None:
    documented = {
        (method.upper(), path, operation["x-restricted-category"])
        for path, operations in read_document()["paths"].items()
        for method, operation in operations.items()
    }
    assert documented == {(route.method, route.path, route.category) for route in ROUTES}


def test_every_reference_of_the_document_leads_somewhere() -> None:
    document = read_document()

    def check(value: object) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                target: object = document
                for key in value["$ref"].split("/")[1:]:
                    assert isinstance(target, dict)
                    target = target[key]
            for part in value.values():
                check(part)
        elif isinstance(value, list):
            for part in value:
                check(part)

    check(document)


def test_every_operation_can_be_told_from_the_others_and_is_shown() -> None:
    document = read_document()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    shown = {tag["name"] for tag in document["tags"]}
    for operation in operations:
        assert operation["tags"][0] in shown
        assert operation["summary"] and operation["responses"]


def test_what_is_read_of_a_model_that_there_is_not_is_answered_as_the_document_says() -> None:
    async def run() -> None:
        served, undocumented = Served(), {}
        for path, operations in read_document()["paths"].items():
            if "get" in operations and "{model}" in path and path.startswith("/v2/models/"):
                answer = await served.request("GET", path.format(model="nope", version=1))
                if str(answer.status) not in operations["get"]["responses"]:
                    undocumented[path] = answer.status
        assert not undocumented

    asyncio.run(run())


def test_the_page_needs_nothing_from_elsewhere_and_may_do_nothing_else() -> None:
    async def run() -> None:
        answer = await Served().request("GET", "/v2/docs")
        page = answer.body.decode()
        policy = answer.headers["content-security-policy"]
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "http:" not in page and "https:" not in page and "src=" not in page and "style=" not in page
        assert "innerHTML" not in page
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        inline = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", page, re.DOTALL)
        assert len(inline) == 2
        for content in inline:
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy

    asyncio.run(run())


def test_there_is_an_example_for_each_model_that_is_ready() -> None:
    async def run() -> None:
        served = Served()
        examples = (await served.request("GET", "/v2/docs/examples")).json
        assert [example["model"] for example in examples] == ["a/b", "good", "half", "stream"]
        assert examples[1]["body"] == {"inputs": [{"name": "X", "shape": [1, 2], "datatype": "FP32", "data": [0, 0]}]}
        assert examples[3]["body"] is None  # decoupled
        document = await served.request("GET", "/v2/docs/openapi.json")
        assert document.json == read_document()

    asyncio.run(run())
