"""A URL that opens the dashboard of the local Ray without asking for its token."""

import hmac
import secrets
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final

_COOKIE: Final = "ray-authentication-token"
"""The cookie in which Ray's dashboard looks for the token (`ray._private.authentication`)."""
_TIMEOUT_S = 2.0
"""How long a connection may keep the next one waiting."""


class DashboardLogin:
    """Listens on loopback; its `url`, which holds a secret, sets the dashboard's cookie and redirects there.

    A cookie belongs to a host and not to a port, so the dashboard receives one that was set here. The token itself does
    not appear in the URL.
    """

    def __init__(self, dashboard: str, token: str) -> None:
        """Open the port.

        Args:
            dashboard: host and port of the dashboard.
            token: what the dashboard asks for.
        """
        host = dashboard.rpartition(":")[0]
        path = f"/{secrets.token_urlsafe(16)}"

        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT_S

            def do_GET(self) -> None:
                """Redirect whoever knows the path."""
                if not hmac.compare_digest(self.path.encode(), path.encode()):
                    self.send_error(404)
                    return
                self.send_response(302)
                self.send_header("Set-Cookie", f"{_COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict")
                self.send_header("Location", f"http://{dashboard}/#/serve")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing on the console."""

        self._server = HTTPServer((host, 0), Handler)
        self.url = f"http://{host}:{self._server.server_port}{path}"
        threading.Thread(target=self._server.serve_forever, name="dashboard login", daemon=True).start()

    def close(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
