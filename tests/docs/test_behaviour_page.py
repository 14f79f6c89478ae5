"""Each sentence of `docs/behaviour.md` has a test, and the tests that `behaviour.TESTS` names exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.behaviour import TESTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "behaviour.md"
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9`*'\"])")


def sentences(page: str) -> list[str]:
    """Return the sentences and the rows of tables, headings left out."""
    found: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=\* )|\n(?=\|)", page):
        text = " ".join(block.split()).removeprefix("* ")
        if text.startswith("|"):
            found.append(text)
        elif text and not text.startswith("#"):
            found += _END.split(text)
    return [text for index, text in enumerate(found) if not _is_head_of_table(found, index)]


def _is_head_of_table(found: list[str], index: int) -> bool:
    return found[index].startswith("|--") or "".join(found[index + 1 : index + 2]).startswith("|--")


SENTENCES = sentences(PAGE.read_text())


def test_every_sentence_has_a_test() -> None:
    untested = [sentence for sentence in SENTENCES if not any(key in sentence for key in TESTS)]
    assert not untested, "name the test of each of these sentences in tests/docs/behaviour/:\n" + "\n".join(untested)


@pytest.mark.parametrize("key", TESTS)
def test_every_key_is_in_one_sentence(key: str) -> None:
    count = sum(key in sentence for sentence in SENTENCES)
    assert count == 1, f"{key!r} is in {count} sentences of docs/behaviour.md; change it in tests/docs/behaviour/"


@pytest.mark.parametrize("key", TESTS)
def test_the_tests_of_a_sentence_exist(key: str) -> None:
    assert TESTS[key], f"no test is named for {key!r}"
    for named in TESTS[key]:
        path, _, function = named.partition("::")
        assert function in _functions(path), f"tests/{named}, which checks {key!r}, does not exist"


@cache
def _functions(path: str) -> frozenset[str]:
    file = ROOT / "tests" / path
    if not file.is_file():
        return frozenset()
    body = ast.parse(file.read_text()).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_sentences_are_told_apart() -> None:
    page = "# T\n\nOne of A.B. Two:\n`c`. 503 is three.\n\n| h |\n|---|\n| row one. Still |\n| two |\n\n* Point one\n  goes on. Next"
    assert sentences(page) == [
        "One of A.B.",
        "Two: `c`.",
        "503 is three.",
        "| row one. Still |",
        "| two |",
        "Point one goes on.",
        "Next",
    ]
