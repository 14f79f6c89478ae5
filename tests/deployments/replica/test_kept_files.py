"""Files that clients sent, in a table."""

from collections.abc import Iterator

import pytest

from deployments.replica import kept_files
from deployments.replica.kept_files import KeptFiles


class Table(dict[str, bytes]):
    """Values by key; the first `lives` changes are made, as by a process that is killed then."""

    lives = 1000

    def _live(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise InterruptedError

    def put(self, key: str, value: bytes) -> None:
        self._live()
        self[key] = value

    def forget(self, key: str) -> None:
        self._live()
        self.pop(key, None)

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return dict.get(self, key, b"")

    def keys(self, prefix: str) -> list[str]:  # type: ignore[override]
        return [key for key in dict.keys(self) if key.startswith(prefix)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kept_files, "_PIECE_BYTES", 10)
    yield


def test_files_come_back_whole_and_are_forgotten_whole() -> None:
    table = Table()
    kept, other = KeptFiles(table, "one"), KeptFiles(table, "one/other")
    archives = {name: name.encode() * 7 for name in ("a" * 32, "b" * 32, "c")}
    for name, archive in archives.items():
        kept.put_files(name, archive)
    other.put_files("c", b"theirs")
    assert max(map(len, table.values())) == 10
    assert {name: kept.files(name) for name in archives} == archives
    assert kept.files("nobody") == b""
    assert kept.names() == archives.keys()
    kept.keep_files(["c"])
    assert (kept.files("c"), kept.files("a" * 32), kept.names()) == (archives["c"], b"", {"c"})
    kept.end()
    assert other.files("c") == b"theirs"
    assert len(table) == 2


@pytest.mark.parametrize("lives", range(6))
def test_who_dies_on_the_way_leaves_all_or_nothing(lives: int) -> None:
    table, archive = Table(), b"x" * 35
    table.lives = lives
    try:
        KeptFiles(table, "one").put_files("name", archive)
    except InterruptedError:
        assert KeptFiles(table, "one").files("name") == b""
    else:
        assert lives == 5
    table.lives = 1000
    KeptFiles(table, "one").put_files("name", archive)
    table.lives = lives
    try:
        KeptFiles(table, "one").end()
    except InterruptedError:
        assert KeptFiles(table, "one").files("name") in ((archive,) if not lives else (b"",))
    else:
        assert not table
