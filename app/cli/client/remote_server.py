"""A server by its URL."""

import http.client
import json
import re
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final

import click
from click.core import ParameterSource

from app.cli.printable import printable_lines

_TIMEOUT_S: Final = 600.0
_CONTROL_TIMEOUT_S: Final = 3700.0
"""Models may take an hour to load, after which a server says itself that they do not."""
_PROBE_S: Final = 2.0
_LENGTH_HEADER: Final = "Inference-Header-Content-Length"
_OTHER: Final = "is it Eagleray's?"
_NO_CONTROL: Final = "model load / unload is not allowed"
_KEY: Final = re.compile(r"[\x21-\x7e]+")
_SENDABLE: Final = re.compile(r"[\t\x20-\x7e\xa0-\xff]+")


class RemoteServer:
    """Asks over HTTP or HTTPS, past any proxy; what is asked by `get` goes over one connection while it lasts.

    Args:
        api_key: what the server expects of those that it lets in, "" for none.
        ca_file: the certificates that it must have, "" for those of the system.
        headers: as `NAME=VALUE`, for a server that restricts its APIs.

    Raises:
        click.ClickException: from every method, when the server cannot be reached or answers with an error.
    """

    def __init__(self, url: str, api_key: str = "", ca_file: str = "", headers: Sequence[str] = ()) -> None:
        self.url = (url if "://" in url or not url else f"http://{url}").rstrip("/")
        self._headers = dict(map(_header, headers))
        if api_key := api_key.strip():
            if not _KEY.fullmatch(api_key):
                raise click.UsageError("--api-key: a key has no spaces, and nothing but ASCII")
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._ca_file = ca_file
        self._connection: http.client.HTTPConnection | None = None

    def at(self, url: str) -> "RemoteServer":
        """Return the one at another URL, for the same person."""
        other = RemoteServer(url, ca_file=self._ca_file)
        other._headers = self._headers
        return other

    def ready(self) -> bool:
        """Return whether the server says that it is ready."""
        return self._send("GET", "/v2/health/ready", None, {}, also=(400,))[0] == 200

    def get(self, path: str, timeout_s: float = _TIMEOUT_S, kind: type = dict) -> Any:
        """Return the JSON of an answer, of this kind."""
        return _json(self._send("GET", path, None, {}, timeout_s=timeout_s)[2], kind)

    def post(self, path: str, document: Any, kind: type = object) -> Any:
        """Send JSON and return that of the answer, of this kind; None when it has none."""
        return _json(self._send("POST", path, json.dumps(document).encode(), {})[2], kind)

    def control(self, path: str, parameters: dict[str, Any]) -> None:
        """Have a model loaded or unloaded, which may take long."""
        self._send("POST", path, json.dumps(parameters).encode(), {}, timeout_s=_CONTROL_TIMEOUT_S)

    def infer(self, path: str, header: Any, content: bytes) -> tuple[Any, bytes]:
        """Send a request with tensors in binary; returns the JSON part of the answer and what follows it."""
        head = json.dumps(header).encode()
        _, headers, body = self._send("POST", path, head + content, {_LENGTH_HEADER: str(len(head))})
        length = int(headers.get(_LENGTH_HEADER) or len(body))
        return _json(body[:length], dict), body[length:]

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        also: tuple[int, ...] = (),
        timeout_s: float = _TIMEOUT_S,
    ) -> tuple[int, Any, bytes]:
        if method != "GET":  # which a connection that the server is about to close might lose
            self.close()
        kept = self._connection is not None
        try:
            try:
                status, answered, content = self._exchange(method, path, body, headers, timeout_s)
            except (ConnectionError, http.client.HTTPException):
                if not kept:
                    raise
                status, answered, content = self._exchange(method, path, body, headers, timeout_s)
        except (http.client.BadStatusLine, ConnectionResetError) as error:
            if self._speaks_tls():
                raise click.ClickException(f"what listens at {self.url} speaks TLS: give an https:// URL") from None
            if not isinstance(error, http.client.BadStatusLine):
                raise click.ClickException(f"no server can be reached at {self.url}: {error}") from None
            raise click.ClickException(f"what listens at {self.url} does not answer in HTTP/1.1") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise click.ClickException(f"no server can be reached at {self.url}: {_reason(error)}") from None
        if 300 <= status < 400:
            raise click.ClickException(f"{self.url} says that it is at {answered.get('Location')} ({status})")
        if status >= 400 and status not in also:
            if sentence := _sentence(content):
                raise click.ClickException(f"{sentence} ({status}){_hint(status, sentence, path)}")
            answer = http.client.responses.get(status, "with an error")
            raise click.ClickException(f"{self.url} answers {answer} ({status}): {_OTHER}")
        return status, answered, content

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> tuple[int, Any, bytes]:
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._connection.timeout = timeout_s
            if self._connection.sock is not None:
                self._connection.sock.settimeout(timeout_s)
            prefix = urllib.parse.urlsplit(self.url).path
            self._connection.request(method, prefix + path, body, self._headers | headers)
            answer = self._connection.getresponse()
            return answer.status, answer.headers, answer.read()
        except BaseException:
            self.close()
            raise

    def _speaks_tls(self) -> bool:
        """Return whether TLS is spoken where it was asked without; shows nothing of what was asked."""
        address = urllib.parse.urlsplit(self.url)
        if address.scheme != "http":
            return False
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with (
                socket.create_connection((address.hostname, address.port or 80), _PROBE_S) as connection,
                context.wrap_socket(connection, server_hostname=address.hostname),
            ):
                return True
        except OSError:
            return False

    def _connect(self) -> http.client.HTTPConnection:
        address = urllib.parse.urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError("a URL begins with http:// or https:// and a host")
        if address.scheme == "http":
            return http.client.HTTPConnection(address.hostname, address.port)
        try:
            context = ssl.create_default_context(cafile=self._ca_file or None)
        except OSError as error:
            raise click.UsageError(f"--ca-file {self._ca_file}: {error.strerror}") from None
        return http.client.HTTPSConnection(address.hostname, address.port, context=context)


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise click.UsageError("--header: write NAME=VALUE")
    if not _SENDABLE.fullmatch(f"{name}{value}"):  # what refuses it below would print it
        raise click.UsageError("--header: a header is of one line, and in Latin-1")
    return name, value


def quoted(name: str) -> str:
    """Return a model's name as it stands in a path."""
    return urllib.parse.quote(name, safe="", errors="surrogateescape")


class _Members(dict[str, Any]):
    """An object of an answer."""

    def __missing__(self, name: str) -> Any:
        raise click.ClickException(f"the server answered without '{name}': {_OTHER}")


def _json(body: bytes, kind: type) -> Any:
    try:
        answer = json.loads(body, object_hook=_Members) if body.strip() else None
    except ValueError:
        raise click.ClickException(f"the server answered with something that is not JSON: {_OTHER}") from None
    if not isinstance(answer, kind):
        raise click.ClickException(f"the server answered with other JSON than was asked for: {_OTHER}")
    return answer


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there; `eagleray serve` starts one, and --url says where another is"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message}; --ca-file names the root of a certificate of your own"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "what listens there does not speak TLS: give an http:// URL"
    return str(error)


def _hint(status: int, sentence: str, path: str) -> str:
    """Return what to do about a refusal whose sentence does not say it."""
    if status == 401:
        return "; --api-key or EAGLERAY_CLIENT_KEY gives one"
    if status == 403 and sentence.startswith("the API key is not good for"):
        return "; --api-key or EAGLERAY_CLIENT_KEY gives another, made with `eagleray new-api-key --for`"
    if status == 403 and "is restricted, expecting header" in sentence:
        return "; --header NAME=VALUE or EAGLERAY_CLIENT_HEADERS gives it"
    if (status, sentence) == (404, "Not Found") and path.startswith("/v2/console/"):
        return "; the server's console, which this reads, is closed (--console=false)"
    return "; start the server with --model-control-mode explicit" if _NO_CONTROL in sentence else ""


def _sentence(body: bytes) -> str:
    try:
        return printable_lines(str(json.loads(body)["error"]))
    except (ValueError, KeyError, TypeError):
        return ""


def url_of_environment() -> bool:
    """Whether it is the environment that says where the server of the command that runs is, and not its line."""
    return click.get_current_context().get_parameter_source("url") is ParameterSource.ENVIRONMENT


def server_options(command: Callable[..., Any], url: str = "http://127.0.0.1:8000") -> Callable[..., Any]:
    """Give a command the flags that say which server it asks, as `server`, by default that at `url`, and `--json`."""
    default = url

    @wraps(command)
    def asking(*args: Any, url: str, api_key: str, ca_file: str, headers: tuple[str, ...], **rest: Any) -> Any:
        return command(*args, server=RemoteServer(url, api_key, ca_file, headers), **rest)

    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--ca-file", default="", help="File with the certificates that a server must have, PEM."),
        click.option(
            "--header",
            "headers",
            multiple=True,
            metavar="NAME=VALUE",
            envvar="EAGLERAY_CLIENT_HEADERS",
            show_envvar=True,
            help="Header of every request, as a restricted API expects one; several.",
        ),
        click.option(
            "--api-key",
            default="",
            envvar="EAGLERAY_CLIENT_KEY",
            show_envvar=True,
            help="API key; better in the environment.",
        ),
        click.option(
            "--url",
            default=default,
            show_default=bool(default),
            envvar="EAGLERAY_CLIENT_URL",
            show_envvar=True,
            help="Where the server is.",
        ),
    ):
        asking = option(asking)
    return asking
