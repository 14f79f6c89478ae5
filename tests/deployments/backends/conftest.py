"""Python models, loaded and closed again."""

import pytest
from python_models import ECHO_CONFIG, instances, write_model

from deployments.backends.python.backend import PythonBackend


@pytest.fixture
def load(tmp_path):
    """Load a model's code into one instance, closed at the end."""
    loaded = []

    def load_one(code, config=ECHO_CONFIG, files=None, **backend):
        package = write_model(tmp_path, code, config, files)
        [instance] = PythonBackend(**backend).load(package, instances(package))
        loaded.append(instance)
        return instance

    yield load_one
    for instance in loaded:
        instance.close()
