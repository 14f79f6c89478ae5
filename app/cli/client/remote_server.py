"""A server by its URL."""

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

import click

_TIMEOUT_S = 600.0
_LENGTH_HEADER = "Inference-Header-Content-Length"


class RemoteServer:
    """Asks over HTTP or HTTPS, past any proxy, with an API key if there is one.

    Raises:
        click.ClickException: from every method, when the server cannot be reached or answers with an error.
    """

    def __init__(self, url: str, api_key: str = "", ca_file: str = "") -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        context = ssl.create_default_context(cafile=ca_file or None)
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        self._opener = urllib.request.build_opener(*handlers)

    def ready(self) -> bool:
        """Return whether the server says that it is ready."""
        return self._send("GET", "/v2/health/ready", None, {}, also=(400,))[0] == 200

    def get(self, path: str, timeout_s: float = _TIMEOUT_S) -> Any:
        """Return the JSON of an answer."""
        return _json(self._send("GET", path, None, {}, timeout_s=timeout_s)[2])

    def post(self, path: str, document: Any) -> Any:
        """Send JSON and return that of the answer, None when it has none."""
        return _json(self._send("POST", path, json.dumps(document).encode(), {})[2])

    def infer(self, path: str, header: Any, content: bytes) -> tuple[Any, bytes]:
        """Send a request with tensors in binary; returns the JSON part of the answer and what follows it."""
        head = json.dumps(header).encode()
        _, headers, body = self._send("POST", path, head + content, {_LENGTH_HEADER: str(len(head))})
        length = int(headers.get(_LENGTH_HEADER) or len(body))
        return _json(body[:length]), body[length:]

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        also: tuple[int, ...] = (),
        timeout_s: float = _TIMEOUT_S,
    ) -> tuple[int, Any, bytes]:
        try:
            request = urllib.request.Request(self.url + path, body, self._headers | headers, method=method)
            with self._opener.open(request, timeout=timeout_s) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            answered = error.read()
            if error.code in also:
                return error.code, error.headers, answered
            raise click.ClickException(f"{_sentence(answered) or error.reason} ({error.code})") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise click.ClickException(f"no server can be reached at {self.url}: {reason}") from None


def quoted(name: str) -> str:
    """Return a model's name as it stands in a path."""
    return urllib.parse.quote(name, safe="")


def _json(body: bytes) -> Any:
    try:
        return json.loads(body) if body.strip() else None
    except ValueError:
        raise click.ClickException("the server answered with something that is not JSON: is it Eagleray's?") from None


def _sentence(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ""


def server_options(command: Callable[..., Any], url: str = "http://127.0.0.1:8000") -> Callable[..., Any]:
    """Give a command the flags that say which server it asks, by default the one at `url`, and `--json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--ca-file", default="", help="File with the certificates that a server must have, PEM."),
        click.option("--api-key", default="", envvar="EAGLERAY_CLIENT_KEY", help="API key; better in the environment."),
        click.option("--url", default=url, envvar="EAGLERAY_CLIENT_URL", help="Where the server is."),
    ):
        command = option(command)
    return command
