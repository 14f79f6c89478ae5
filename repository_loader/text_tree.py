"""The protobuf text format as a tree that remembers where everything stands.

Coarser than protobuf's own parser, which stays the judge of what is legal: this tree only serves to find fields, so
that aliases can be lifted out and faults can be given a line and a column.
Source: the text format language specification on protobuf.dev.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate

from google.protobuf import text_encoding

MAX_DEPTH = 64
BROKEN_ESCAPE = "Invalid escape sequence in string literal."

_TOKEN = re.compile(
    r"""(?P<skip>(?:\s|\#[^\n]*)+)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<punctuation>[{}<>\[\]:,;])
      | (?P<word>[^\s{}<>\[\]:,;\#"']+)""",
    re.VERBOSE,
)
_SOUND = re.compile(r"""(?:[^\\]|\\(?:[abfnrtv\\'"0-7]|x[0-9a-fA-F]|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}))*+""")
"""What a string has before its first escape that is none; protobuf for Python keeps such a one as it is written."""
_CLOSING = {"{": "}", "<": ">"}


class MalformedText(Exception):
    """The text has no such tree."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message, offset)
        self.message = message
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text; `start` and `end` are offsets of characters."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, identifier or string, as it is written."""

    text: str
    start: int

    @property
    def value(self) -> str:
        """The text with quotes and escapes undone; one that does not make a text stays as it is written."""
        if self.text[:1] not in ("'", '"'):
            return self.text
        try:
            return str(text_encoding.CUnescape(self.text[1:-1]).decode("utf-8"))
        except ValueError:
            return self.text[1:-1]


@dataclass(slots=True)
class Message:
    """The fields between two braces."""

    start: int
    fields: list["Field"] = field(default_factory=list)

    def scalar(self, name: str) -> Scalar | None:
        """Return the last scalar value of a field."""
        for entry in reversed(self.fields):
            if entry.name == name and entry.values and isinstance(entry.values[-1], Scalar):
                return entry.values[-1]
        return None


@dataclass(slots=True)
class Field:
    """One occurrence of a field, `end` after it and what separates it from the next; `listed` if it is `[a, b]`."""

    name: str
    start: int
    end: int
    values: list[Scalar | Message]
    listed: bool


class LineIndex:
    """Turns an offset into a line and a column, both from 1."""

    __slots__ = ("_starts",)

    def __init__(self, text: str) -> None:
        self._starts = [0, *accumulate(len(line) for line in text.split("\n"))]
        self._starts = [start + index for index, start in enumerate(self._starts)]

    def position(self, offset: int) -> tuple[int, int]:
        """Return `(line, column)` of a character."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


def tokenize(text: str) -> list[Token]:
    """Split the text, without spaces and comments.

    Raises:
        MalformedText: a string has no end, or an escape that is none.
    """
    tokens: list[Token] = []
    offset = 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            raise MalformedText("String missing ending quote.", offset)
        sound = _SOUND.match(text, offset, match.end()) if match.lastgroup == "string" else None
        if sound is not None and sound.end() < match.end():
            raise MalformedText(BROKEN_ESCAPE, sound.end())
        if match.lastgroup != "skip":
            tokens.append(Token(match.lastgroup or "", match.group(), offset, match.end()))
        offset = match.end()
    return tokens


def parse_tree(text: str) -> Message:
    """Read the whole text as the fields of one message.

    Raises:
        MalformedText: braces do not match, or they nest more than `MAX_DEPTH` deep.
    """
    return _Parser(tokenize(text), len(text)).parse()


class _Parser:
    __slots__ = ("_end", "_index", "_tokens")

    def __init__(self, tokens: list[Token], end: int) -> None:
        self._tokens = tokens
        self._index = 0
        self._end = end

    def parse(self) -> Message:
        root = Message(0)
        self._fields(root, "", 0)
        return root

    def _peek(self) -> Token:
        if self._index < len(self._tokens):
            return self._tokens[self._index]
        return Token("end", "", self._end, self._end)

    def _take(self) -> Token:
        token = self._peek()
        self._index += 1
        return token

    def _fields(self, message: Message, closing: str, depth: int) -> None:
        while True:
            token = self._take()
            if token.text == closing:
                return
            if token.text in (",", ";") and message.fields:
                message.fields[-1].end = token.end
                continue
            if token.kind != "word":
                raise MalformedText(f'Expected a field name, found "{token.text}".', token.start)
            message.fields.append(self._field(token, depth))

    def _field(self, name: Token, depth: int) -> Field:
        if self._peek().text == ":":
            self._take()
        if self._peek().text != "[":
            value = self._value(depth)
            return Field(name.text, name.start, self._last_end(), [value], False)
        self._take()
        values: list[Scalar | Message] = []
        while self._peek().text != "]":
            if self._peek().text == "," and values:
                self._take()
            else:
                values.append(self._value(depth))
        self._take()
        return Field(name.text, name.start, self._last_end(), values, True)

    def _value(self, depth: int) -> Scalar | Message:
        token = self._take()
        if token.text in _CLOSING and token.kind == "punctuation":
            if depth >= MAX_DEPTH:
                raise MalformedText(f"Messages are nested more than {MAX_DEPTH} deep.", token.start)
            message = Message(token.start)
            self._fields(message, _CLOSING[token.text], depth + 1)
            return message
        if token.text == "-":
            return Scalar("-" + self._take().text, token.start)
        if token.kind == "string":
            parts = [token.text[:-1]]
            while self._peek().kind == "string":  # adjacent strings are one
                parts.append(self._take().text[1:-1])
            return Scalar("".join(parts) + token.text[-1], token.start)
        if token.kind != "word":
            raise MalformedText(f'Expected a value, found "{token.text}".', token.start)
        return Scalar(token.text, token.start)

    def _last_end(self) -> int:
        return self._tokens[self._index - 1].end if self._index <= len(self._tokens) else self._end
