"""What the controller tells of ensembles that lack a step."""

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
