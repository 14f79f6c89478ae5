"""What the controller tells of ensembles that lack a step, and of models that were unloaded."""

from pathlib import Path

from deployments.control.desired_state import DesiredState, unloaded
from deployments.control.directory import UNAVAILABLE, ModelEntry, VersionEntry
from deployments.control.model_table import ModelTable
from tests.deployments.control.test_desired_state import write
from tests.deployments.control.test_former_places import ENSEMBLE, Repository

OUTER = ENSEMBLE.replace('"step"', '"inner"')


def started(root: Path) -> tuple[Repository, DesiredState, ModelTable]:
    """Have a model, an ensemble of it and an ensemble of that ensemble be ready."""
    write(root, "step", "")
    for name, config in (("inner", ENSEMBLE), ("outer", OUTER)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
    repository, table = Repository(root), ModelTable()
    desired = repository.read()
    table.replace(desired, {})
    for entry in table.models.values():
        entry.versions[1].loaded("", 1.0)
    return repository, desired, table


def told(table: ModelTable, name: str) -> VersionEntry:
    return ModelEntry.from_dict(table.tables()["models"][name], None).versions[1]


def test_an_ensemble_whose_step_was_unloaded_has_not_failed(tmp_path: Path) -> None:
    repository, desired, table = started(tmp_path)
    table.replace(unloaded(repository.options, desired, ["step"]), {})
    for name, lacks in (("inner", "step"), ("outer", "inner")):
        version = told(table, name)
        assert (version.state, version.left, version.taken) == (UNAVAILABLE, True, False)
        assert version.reason.startswith(f"ensemble '{name}' depends on '{lacks}' which has no loaded version.")


def test_an_ensemble_whose_step_failed_has_failed(tmp_path: Path) -> None:
    _, _, table = started(tmp_path)
    table.models["step"].versions[1].loaded("it did not load", 1.0)
    for name in ("inner", "outer"):
        assert (told(table, name).state, told(table, name).left) == (UNAVAILABLE, False)


def test_when_a_model_was_unloaded_is_told_from_then_on(tmp_path: Path) -> None:
    repository, desired, _ = started(tmp_path)
    now_s = 1000.0
    table = ModelTable(lambda: now_s)
    table.replace(desired, {})
    assert [told(table, name).left_s for name in ("step", "outer")] == [0, 0]
    table.replace(unloaded(repository.options, desired, ["outer"]), {})
    now_s = 2000.0
    table.replace(unloaded(repository.options, desired, ["outer", "inner"]), {})
    table.left((), ())
    assert [told(table, name).left_s for name in ("step", "inner", "outer")] == [0, 2000, 1000]
    now_s = 3000.0
    table.replace(desired, {})
    assert [told(table, name).left_s for name in ("step", "inner", "outer")] == [0, 0, 0]
    successors = ModelTable(lambda: now_s)
    successors.replace(unloaded(repository.options, desired, ["outer"]), {})
    assert 0 < told(successors, "outer").left_s < 10, "when it was under a former controller is not known"


def test_nothing_is_kept_of_the_configurations_of_models_that_are_gone(tmp_path: Path) -> None:
    repository, desired, table = started(tmp_path)
    table.replace(unloaded(repository.options, desired, ["outer"]), {})
    assert table._json.keys() == {"step", "inner"}
