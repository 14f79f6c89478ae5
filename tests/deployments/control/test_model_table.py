"""What the controller tells of ensembles that lack a step, and of models that were unloaded."""

from pathlib import Path
from typing import Final

import pytest

from deployments.control.desired_state import DesiredState, unloaded
from deployments.control.directory import LOADING, READY, UNAVAILABLE, UNLOADING, ModelEntry, VersionEntry
from deployments.control.embedded_reports import WAIT_S
from deployments.control.model_table import LONG_GONE_S, ModelTable
from tests.deployments.backends.onnx_models import write_model
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


class Ingresses:
    """The model `m` in two ingresses of a node and one of another, and the table that they report to."""

    NODES: Final = {"a1": "a", "a2": "a", "b1": "b"}

    def __init__(self, root: Path) -> None:
        write(root, "m", PLACED % "embedded")
        self.repository, self.table = Repository(root), ModelTable()
        self.take(self.repository.read())

    def take(self, desired: DesiredState) -> None:
        self.desired = desired
        self.table.replace(desired, {})

    @property
    def digest(self) -> str:
        return str(self.table.tables()["embedded"]["m/1"]["digest"])

    def tell(self, ingress: str, *rows: tuple[str, str]) -> None:
        """Have an ingress report, of each row why it failed to load ("": it has loaded) what has a digest."""
        told = [["m", 1, reason, 1.0, digest] for reason, digest in rows]
        self.table.take_embedded(told, self.NODES[ingress], ingress)

    def state(self) -> tuple[str, str]:
        return told(self.table, "m").state, told(self.table, "m").reason


BESIDE = "it failed to load in 1 of 2 ingresses, on node {}: no disk; it is tried again"


@pytest.mark.parametrize("failing", ["a2", "b1"])
@pytest.mark.parametrize("failing_last", [True, False])
def test_an_ingress_that_cannot_load_an_embedded_model_takes_it_from_no_other(
    tmp_path: Path, failing: str, failing_last: bool
) -> None:
    ingresses = Ingresses(tmp_path)
    reports = {"a1": "", failing: "no disk"}
    for ingress in sorted(reports, reverse=not failing_last):
        ingresses.tell(ingress, (reports[ingress], ingresses.digest))
    beside = BESIDE.format(ingresses.NODES[failing])
    for _ in range(2):
        for ingress in reports:  # which report again whenever another embedded model has been loaded
            assert ingresses.state() == (READY, beside) and told(ingresses.table, "m").taken
            ingresses.tell(ingress, (reports[ingress], ingresses.digest))
    ingresses.tell(failing, ("", ingresses.digest))
    assert ingresses.state() == (READY, "")


@pytest.mark.parametrize("failing_last", [True, False])
def test_what_another_ingress_has_loaded_is_tried_again_where_it_failed(tmp_path: Path, failing_last: bool) -> None:
    now_s = 1000.0
    ingresses = Ingresses(tmp_path)
    ingresses.table = ModelTable(lambda: now_s)
    ingresses.take(ingresses.desired)
    for ingress in ("a1", "a2") if failing_last else ("a2", "a1"):
        ingresses.tell(ingress, ("no disk" if ingress == "a2" else "", ingresses.digest))
    now_s += 60
    assert ingresses.table.tries.due() == {("", "a2"): [("m", 1)]}


def test_an_ingress_that_has_gone_counts_no_more(tmp_path: Path) -> None:
    ingresses = Ingresses(tmp_path)
    ingresses.tell("a1", ("", ingresses.digest))
    ingresses.tell("a2", ("no disk", ingresses.digest))
    ingresses.table.keep_ingresses({"a1", "b1"})
    assert "a1" in ingresses.table.reports and "a2" not in ingresses.table.reports
    assert ingresses.state() == (READY, "") and not ingresses.table.tries.failed
    ingresses.tell("b1", ("no disk", ingresses.digest))
    assert ingresses.state() == (READY, BESIDE.format("b"))
    ingresses.table.keep_ingresses({"b1"})
    assert ingresses.state() == (UNAVAILABLE, "no disk; it is tried again")
    assert told(ingresses.table, "m").taken
    ingresses.table.keep_ingresses(set())
    assert ingresses.state()[0] == UNAVAILABLE, "it is not known to be anything else"


def test_a_model_that_no_ingress_can_load_is_unavailable(tmp_path: Path) -> None:
    ingresses = Ingresses(tmp_path)
    for ingress, reason in (("a2", "no memory"), ("a1", "no disk"), ("b1", "no memory")):
        ingresses.tell(ingress, (reason, ingresses.digest))
        assert not told(ingresses.table, "m").taken
    assert ingresses.state() == (UNAVAILABLE, "no disk")


@pytest.mark.parametrize("first", ["", "no disk"])
def test_what_became_of_a_load_is_known_once_all_ingresses_have_told(tmp_path: Path, first: str) -> None:
    """But for one that takes half a minute longer than the first."""
    now_s = 1000.0
    ingresses = Ingresses(tmp_path)
    ingresses.table = ModelTable(lambda: now_s)
    ingresses.take(ingresses.desired)

    def reason() -> str | None:
        return ingresses.table.reports.reason(("m", 1), ingresses.digest, {"a1", "a2"})

    assert reason() is None
    ingresses.tell("b1", ("", ingresses.digest))
    ingresses.tell("a1", (first, ingresses.digest))
    ingresses.take(ingresses.desired)
    assert reason() is None
    now_s += WAIT_S + 1
    assert reason() == ""
    now_s -= 2
    ingresses.table.keep_ingresses({"a1", "a2"})
    assert reason() is None
    ingresses.tell("a2", ("no memory", ingresses.digest))
    assert reason() == ("" if not first else "no disk")
    ingresses.tell("a2", ("", ingresses.digest))
    assert reason() == ""


def test_reports_of_an_embedded_model_count_for_what_they_are_of(tmp_path: Path) -> None:
    """A model that is loaded anew is what it was where it fails, or is still to be loaded."""
    ingresses = Ingresses(tmp_path)
    before, version = ingresses.digest, ("m", 1)
    for ingress in ("a1", "a2"):
        ingresses.tell(ingress, ("", before))
    ingresses.repository.configure("m", PLACED % "embedded" + "max_batch_size: 2")
    ingresses.take(ingresses.repository.load(ingresses.desired, "m"))
    assert ingresses.digest != before and ingresses.table.reports.reason(version, ingresses.digest) is None
    ingresses.tell("a2", ("", before), ("no disk", ingresses.digest))
    assert ingresses.table.reports.reason(version, ingresses.digest) == "no disk"
    reverted = ingresses.repository.revert(ingresses.desired)
    ingresses.tell("a1", ("", ingresses.digest))
    assert ingresses.table.reports.reason(version, ingresses.digest) == "", "one has loaded it"
    assert ingresses.state() == (READY, BESIDE.format("a"))
    ingresses.take(reverted)
    assert ingresses.digest == before and ingresses.state() == (READY, "")
    ingresses.take(unloaded(ingresses.repository.options, reverted, ["m"]))
    ingresses.take(ingresses.repository.load(ingresses.desired, "m"))
    assert ingresses.state() == (LOADING, ""), "what was told was of what was unloaded"


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


def test_a_model_is_removed_that_no_repository_has_any_more_and_of_which_nothing_runs(tmp_path: Path) -> None:
    repository, desired, table = started(tmp_path)
    removed = {name: False for name in ("inner", "outer", "step", "new")}
    gone = unloaded(repository.options, desired, ["outer"])

    def told_removed() -> dict[str, bool]:
        return {name: row["removed"] for name, row in table.tables()["models"].items()}

    table.know({"inner", "new"}, all_repositories=True)
    assert told_removed() == removed, "it runs"
    table.replace(gone, {})
    outer = table.models["outer"].versions[1]
    assert (outer.state, told_removed()) == (UNLOADING, removed), "a request of it may be under way"
    outer.state = UNAVAILABLE
    assert told_removed() == removed | {"outer": True}
    table.know({"inner", "new"}, all_repositories=False)
    assert told_removed() == removed, "another repository may have it"
    table.know({"inner", "new", "outer"}, all_repositories=True)
    assert told_removed() == removed


def test_nothing_is_kept_of_the_configurations_of_models_that_are_gone(tmp_path: Path) -> None:
    repository, desired, table = started(tmp_path)
    table.replace(unloaded(repository.options, desired, ["outer"]), {})
    assert table._json.keys() == {"step", "inner"}


def test_versions_that_are_completed_otherwise_have_their_own_configurations(tmp_path: Path) -> None:
    for version, size in ((1, 2), (2, 3), (3, 3)):
        folder = tmp_path / "m" / str(version)
        folder.mkdir(parents=True)
        write_model(folder / "model.onnx", ["Identity X Y"], [f"X:FLOAT:n,{size}"], [f"Y:FLOAT:n,{size}"])
    (tmp_path / "m" / "config.pbtxt").write_text("version_policy { all {} }")
    table = ModelTable()
    table.replace(Repository(tmp_path).read(), {})
    entry = ModelEntry.from_dict(table.tables()["models"]["m"], None)
    assert entry.other_configs.keys() == {1}
    configs = [entry.config_of(version) for version in (1, 2, 3)]
    assert [list(config.input[0].dims) for config in configs if config is not None] == [[2], [3], [3]]
