"""Python models of an Eagleray that lies among installed packages, as in its image, and not in a folder of its own."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
OURS = ("app", "deployments", "eagleray", "protocol", "repository_loader")

IN_PROCESS_OF_ITS_OWN = """
    from dataclasses import replace
    from deployments.backends.python.backend import PythonBackend
    code = '''
        import numpy.polynomial, only_here
        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([], parameters={"value": only_here.VALUE}) for _ in requests]
    '''
    package = write_model(Path(sys.argv[1]), code)
    specs = [replace(spec, own_process=True) for spec in instances(package)]
    (instance,) = PythonBackend().load(package, specs)
    print(run(instance, request_of(X=floats(1)))[0].parameters["value"])
    instance.close()
"""

COMPLETED_ELSEWHERE = """
    from deployments.backends.python.auto_complete import complete
    code = '''
        import shared
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.set_max_batch_size(shared.VALUE)
                return config
    '''
    path = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{sys.argv[2]}" }} }}'
    package = write_model(Path(sys.argv[1]), code, 'name: "echo" backend: "python" ' + path)
    print(complete(package.config, package.model_path, package.version_path, package.file_path).max_batch_size)
"""


def packages_of(environment: Path) -> Path:
    (packages,) = environment.glob("lib/python*/site-packages")
    return packages


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A virtual environment with Eagleray, all that it needs, and a module of its own."""
    root = tmp_path_factory.mktemp("installed") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True)
    packages = packages_of(root)
    for package in OURS:
        shutil.copytree(ROOT / package, packages / package, ignore=shutil.ignore_patterns("__pycache__"))
    for part in Path(np.__file__).parents[1].iterdir():
        if part.suffix != ".pth" and not (packages / part.name).exists():
            (packages / part.name).symlink_to(part)
    (packages / "only_here.py").write_text("VALUE = 17")
    (packages / "shared.py").write_text("VALUE = 17")
    return root


def printed(installed: Path, code: str, *arguments: Path) -> str:
    helpers = f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n"
    helpers += "from pathlib import Path; from python_models import *\n"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [installed / "bin" / "python", "-P", "-c", helpers + textwrap.dedent(code), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables).stdout


def test_a_process_of_its_own_finds_what_is_installed(tmp_path, installed):
    assert printed(installed, IN_PROCESS_OF_ITS_OWN, tmp_path) == "17\n"


def test_a_configuration_is_completed_with_what_its_environment_has(tmp_path, installed):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    packages = packages_of(environment)
    for part in Path(np.__file__).parents[1].glob("numpy*"):
        (packages / part.name).symlink_to(part)
    (packages / "shared.py").write_text("VALUE = 18")
    assert printed(installed, COMPLETED_ELSEWHERE, tmp_path, environment) == "18\n"
