"""How many read logs on a node at a time."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.ingress import serve_cluster_view
from app.ingress.serve_cluster_view import ServeClusterView


class _Counted(ThreadPoolExecutor):
    started = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.started += 1
        return super().submit(*args, **kwargs)


def test_two_logs_are_read_at_a_time_for_other_nodes_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "replica_m_v1_a.log").write_text("hello\n")
    monkeypatch.setattr(serve_cluster_view, "serve_logs_folder", lambda: str(tmp_path))

    async def test() -> None:
        executor = _Counted()
        asyncio.get_running_loop().set_default_executor(executor)
        view = ServeClusterView(None, None, "a", lambda: True)  # type: ignore[arg-type]
        asked = [asyncio.create_task(view.answer("b", "m", 10)) for _ in range(5)]
        await asyncio.sleep(0)
        assert executor.started == 2
        assert await asyncio.gather(*asked) == [("a", [("replica_m_v1_a.log", "hello")])] * 5

    asyncio.run(test())
