"""HPACK's Huffman code (RFC 7541 §5.2), decoded a byte at a time.

A state is what has been read of a symbol at the end of a byte; what a byte does in a state is worked out when it first
comes, and kept: there are at most 256 states, of 256 entries each.
"""

from typing import Final

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

_END: Final = 256
_FORBIDDEN: Final = frozenset(b"\0\r\n")
# Short strings come again, even where the dynamic table has lost them.
_MAX_KEPT: Final = 1024
_MAX_KEPT_BYTES: Final = 64
# Unfinished bits at the end must be ones, and fewer than a byte.
_MAX_PADDING_BITS: Final = 7


class _State(dict[int, tuple["_State", bytes]]):
    """Byte → the state after it, and the symbols that it has completed."""

    def __init__(self) -> None:
        super().__init__()
        self.branches: list[_State | int | None] = [None, None]
        self.padding = False
        """Whether a string may end here."""
        self.check = _Check(self)

    def __missing__(self, byte: int) -> tuple["_State", bytes]:
        state, symbols = self, bytearray()
        for shift in range(7, -1, -1):
            branch = state.branches[byte >> shift & 1]
            if branch is None or branch == _END:
                raise ValueError("no Huffman code")
            if isinstance(branch, int):
                symbols.append(branch)
                state = _ROOT
            else:
                state = branch
        found = self[byte] = state, bytes(symbols)
        return found


class _Check(dict[int, "_Check"]):
    """The same without the symbols: byte → the state after it; no symbol is one that a value must not hold."""

    def __init__(self, state: _State) -> None:
        super().__init__()
        self.state = state

    def __missing__(self, byte: int) -> "_Check":
        state, symbols = self.state[byte]
        if not _FORBIDDEN.isdisjoint(symbols):
            raise ValueError("a character that no field may hold")
        self[byte] = state.check
        return state.check


def _tree() -> _State:
    root = _State()
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        state = root
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            branch = state.branches[bit]
            if not isinstance(branch, _State):
                branch = state.branches[bit] = _State()
            state = branch
        state.branches[code & 1] = symbol
    state = root
    for _ in range(_MAX_PADDING_BITS + 1):
        state.padding = True
        following = state.branches[1]
        assert isinstance(following, _State)
        state = following
    return root


_ROOT: Final = _tree()
_KNOWN: Final[dict[bytes, bytes]] = {}


def decode_huffman(data: bytes) -> bytes:
    """Return the string.

    Raises:
        ValueError: the data are no such string.
    """
    known = _KNOWN.get(data)
    if known is not None:
        return known
    state = _ROOT
    symbols = []
    for byte in data:
        state, completed = state[byte]
        symbols.append(completed)
    if not state.padding:
        raise ValueError("the Huffman code ends within a symbol")
    text = b"".join(symbols)
    if len(data) <= _MAX_KEPT_BYTES:
        if len(_KNOWN) >= _MAX_KEPT:
            _KNOWN.clear()
        _KNOWN[data] = text
    return text


def check_value(data: bytes) -> None:
    """Do as `decode_huffman` for a value that nobody reads.

    Raises:
        ValueError: also for NUL, CR and LF in it (RFC 9113 §8.2.1).
    """
    check = _ROOT.check
    for byte in data:
        check = check[byte]
    if not check.state.padding:
        raise ValueError("the Huffman code ends within a symbol")
