"""One request over HTTP and what Triton answers to it."""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.serving import Answer, Client


@dataclass(frozen=True)
class HttpCase:
    """`section` is that of the catalog of Triton's behaviour from which the case comes.

    `error` is the whole text of an error, `has` a part of the JSON of an answer (dictionaries may have more members),
    `sent` its exact body, `headers_back` a part of its headers. `deviates` says why the answer is not Triton's.
    """

    id: str
    section: str
    method: str
    path: str
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    has: Any = None
    sent: bytes | None = None
    headers_back: dict[str, str] = field(default_factory=dict)
    deviates: str = ""

    def check(self, client: Client) -> None:
        """Send the request to a server and assert the answer."""
        answer = client.request(self.method, self.path, self.body, self.headers)
        assert answer.status == self.status, answer.body[:1000]
        if self.error is not None:
            self._check_error(answer)
        if self.sent is not None:
            assert answer.body == self.sent
        if self.has is not None:
            assert contains(answer.json, self.has), f"{json.dumps(self.has)} is not in {answer.body[:2000]!r}"
        for name, value in self.headers_back.items():
            assert answer.headers.get(name) == value, answer.headers

    def _check_error(self, answer: Answer) -> None:
        if self.method != "HEAD":
            assert answer.json == {"error": self.error}
            assert len(answer.body) <= 1024
        assert answer.headers["content-type"] == "application/json"


def contains(whole: Any, part: Any) -> bool:
    """Whether JSON has a part: members of objects, all elements of arrays, equal scalars."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)
