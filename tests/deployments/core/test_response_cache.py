"""The files of a node's response cache, as settings and versions change while processes go on."""

import os
from pathlib import Path

import pytest

from deployments.core import response_cache
from deployments.core.response_cache import open_response_cache

SIZES = (1 << 16, 1 << 17)


def sizes(folder: Path) -> list[int]:
    return sorted(path.stat().st_size for path in folder.glob("responses-*"))


def test_a_cache_of_another_size_goes_with_the_last_that_uses_it(tmp_path: Path) -> None:
    small, also_small = (open_response_cache(tmp_path, SIZES[0]) for _ in range(2))
    large = open_response_cache(tmp_path, SIZES[1])
    assert small is not None and also_small is not None and large is not None
    assert len(sizes(tmp_path)) == 2, "one of them is still used"
    small.close()
    assert len(sizes(tmp_path)) == 2
    also_small.close()
    assert sizes(tmp_path) == [SIZES[1]]
    large.close()


@pytest.mark.parametrize("size_bytes", (0, SIZES[1]), ids=("no cache any more", "another size"))
def test_what_processes_that_were_killed_have_left_goes_when_one_starts_otherwise(
    tmp_path: Path, size_bytes: int
) -> None:
    if not (child := os.fork()):
        open_response_cache(tmp_path, SIZES[0])
        os._exit(0)
    os.waitpid(child, 0)
    assert sizes(tmp_path) == [SIZES[0]]
    cache = open_response_cache(tmp_path, size_bytes)
    assert sizes(tmp_path) == ([size_bytes] if size_bytes else [])
    if cache is not None:
        cache.close()


def test_another_form_of_what_is_kept_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = open_response_cache(tmp_path, SIZES[0])
    monkeypatch.setattr(response_cache, "_FORM", 0)
    newer = open_response_cache(tmp_path, SIZES[0])
    assert older is not None and newer is not None
    older.keep(key := bytes(32), response_cache.InferResponse({}, {}))
    assert older.find(key) is not None
    assert newer.find(key) is None
    older.close()
    newer.close()


def test_a_cache_that_is_given_up_goes_with_the_last_that_uses_it(tmp_path: Path) -> None:
    cache = open_response_cache(tmp_path, SIZES[0])
    assert cache is not None
    assert open_response_cache(tmp_path, 0) is None
    assert sizes(tmp_path) == [SIZES[0]]
    cache.close()
    assert sizes(tmp_path) == []


def test_a_cache_that_stays_as_it_was_outlives_the_last_that_uses_it(tmp_path: Path) -> None:
    cache = open_response_cache(tmp_path, SIZES[0])
    assert cache is not None
    cache.close()
    assert sizes(tmp_path) == [SIZES[0]]
