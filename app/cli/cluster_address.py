"""Whether anything listens where a Ray cluster is said to be: Ray itself waits a quarter of an hour for one."""

import os
import socket
from typing import Final

_TIMEOUT_S: Final = 5.0


def require_listener(address: str) -> None:
    """See that a TCP connection can be made, where an address is `host:port`; of any other form nothing is asked.

    Raises:
        ConnectionError: none can be made within 5 s; the message says why.
    """
    if address == "auto":  # Ray looks there first
        address = os.environ.get("RAY_ADDRESS", "")
    host, separator, port = address.rpartition(":")
    if not (host and separator and port.isdecimal()) or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S).close()
    except TimeoutError:
        raise ConnectionError(f"no connection within {_TIMEOUT_S:g} s") from None
    except (OSError, OverflowError) as error:
        raise ConnectionError(getattr(error, "strerror", None) or str(error)) from None
