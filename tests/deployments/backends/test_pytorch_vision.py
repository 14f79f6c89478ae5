"""TorchScript with operators of torchvision, whose place a module with one operator takes."""

import os
import subprocess
import sys

import numpy as np
import pytest
from torch_models import fp32, load_module, run

from deployments.backends.backend import ModelLoadError

TORCHVISION = """
import torch

LIBRARY = torch.library.Library("torchvision", "DEF")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
"""
SAVE = """
import sys
import torch, torchvision

def forward(x):
    return torch.ops.torchvision.twice(x)

torch.jit.trace(forward, (torch.ones(1, 2),)).save(sys.argv[1])
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A model with the operator, in a process that does not know it yet; the module can be imported."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "torchvision.py").write_text(TORCHVISION)
    (tmp_path / "net" / "1").mkdir(parents=True)
    command = [sys.executable, "-W", "ignore", "-c", SAVE, str(tmp_path / "net" / "1" / "model.pt")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(folder)}, timeout=100)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    yield tmp_path
    if imported := sys.modules.get("torchvision"):
        imported.LIBRARY._destroy()


def test_its_operators_are_there_where_it_is_installed(module):
    (instance,) = load_module(module, None, fp32("x"), fp32("y"))
    assert run(instance, {"x": np.float32([[1, 2]])}) == [{"y": [[2, 4]]}]


def test_it_is_named_where_it_is_not_installed(module, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ModelLoadError) as caught:
        load_module(module, None, fp32("x"), fp32("y"))
    assert caught.value.reason == (
        "model 'net' has operators of 'torchvision', which is not installed here; install it with: "
        "pip install torchvision"
    )
