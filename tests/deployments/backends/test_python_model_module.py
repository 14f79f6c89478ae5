"""Helper modules of Python models: found, and never another model's."""

import builtins
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from python_models import ECHO_CONFIG, floats, instances, request_of, run, write_model

import protocol
from deployments.backends.python.backend import PythonBackend

ANSWER = """
    class TritonPythonModel:
        def initialize(self, args):
            {initialize}
        def execute(self, requests):
            {execute}
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), value, np.float32))])]
"""


def model(imports="pass", initialize="pass", execute="pass"):
    return f"\n    {imports}\n" + ANSWER.format(initialize=initialize, execute=execute)


def value_of(instance):
    return float(run(instance, request_of(X=floats(0)))[0].outputs["Y"][0, 0])


def load_two(tmp_path, code, files):
    """Load two models with equally named helpers, whose text holds VALUE, and return what each answers."""
    loaded = []
    for name, value in (("first", "1"), ("second", "2")):
        config = ECHO_CONFIG.replace('"echo"', f'"{name}"')
        own = {path: text.replace("VALUE", value) for path, text in files.items()}
        package = write_model(tmp_path, code, config, own)
        loaded.extend(PythonBackend().load(package, instances(package)))
    try:
        return [value_of(instance) for instance in loaded]
    finally:
        for instance in loaded:
            instance.close()


@pytest.mark.parametrize(
    ("code", "files"),
    [
        (model("import helper", execute="value = helper.value"), {"1/helper.py": "value = VALUE"}),
        (model("from helper import value", execute="pass"), {"helper.py": "value = VALUE"}),
        (model("from .helper import value", execute="pass"), {"1/helper.py": "value = VALUE"}),
        (model(execute="from helper import value"), {"1/helper.py": "value = VALUE"}),
        (
            model("import kit.inner as inner", execute="value = inner.value"),
            {"1/kit/__init__.py": "", "1/kit/inner.py": "from .deep import value",
             "1/kit/deep.py": "from base import value", "base.py": "value = VALUE"},
        ),
        (model("import kit.inner", execute="value = kit.inner.value"), {"kit/inner.py": "value = VALUE"}),
        (
            model("import os, sys; sys.path.append(os.path.join(os.path.dirname(__file__), 'lib')); import dep",
                  execute="value = dep.value"),
            {"1/lib/dep.py": "value = VALUE"},
        ),
        (
            model(execute="import importlib; value = importlib.import_module('late').value"),
            {"1/late.py": "value = VALUE"},
        ),
        (model("import protocol", execute="value = protocol.value"), {"1/protocol.py": "value = VALUE"}),
        (
            model(execute="import importlib; value = importlib.import_module('protocol').value"),
            {"1/protocol.py": "value = VALUE"},
        ),
        (
            model(execute="import pickle; value = pickle.loads(b'cprotocol\\nvalue\\n.')"),
            {"1/protocol.py": "value = VALUE"},
        ),
    ],
    ids=["import", "model folder", "relative", "in execute", "package", "folder", "sys.path", "by name", "our name",
         "our name by name", "our name in a pickle"],
)  # fmt: skip
def test_models_with_equally_named_helpers_do_not_clash(tmp_path, code, files):
    before, path = set(sys.modules), list(sys.path)
    assert load_two(tmp_path, code, files) == [1, 2]
    assert sys.modules["protocol"].__spec__ is protocol.__spec__
    assert sys.path == path
    leftovers = {name for name in set(sys.modules) - before if not name.startswith(("numpy", "encodings"))}
    assert not {
        name for name in leftovers if "helper" in name or "eagleray_model" in name or name in ("late", "dep", "kit")
    }


def test_classes_pickled_by_their_plain_module_name_load_in_initialize(tmp_path):
    code = model(initialize="import pickle; self.scale = pickle.loads(b'cshapes\\nScale\\n.')",
                 execute="from shapes import Scale; value = self.scale is Scale and Scale.value")  # fmt: skip
    assert load_two(tmp_path, code, {"1/shapes.py": "class Scale:\n    value = VALUE"}) == [1, 2]
    assert "shapes" not in sys.modules


def test_data_folder_does_not_hide_an_installed_package(tmp_path):
    code = model("import numpy.linalg", execute="value = numpy.linalg.norm([3, 4])")
    package = write_model(tmp_path, code, files={"1/numpy/vocab.txt": "a"})
    [instance] = PythonBackend().load(package, instances(package))
    assert value_of(instance) == 5
    instance.close()


def test_repository_stays_as_it_was(tmp_path):
    package = write_model(tmp_path, model("import helper", execute="value = 1"), files={"1/helper.py": ""})
    before = sorted(tmp_path.rglob("*"))
    [instance] = PythonBackend().load(package, instances(package))
    assert sorted(tmp_path.rglob("*")) == before
    instance.close()


def test_folders_of_the_model_leave_sys_path_when_it_is_loaded(tmp_path):
    initialize = "import os, sys; sys.path.insert(0, os.path.dirname(__file__))"
    package = write_model(
        tmp_path, model(initialize=initialize, execute="from late import value"), files={"1/late.py": "value = 4"}
    )
    path = list(sys.path)
    [instance] = PythonBackend().load(package, instances(package))
    assert sys.path == path
    assert value_of(instance) == 4
    instance.close()


def test_model_knows_its_folder(tmp_path):
    package = write_model(
        tmp_path,
        model(execute="import os; value = os.path.samefile(pb_utils.get_model_dir(), os.path.dirname(__file__))"),
    )
    [instance] = PythonBackend().load(package, instances(package))
    assert value_of(instance) == 1
    instance.close()


@pytest.mark.parametrize("own_process", [False, True])
def test_a_python_based_backend_finds_what_stands_beside_it(tmp_path, own_process):
    shared = tmp_path / "backends/shared"
    shared.mkdir(parents=True)
    (shared / "helper.py").write_text("value = 7")
    package = write_model(tmp_path, model("import helper", execute="value = helper.value"), files={"helper.py": ""})
    (shared / "model.py").write_text(Path(package.file_path).read_text())
    package = replace(package, file_path=str(shared / "model.py"))
    (spec,) = instances(package)
    (instance,) = PythonBackend().load(package, [replace(spec, own_process=own_process)])
    assert value_of(instance) == 7
    instance.close()


@pytest.mark.parametrize("where", ["imports", "initialize"])
def test_what_a_model_makes_builtin_is_builtin_for_it(tmp_path, monkeypatch, where):
    monkeypatch.setattr(builtins, "made_builtin", 0, raising=False)
    monkeypatch.delattr(builtins, "made_builtin")  # and once more when the test ends
    code = model(**{where: "import builtins; builtins.made_builtin = 3"}, execute="value = made_builtin")
    package = write_model(tmp_path, code, ECHO_CONFIG)
    (instance,) = PythonBackend().load(package, instances(package))
    try:
        assert value_of(instance) == 3
    finally:
        instance.close()
        vars(builtins).pop("made_builtin", None)


def test_what_is_installed_where_eagleray_is_can_be_imported(tmp_path, monkeypatch):
    home = str(Path(protocol.__file__).resolve().parents[1])
    monkeypatch.setenv("PYTHONPATH", home)  # a folder of installed packages, as of `pip install --target`
    package = write_model(
        tmp_path,
        """
        import benchmarks
        class TritonPythonModel:
            def execute(self, requests): ...
        """,
    )
    (instance,) = PythonBackend().load(package, [replace(spec, own_process=True) for spec in instances(package)])
    instance.close()
