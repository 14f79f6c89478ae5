"""Which keys are good for what, and how they come and go."""

import hashlib
import os
from pathlib import Path

import pytest

from app.edge.api_keys import ApiKeys, add_key, new_key
from protocol.errors import Forbidden, Unauthenticated

KEY, LINE = new_key("web", "infer,read")


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {key}".encode())]


def test_a_new_key_is_good_for_its_scopes_and_is_not_in_its_line() -> None:
    keys = ApiKeys([LINE])
    keys.check("infer", bearer(KEY))
    keys.check("read", [(b"host", b"a"), *bearer(KEY)])
    with pytest.raises(Forbidden, match=r"^the API key is not good for 'manage'$"):
        keys.check("manage", bearer(KEY))
    assert KEY not in LINE
    assert f"web infer,read {hashlib.sha256(KEY.encode()).hexdigest()}" == LINE
    assert len(KEY) == 43
    assert new_key("web", "infer")[0] != new_key("web", "infer")[0]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        bearer(KEY[:-1]),
        bearer(KEY) * 2,
        [(b"authorization", KEY.encode())],
        [(b"authorization", b"Basic " + KEY.encode())],
        bearer(""),
        bearer("x" * 600),
    ],
    ids=["none", "wrong", "twice", "no-scheme", "other-scheme", "empty", "long"],
)
def test_whoever_is_not_known_is_unauthenticated(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Unauthenticated):
        ApiKeys([LINE]).check("infer", headers)


def test_a_key_is_added_behind_a_last_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(LINE)
    other, line = new_key("other", "infer")
    for each in (line, new_key("third", "read")[1]):
        add_key(str(path), each)
    assert len(path.read_text().splitlines()) == 3
    for key in (KEY, other):
        ApiKeys(path=str(path)).check("infer", bearer(key))
    add_key(str(tmp_path / "new"), line)
    assert (tmp_path / "new").read_text() == f"{line}\n"
    with pytest.raises(ValueError, match="a name cannot begin with '#'"):
        new_key("#web", "infer")  # which would be a remark in a file
    with pytest.raises(ValueError, match="a name is one word without spaces, and not 'our shop'"):
        new_key("our shop", "infer")
    with pytest.raises(ValueError, match="what a key is good for is one word without spaces, and not 'infer, read'"):
        new_key("shop", "infer, read")


def test_the_scheme_is_read_in_any_case_and_one_key_may_have_two_lines() -> None:
    also = LINE.replace("infer,read", "manage")
    ApiKeys([LINE, also]).check("manage", [(b"authorization", b"BEARER  " + KEY.encode())])


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("web infer", "expected <name>"),
        ("web infer abc", "expected <name>"),
        (LINE.replace("read", "write"), "unknown scope 'write'; there are infer, manage, read"),
    ],
    ids=["no scopes", "no digest", "unknown scope"],
)
def test_malformed_lines_are_refused_with_their_number(line: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=text):
        ApiKeys([line])
    path = tmp_path / "keys"
    path.write_text(f"# our keys\n\n{LINE}\n{line}\n")
    with pytest.raises(ValueError, match=f"line 4: {text}"):
        ApiKeys(path=str(path))


def test_a_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# nobody yet\n")
    keys = ApiKeys(path=str(path))
    assert keys
    assert not ApiKeys()
    with pytest.raises(Unauthenticated):
        keys.check("read", bearer(KEY))
    with pytest.raises(OSError):
        ApiKeys(path=str(tmp_path / "none"))


def test_keys_come_and_go_with_their_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{LINE}\n")
    keys = ApiKeys(path=str(path))
    assert not keys.reload_if_changed()
    other, line = new_key("ops", "manage")
    path.write_text(f"{line}\n")
    assert [keys.reload_if_changed() for _ in range(3)] == [False, True, False]
    keys.check("manage", bearer(other))
    with pytest.raises(Unauthenticated):
        keys.check("infer", bearer(KEY))
    for spoil in (lambda: path.write_text("half a li"), lambda: os.remove(path)):
        spoil()
        assert not any(keys.reload_if_changed() for _ in range(3))
        keys.check("manage", bearer(other))
        assert "the API keys stay as they are" in caplog.text
        caplog.clear()


def test_a_file_that_is_being_written_costs_nobody_his_key(tmp_path: Path) -> None:
    """`cp` empties it first, and what is there then may look like a file with fewer keys."""
    path = tmp_path / "keys"
    path.write_text(f"{LINE}\n")
    keys = ApiKeys(path=str(path))
    _, line = new_key("ops", "manage")
    for written in ("", f"{line}\n", f"{line}\n{LINE[:40]}"):
        path.write_text(written)
        assert not keys.reload_if_changed()
        keys.check("infer", bearer(KEY))
    path.write_text(f"{line}\n{LINE}\n")
    assert [keys.reload_if_changed() for _ in range(2)] == [False, True]
    keys.check("infer", bearer(KEY))
