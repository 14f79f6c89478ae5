"""What Triton's JSON parser takes beyond JSON, and what neither takes."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repository_loader.lenient_json import loads, normalised

TAKEN: dict[str, tuple[str, Any]] = {
    "a name without quotes": ("{direct: {}}", {"direct": {}}),
    "names behind spaces and digits": ('{\n a_1 :1,"b":2, _c\t:\n3}', {"a_1": 1, "b": 2, "_c": 3}),
    "texts in single quotes": ("{'a': ['b', 'ö']}", {"a": ["b", "ö"]}),
    "quotes within quotes": (r"""['"', '\'', '\\', "'", '\"', '\\\'"']""", ['"', "'", "\\", "'", '"', "\\'\""]),
    "an escape in single quotes": (r"['\u00e9\n']", ["é\n"]),
    "what looks like it, within a text": (
        """{a: "{b: 'c',}", 'd,}': '"e": f:'}""",
        {"a": "{b: 'c',}", "d,}": '"e": f:'},
    ),
    "a comma at the end": ('{"a": [1, 2,], "b": {"c": 3 , },\n}', {"a": [1, 2], "b": {"c": 3}}),
    "constants": ("[true, false, null,]", [True, False, None]),
    "numbers": ("{a: 1e5, b: -2.5E+3,}", {"a": 1e5, "b": -2500.0}),
}
REFUSED = {
    "nothing": "",
    "a comment": '{"a": 1 // one\n}',
    "a comment in stars": "{/* */}",
    "a text without its end": '{"a": "b',
    "a single quote without its end": "{'a': 'b",
    "a single quote": "'",
    "an escape without its end": "['\\",
    "a constant as a name": "{true: 1}",
    "a number as a name": "{1: 1}",
    "a name with a digit in front": "{1a: 1}",
    "a word as a value": "{a: b}",
    "a comma alone": "[,]",
    "a comma alone in an object": "{ , }",
    "two commas": "[1,\n,]",
    "no comma": "{a: 1 b: 2}",
}


@pytest.mark.parametrize(("document", "value"), TAKEN.values(), ids=TAKEN)
def test_takes_what_triton_takes(document: str, value: Any) -> None:
    assert loads(document) == value


@pytest.mark.parametrize("document", REFUSED.values(), ids=REFUSED)
def test_refuses_the_rest_with_the_words_of_a_strict_parser(document: str) -> None:
    with pytest.raises(json.JSONDecodeError) as strict:
        json.loads(document)
    with pytest.raises(json.JSONDecodeError) as lenient:
        loads(document)
    assert str(lenient.value) == str(strict.value)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters() | st.sampled_from("'\"\\,:{}[]a ")),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=4), values, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_leaves_json_as_it_is(value: Any, ascii_only: bool, indent: Any) -> None:
    document = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert normalised(document) == document


@given(st.text(st.sampled_from("'\"\\,:{}[]a1 \n-")))
def test_what_is_normalised_once_stays_so(document: str) -> None:
    try:
        value = json.loads(document)
    except json.JSONDecodeError:
        assert isinstance(normalised(document), str)
    else:
        assert json.loads(normalised(document)) == value


@pytest.mark.parametrize(
    "piece", ["a", "'", '"', "\\", '\\"', '"\\', ", ", ",", "[,", "[", "{", "a ", "a:", "1", "'\\", "\\'", " ", "', "]
)
def test_takes_time_in_proportion_to_the_length(piece: str) -> None:
    document = "[" + piece * ((1 << 20) // len(piece))
    began_s = time.thread_time()
    normalised(document)
    assert time.thread_time() - began_s < 5
