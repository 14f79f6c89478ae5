import functools
import http.server
from collections.abc import Iterator
from pathlib import Path

import pytest

from repository_loader.storage import model_cache
from tests.repository_loader.storage.web_site import serving


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no test depend on how full the machine's disk is: a cache on one that is nearly full removes models."""
    monkeypatch.setattr(model_cache, "_FREE_SHARE", 0.0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str, list[int]]]:
    """A web server: its folder, its address, and the statuses of what it has answered."""
    folder = tmp_path / "site"
    folder.mkdir()
    statuses: list[int] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            statuses.append(int(code))

        def log_message(self, *_: object) -> None:
            pass

    with serving(functools.partial(Handler, directory=folder)) as address:
        yield folder, f"http://{address}", statuses
