"""A graph, and Python models, loaded and closed again."""

from dataclasses import replace

import pytest
from onnx_models import write_model as write_graph
from python_models import ECHO_CONFIG, instances, write_model

from deployments.backends.python.backend import PythonBackend


@pytest.fixture(params=[True, False], ids=["here", "process"])
def runs_here(request):
    """Whether instances run in the process of the test."""
    return request.param


@pytest.fixture
def load(tmp_path, runs_here):
    """Load a model's code into one instance, here or in a process of its own, closed at the end."""
    loaded = []

    def load_one(code, config=ECHO_CONFIG, files=None, **backend):
        package = write_model(tmp_path, code, config, files)
        specs = [replace(spec, own_process=not runs_here) for spec in instances(package)]
        [instance] = PythonBackend(**backend).load(package, specs)
        loaded.append(instance)
        return instance

    yield load_one
    for instance in loaded:
        instance.close()


@pytest.fixture
def doubling(tmp_path):
    """A graph that gives X + X as Y, and X as Z."""
    return write_graph(
        tmp_path / "model.onnx",
        ["Add X,X Y", "Identity X Z"],
        ["X:FLOAT:n,2"],
        ["Y:FLOAT:n,2", "Z:FLOAT:n,2"],
    )
