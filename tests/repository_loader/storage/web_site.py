"""Repositories on a web server."""

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from tests.repository_loader.repositories import python_model


@contextmanager
def serving(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """A web server's host and port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def write_archive(
    path: Path,
    *models: str,
    folder: str = "",
    mode: Literal["w", "w:gz"] = "w:gz",
    extra: Mapping[str, str] = MappingProxyType({}),
) -> str:
    with tarfile.open(path, mode) as archive:
        for files in (*map(python_model, models), extra):
            for name, content in files.items():
                assert isinstance(content, str)
                info = tarfile.TarInfo(f"{folder}{name}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()
