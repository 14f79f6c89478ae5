import asyncio

import pytest

from app.http.metrics_app import MetricsApp, NoModels
from tests.app.http.wire import Wire


async def scrape() -> bytes:
    return b"nv_inference_count 1\n"


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/metrics", 200, b"nv_inference_count 1\n"),
        ("GET", "/metrics?x=y", 200, b"nv_inference_count 1\n"),
        ("GET", "/anything", 200, b""),
        ("HEAD", "/metrics", 405, b""),
        ("POST", "/metrics", 405, b'{"error":"Method Not Allowed"}'),
        ("POST", "/v2/models/x/infer", 404, b'{"error":"Not Found"}'),
    ],
)
def test_the_metrics_port_answers_as_tritons(method: str, path: str, status: int, body: bytes) -> None:
    async def run() -> None:
        answer = await Wire(app=MetricsApp(scrape), routes=NoModels()).request(method, path)
        assert (answer.status, answer.body) == (status, body)
        if body.startswith(b"nv_"):
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"

    asyncio.run(run())
