"""A batch's outputs are cut into those of its requests, whatever the model has returned."""

import re

import numpy as np
import pytest

from deployments.backends.row_batch import share_out
from protocol.errors import Internal, Unsupported
from protocol.signature import Signature
from tests.deployments.fakes import Answers, config_of

TENSORS = "".join(f'output {{ name: "{name}" data_type: TYPE_INT32 dims: 1 }} ' for name in "YZ")
SIGNATURE = Signature.from_config(config_of(f"max_batch_size: 8 {TENSORS}"))


def requests_of(*rows, outputs=None):
    return [Answers().request(str(index), count, outputs=outputs) for index, count in enumerate(rows)]


def shared(requests, **row_counts):
    """Return what each request gets of outputs that number their rows, an error as its class."""
    outputs = {name: np.arange(count).reshape(-1, 1) for name, count in row_counts.items()}
    return [
        type(each)
        if isinstance(each, Unsupported)
        else {name: array[:, 0].tolist() for name, array in each.outputs.items()}
        for each in share_out(requests, outputs, SIGNATURE)
    ]


CUTS = {
    "each its own": (requests_of(1, 2), {"Y": 3}, [{"Y": [0]}, {"Y": [1, 2]}]),
    "one alone": (requests_of(2), {"Y": 2}, [{"Y": [0, 1]}]),
    "rows are missing": (
        requests_of(1, 2, 1),
        {"Y": 3, "Z": 4},
        [{"Y": [0], "Z": [0]}, {"Y": [1, 2], "Z": [1, 2]}, Unsupported],
    ),
    "rows of one alone are missing": (requests_of(2), {"Y": 1}, [Unsupported]),
    "no rows": (requests_of(1, 1), {"Y": 0}, [Unsupported, Unsupported]),
    "nobody wants it": (requests_of(1, 1, outputs=("Y",)), {"Y": 2, "Z": 5}, [{"Y": [0]}, {"Y": [1]}]),
}


@pytest.mark.parametrize(("requests", "rows", "expected"), CUTS.values(), ids=CUTS)
def test_each_request_gets_its_rows(requests, rows, expected):
    assert shared(requests, **rows) == expected


def test_more_rows_than_the_batch_has_are_nobodys():
    message = (
        "failed to split the output tensor 'Y' in responses: expected batch size of 2 in model output, got shape [3, 1]"
    )
    with pytest.raises(Internal, match=re.escape(message)):
        shared(requests_of(1, 1), Y=3)
