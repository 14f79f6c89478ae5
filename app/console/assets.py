"""The files of the console, read once: a page, its style and its modules, which load nothing from elsewhere."""

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

PAGE: Final = "index.html"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS: Final = {
    # Nothing inline, nothing from elsewhere; images are those that a person opens or a model answers with.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is sent; `tag` is its entity tag."""

    media_type: str
    content: bytes
    compressed: bytes
    tag: str


def read_assets() -> dict[str, Asset]:
    """Return the files by their names."""
    found = {}
    for file in files("app.console").joinpath("static").iterdir():
        media_type = _TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            content = file.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[file.name] = Asset(media_type, content, gzip.compress(content, mtime=0), tag)
    return found
