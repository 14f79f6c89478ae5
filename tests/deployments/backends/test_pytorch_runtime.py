"""PyTorch models that are Python code: `backend: "pytorch"` with `runtime: "model.py"`."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from python_models import request_of, run

from deployments.backends.backend import ModelLoadError
from deployments.backends.python.backend import PythonBackend
from protocol.errors import ServingError
from repository_loader.package import InstanceSpec
from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions
from tests.repository_loader.repositories import write

torch = pytest.importorskip("torch")

CONFIG = """
    backend: "pytorch" runtime: "model.py" max_batch_size: 8
    input { name: "X" data_type: TYPE_FP32 dims: [ 3 ] }
    output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
LINEAR = """
import torch
from torch.nn import Linear  # comes before the model by name, and takes arguments


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = Linear(width, 2)

    def forward(self, x):
        return self.inner(x)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer(3)

    def forward(self, x):
        return self.layer(x)
"""
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
WEIGHTS = {"layer.inner.weight": torch.tensor([[1.0, 0, 0], [0, 1.0, 1.0]]), "layer.inner.bias": torch.tensor([0.5, 0])}
ANSWERS = np.stack([ROWS[:, 0] + 0.5, ROWS[:, 1] + ROWS[:, 2]], axis=1)


def compiled(options: str) -> str:
    text = options.replace('"', '\\"')
    return f'parameters {{ key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value {{ string_value: "{text}" }} }}'


def threads(count: str) -> str:
    return f'parameters {{ key: "NUM_THREADS" value {{ string_value: "{count}" }} }}'


AS_IT_IS = compiled('{"disable": true}')


class Loader:
    """Loads what is in a folder, and ends it."""

    def __init__(self, root: Path, *, own_process: bool) -> None:
        self.version = root / "models/m/1"
        self.version.mkdir(parents=True)
        self._own_process = own_process
        self._loaded = []

    def __call__(self, config=AS_IT_IS, kind="CPU", **files):
        root = self.version.parent.parent
        (root / "m/config.pbtxt").write_text(CONFIG + config)
        write(self.version, {f"{name}.py": code for name, code in files.items()})
        (model,) = load_repositories([str(root)], LoaderOptions(), None).models.values()
        assert model.failure is None and not model.findings
        specs = [InstanceSpec("m_0", kind, 0, own_process=self._own_process)]
        self._loaded += PythonBackend().load(model.packages[0], specs)
        return self._loaded[-1]

    def close(self):
        for instance in self._loaded:
            instance.close()


@pytest.fixture(params=["here", "apart"])
def load(request, tmp_path):
    loader = Loader(tmp_path, own_process=request.param == "apart")
    yield loader
    loader.close()


@pytest.fixture
def load_here(tmp_path):
    loader = Loader(tmp_path, own_process=False)
    yield loader
    loader.close()


@pytest.fixture
def load_apart(tmp_path):
    """In a process of its own, as what PyTorch is told of threads is told to all of a process."""
    loader = Loader(tmp_path, own_process=True)
    yield loader
    loader.close()


def outputs(instance, *batch):
    return [result.outputs["Y"].tolist() for result in run(instance, *(request_of(X=rows) for rows in batch))]


@pytest.mark.parametrize("options", ['{"disable": true}', '{"backend": "eager"}'])
def test_a_class_with_its_weights_answers_each_request_of_a_batch(load, options):
    torch.save(WEIGHTS, load.version / "model.pt")
    instance = load(compiled(options), model=LINEAR)
    for parts in ([ROWS], [ROWS[:1], ROWS[1:3], ROWS[3:]], [ROWS[:2], ROWS[2:]]):
        assert np.concatenate(outputs(instance, *parts)).tolist() == ANSWERS.tolist()


def test_what_cannot_be_compiled_runs_as_it_is(load_apart, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/no/compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    code = LINEAR.replace("return self.layer(x)", "return torch.sin(x[:, :2]) * 2")  # takes a compiler
    [answered] = outputs(load_apart("", model=code), ROWS)
    np.testing.assert_allclose(answered, np.sin(ROWS[:, :2]) * 2, rtol=1e-5)


@pytest.mark.parametrize("options", ['{"disable": true}', '{"backend": "eager"}'])
def test_code_that_is_loaded_again_is_not_what_was_compiled_before(load_here, options):
    code = """
import torch
SCALE = torch.tensor([%d.0])
class Times(torch.nn.Module):
    def forward(self, x):
        return x[:, :2] * SCALE
class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(Times())
"""
    for factor in (2, 3):
        instance = load_here(compiled(options), model=code % factor)
        assert outputs(instance, ROWS) == [(factor * ROWS[:, :2]).tolist()]
        instance.close()
    assert not [name for name in sys.modules if name.startswith("pytorch_model")]
    assert not list(load_here.version.glob("**/*.pyc"))


def test_code_that_starts_processes_has_a_process_of_its_own(load_here):
    code = """
import multiprocessing, os, torch
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.full((len(x), 2), float(os.getpid()))
"""
    [[[pid, _]]] = outputs(load_here(model=code), ROWS[:1])
    assert pid != os.getpid()


def test_weights_may_be_left_out(load_here):
    assert np.shape(outputs(load_here(model=LINEAR), ROWS)) == (1, 4, 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_may_be_all(load):
    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x[:, :2]

    torch.jit.script(Double()).save(load.version / "model.pt")
    assert outputs(load(), ROWS) == [(2 * ROWS[:, :2]).tolist()]


def test_the_file_may_have_another_name(load_here):
    torch.save(WEIGHTS, load_here.version / "net.pt")
    instance = load_here(f'{AS_IT_IS} default_model_filename: "net.py"', net=LINEAR, model="raise AssertionError")
    assert outputs(instance, ROWS) == [ANSWERS.tolist()]


@pytest.mark.parametrize("name", ["scale", "protocol"])
def test_what_is_beside_the_model_can_be_imported(load, name):
    code = f"import torch, {name}\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return {name}.BY * x[:, :2]"
    assert outputs(load(model=code, **{name: "BY = 3"}), ROWS) == [(3 * ROWS[:, :2]).tolist()]


@pytest.mark.parametrize("kind", ["CPU", "MODEL"])
def test_a_model_runs_without_gradients_where_its_kind_says(load_here, kind):
    code = LINEAR.replace(
        "        return self.layer(x)",
        "        assert torch.is_inference_mode_enabled() and not self.training\n"
        "        assert x.device == self.layer.inner.weight.device\n        return self.layer(x)",
    )
    outputs(load_here(kind=kind, model=code), ROWS)


def test_threads_are_those_of_its_parameter(load_apart):
    code = "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return torch.full((len(x), 2), float(torch.get_num_threads()))"
    assert outputs(load_apart(AS_IT_IS + threads("2"), model=code), ROWS[:1]) == [[[2, 2]]]


@pytest.mark.parametrize(
    ("config", "code", "reason"),
    [
        (AS_IT_IS, None, r"version 1 has no file 'model\.py' or 'model\.pt'"),
        (f'{AS_IT_IS} default_model_filename: "net.py"', LINEAR, r"version 1 has no file 'net\.py'"),
        (AS_IT_IS, "import torch", r"'model\.py' has no class of torch\.nn\.Module"),
        (AS_IT_IS, "import nonesuch", "No module named 'nonesuch'"),
        (AS_IT_IS, LINEAR.replace("self.layer =", "self.other ="), "Error.* in loading state_dict for Net"),
        (AS_IT_IS + threads("two"), LINEAR, "parameter 'NUM_THREADS' must be a number of threads, got 'two'"),
        (compiled("{"), LINEAR, "parameter 'TORCH_COMPILE_OPTIONAL_PARAMETERS' is no JSON"),
        (compiled("[]"), LINEAR, r"parameter 'TORCH_COMPILE_OPTIONAL_PARAMETERS' must be a JSON object, got '\[\]'"),
        (compiled('{"model": 1}'), LINEAR, "'model' is not an optional parameter for 'torch.compile'"),
        (compiled('{"nonesuch": 1}'), LINEAR, "parameter 'TORCH_COMPILE_OPTIONAL_PARAMETERS': .*nonesuch"),
    ],
)
def test_what_cannot_be_loaded_is_said(load_here, config, code, reason):
    if code and ".inner" in code:
        torch.save(WEIGHTS, load_here.version / "model.pt")
    with pytest.raises(ModelLoadError) as refused:
        load_here(config, **({} if code is None else {"model": code}))
    assert re.search(reason, refused.value.reason, re.DOTALL), refused.value.reason
    assert not [name for name in sys.modules if name.startswith("pytorch_model_")]


def test_pickled_objects_are_not_run(load_here, tmp_path):
    marker = tmp_path / "ran"

    class Harm:
        def __reduce__(self):
            return Path.touch, (marker,)

    torch.save(Harm(), load_here.version / "model.pt")
    with pytest.raises(ModelLoadError):
        load_here(model=LINEAR)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("None", "output 'Y' must be a tensor, the model has returned NoneType"),
        ("{'y': x}", "output 'Y' must be a tensor, the model has returned dict"),
        ("()", "the model has returned 0 tensors, and its configuration has 1 outputs"),
        ("1 / 0", "division by zero"),
        ("x[:1, :2]", "split"),
    ],
)
def test_what_fails_in_a_request_is_said_and_the_next_is_answered(load, answer, reason):
    code = (
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return x[:, :2] if len(x) == 1 else {answer}"
    )
    instance = load(model=code)
    with pytest.raises(ServingError, match=reason):
        outputs(instance, ROWS)
    assert outputs(instance, ROWS[:1]) == [ROWS[:1, :2].tolist()]


def test_without_pytorch_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    loader = Loader(tmp_path, own_process=False)
    with pytest.raises(ModelLoadError, match="pip install torch"):
        loader(model=LINEAR)
