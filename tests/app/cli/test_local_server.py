"""What `eagleray serve` prints for whoever starts it."""

import json
import shlex

from app.cli.local_server import example_request
from deployments.control.directory import READY, Directory, ModelEntry, VersionEntry


def test_what_is_to_be_tried_can_be_pasted_into_a_shell_whatever_names_hold() -> None:
    name, tensor = "a&b<c> it's %2F/😀", "it's $HOME"
    config = {"name": name, "max_batch_size": 0, "input": [{"name": tensor, "data_type": "TYPE_FP32", "dims": ["2"]}]}
    entry = ModelEntry(json.dumps(config), versions={1: VersionEntry(READY)})
    found = example_request(Directory(models={name: entry}))
    assert found is not None
    path, body = shlex.split(" ".join(found), posix=True)
    assert path == "/v2/models/a%26b%3Cc%3E%20it%27s%20%252F%2F%F0%9F%98%80/infer"
    assert json.loads(body)["inputs"][0]["name"] == tensor
