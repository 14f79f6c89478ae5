"""What a server listens on."""

import itertools
import socket
from collections.abc import Sequence
from typing import Final, NamedTuple

_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})


class Listener(NamedTuple):
    """An address and a port (0: a free one), with the flag that gives the port."""

    flag: str
    address: str
    port: int


def clash(listeners: Sequence[Listener]) -> str:
    """Return a sentence on two listeners on one port of one address, "" when there are none."""
    taking = [each for each in listeners if each.port]
    for first, second in itertools.combinations(taking, 2):
        if first.port == second.port and _overlap(first.address, second.address):
            return f"{second.flag} and {first.flag} are both {first.port} on {first.address}"
    return ""


def _overlap(address: str, other: str) -> bool:
    """Whether what listens at one address is reached by the other."""
    return bool(_EVERYWHERE & {address, other} or _meant(address) & _meant(other))


def _meant(address: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(address, None)}
    except OSError:  # whoever listens there says so
        return {address}
