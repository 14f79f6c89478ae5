"""`/v2/docs`: the API's document rendered in the browser, with a request for each loaded model that can be run there.

The page is one file without anything from elsewhere; its policy allows its own script and style, by their hashes, and
requests to this server, and nothing else.
"""

import base64
import hashlib
import re
from importlib.resources import files
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.http.endpoint import Endpoint, json_response
from app.service.metadata import Metadata

_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def read_document() -> dict[str, Any]:
    """Return the OpenAPI document that the package carries."""
    document: dict[str, Any] = orjson.loads((files("app.http") / "openapi.json").read_bytes())
    return document


def security_policy(page: str) -> str:
    """Return the Content-Security-Policy under which a page works and can do nothing else."""
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    return (
        f"default-src 'none'; script-src {' '.join(allowed['script'])}; style-src {' '.join(allowed['style'])}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class DocsApi:
    """The page, the document and the examples."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        page = (files("app.http") / "docs.html").read_text("utf-8")
        self._page = page.encode()
        self._document = orjson.dumps(read_document())
        self._headers = {
            "Content-Security-Policy": security_policy(page),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints by the names that the table of routes has for them."""
        return {"docs_page": self.page, "docs_document": self.document, "docs_examples": self.examples}

    async def page(self, request: Request) -> Response:
        """Return the page."""
        return Response(self._page, media_type="text/html", headers=self._headers)

    async def document(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        return Response(self._document, media_type="application/json")

    async def examples(self, request: Request) -> Response:
        """Return a small request for each model that is ready."""
        return json_response(self._metadata.examples())
