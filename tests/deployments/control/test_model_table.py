"""What the controller tells of ensembles that lack a step, and of models that were unloaded."""

from pathlib import Path

from deployments.control.desired_state import DesiredState, unloaded
from deployments.control.directory import READY, UNAVAILABLE, ModelEntry, VersionEntry
from deployments.control.model_table import LONG_GONE_S, ModelTable
from tests.deployments.control.test_desired_state import write
from tests.deployments.control.test_former_places import ENSEMBLE, PLACED, Repository

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


def test_a_node_that_cannot_load_an_embedded_model_takes_it_from_no_other(tmp_path: Path) -> None:
    write(tmp_path, "m", PLACED % "embedded")
    table = ModelTable()
    table.replace(Repository(tmp_path).read(), {})

    def state(node: str, reason: str, digest: str = "now") -> tuple[str, str]:
        table.take_embedded([["m", 1, reason, 1.0, digest]], node, f"ingress-{node}")
        return told(table, "m").state, told(table, "m").reason

    assert state("b", "no such file") == (UNAVAILABLE, "no such file")
    assert state("a", "") == (READY, "")
    assert state("b", "no such file") == (READY, "")
    assert state("b", "no such file", "changed") == (UNAVAILABLE, "no such file")
    assert state("a", "", "changed") == (READY, "")
    assert state("a", "it broke", "changed") == (UNAVAILABLE, "it broke; it is tried again")
    assert told(table, "m").taken
    assert state("a", "", "changed") == (READY, "")
    table.keep_nodes({"b"})
    again = (UNAVAILABLE, "no such file; it is tried again")
    assert state("b", "no such file", "changed") == again, "the other one is gone"
    assert state("b", "no such file", "changed anew") == (UNAVAILABLE, "no such file")
    assert not told(table, "m").taken


def test_what_was_unloaded_an_hour_ago_is_long_gone(tmp_path: Path) -> None:
    repository, desired, _ = started(tmp_path)
    now_s = 1000.0
    table = ModelTable(lambda: now_s)

    def long_gone() -> list[str]:
        table.note_long_gone()
        return [name for name in ("step", "inner", "outer") if told(table, name).long_gone]

    table.replace(desired, {})
    table.replace(unloaded(repository.options, desired, ["outer"]), {})
    now_s += LONG_GONE_S - 1000
    table.replace(unloaded(repository.options, desired, ["outer", "inner"]), {})
    table.left((), ())
    assert long_gone() == []
    now_s += 999
    assert long_gone() == []
    now_s += 1
    assert long_gone() == ["outer"]
    now_s += LONG_GONE_S - 1000
    assert long_gone() == ["inner", "outer"]
    table.replace(desired, {})
    assert long_gone() == []
    successors = ModelTable(lambda: now_s)
    successors.replace(unloaded(repository.options, desired, ["outer"]), {})
    assert told(successors, "outer").long_gone, "when it was under a former controller is not known"


def test_nothing_is_kept_of_the_configurations_of_models_that_are_gone(tmp_path: Path) -> None:
    repository, desired, table = started(tmp_path)
    table.replace(unloaded(repository.options, desired, ["outer"]), {})
    assert table._json.keys() == {"step", "inner"}
