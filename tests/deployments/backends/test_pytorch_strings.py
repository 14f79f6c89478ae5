"""Strings in and out of TorchScript modules."""

from types import SimpleNamespace
from typing import List  # noqa: UP035, TorchScript knows this name only

import numpy as np
import pytest
from torch_models import load_module, run

from protocol.errors import InvalidArgument

torch = pytest.importorskip("torch")
WORDS, LOUD = [("words", "TYPE_STRING", "[-1]")], [("loud", "TYPE_STRING", "[-1]")]


class Shout(torch.nn.Module):
    def forward(self, words: List[str]) -> List[str]:  # noqa: UP006
        return [word + "!" for word in words]


@pytest.mark.parametrize(
    ("more", "shape"), [("", (2,)), ("max_batch_size: 8", (2, 1))], ids=["one dimension", "rows of one"]
)
def test_strings_are_lists_of_str(tmp_path, more, shape):
    [instance] = load_module(tmp_path, Shout(), WORDS, LOUD, more=more)
    words = np.array([b"hey", "grüß".encode()], object).reshape(shape)
    [result] = run(instance, {"words": words})
    assert result["loud"] == np.array([b"hey!", "grüß!".encode()], object).reshape(shape).tolist()


@pytest.mark.parametrize(
    ("more", "shape"), [("", (0,)), ("max_batch_size: 8", (0, 1))], ids=["one dimension", "rows of one"]
)
def test_an_empty_list_is_an_output_without_elements(tmp_path, more, shape):
    [instance] = load_module(tmp_path, Shout(), WORDS, LOUD, more=more)
    assert run(instance, {"words": np.empty(shape, object)}) == [{"loud": []}]


@pytest.mark.parametrize("more", ["", "max_batch_size: 8"])
def test_bytes_that_are_not_text_fail_only_their_own_request(tmp_path, more):
    [instance] = load_module(tmp_path, Shout(), WORDS, LOUD, more=more)
    shape = (1, 1) if more else (1,)
    good, bad = ({"words": np.full(shape, text, object)} for text in (b"hey", b"\xff"))
    message = "input 'words' of type BYTES is not valid UTF-8: invalid start byte"
    fine = {"loud": np.full(shape, b"hey!", object).tolist()}
    assert run(instance, good, bad, good) == [fine, (InvalidArgument, message), fine]


RAGGED = """max_batch_size: 8 batch_output {
  target_name: "loud" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "words"
}"""


def test_requests_with_more_and_fewer_strings_share_a_batch(tmp_path):
    inputs = [("words", "TYPE_STRING", "[-1] allow_ragged_batch: true")]
    [instance] = load_module(tmp_path, Shout(), inputs, LOUD, more=RAGGED)
    requests = [{"words": np.array([words], object)} for words in ([b"a"], [b"b", b"c"], [])]
    assert run(instance, *requests) == [{"loud": [[b"a!"]]}, {"loud": [[b"b!", b"c!"]]}, {"loud": [[]]}]


def test_nothing_is_on_its_way_to_a_gpu_from_requests_that_are_answered_without_a_run(tmp_path):
    [instance] = load_module(tmp_path, Shout(), WORDS, LOUD)
    waited = []
    instance._stream = SimpleNamespace(synchronize=lambda: waited.append(True))
    bad, good = ({"words": np.array([text], object)} for text in (b"\xff", b"hey"))
    run(instance, bad, good)
    assert len(waited) == 3  # for both together, and for each
