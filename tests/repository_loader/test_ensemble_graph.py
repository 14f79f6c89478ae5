from itertools import pairwise
from pathlib import Path

import pytest

from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions, Snapshot
from tests.repository_loader.repositories import onnx_bytes, python_model, write


def tensors(inputs: dict[str, str], outputs: dict[str, str], more: str = "") -> str:
    lines = [
        f'{kind} {{ name: "{name}" {text} }}'
        for kind, named in (("input", inputs), ("output", outputs))
        for name, text in named.items()
    ]
    return " ".join([*lines, more])


F4 = "data_type: TYPE_FP32 dims: 4"


def step(model: str, inputs: dict[str, str], outputs: dict[str, str], version: str = "model_version: -1") -> str:
    maps = [
        f'{kind} {{ key: "{key}" value: "{value}" }}'
        for kind, named in (("input_map", inputs), ("output_map", outputs))
        for key, value in named.items()
    ]
    return f'step {{ model_name: "{model}" {version} {" ".join(maps)} }}'


def ensemble(
    steps: str, inputs: dict[str, str] | None = None, outputs: dict[str, str] | None = None, more: str = ""
) -> str:
    signature = tensors(inputs or {"X": F4}, outputs or {"Y": F4}, more)
    return f'platform: "ensemble"\n{signature}\nensemble_scheduling {{ {steps} }}'


def load(tmp_path: Path, models: dict[str, str], ensembles: dict[str, str], **files: str) -> Snapshot:
    for name, config in models.items():
        write(tmp_path, python_model(name, config))
    for name, config in ensembles.items():
        write(tmp_path, {f"{name}/config.pbtxt": config, f"{name}/1": None})
    write(tmp_path, files)
    return load_repositories([str(tmp_path)], LoaderOptions(), None)


PLAIN = tensors({"x": F4}, {"y": F4})
A = step("a", {"x": "X"}, {"y": "t"})
B = step("b", {"x": "t"}, {"y": "Y"})

JUDGED: dict[str, tuple[dict[str, str], str, str | None]] = {
    "chain": ({"a": PLAIN, "b": PLAIN}, ensemble(A + B), None),
    "order of steps does not matter": ({"a": PLAIN, "b": PLAIN}, ensemble(B + A), None),
    "wildcards agree": (
        {"a": tensors({"x": "data_type: TYPE_FP32 dims: -1"}, {"y": F4}), "b": PLAIN},
        ensemble(A + B),
        None,
    ),
    "batching in front of not batching": (
        {"a": PLAIN + "max_batch_size: 4", "b": tensors({"x": "data_type: TYPE_FP32 dims: [ -1, 4 ]"}, {"y": F4})},
        ensemble(A + B),
        None,
    ),
    "optional inputs need no mapping": (
        {"a": tensors({"x": F4, "o": F4 + " optional: true"}, {"y": F4}), "b": PLAIN},
        ensemble(A + B),
        None,
    ),
    "missing models": (
        {"b": PLAIN},
        ensemble(A + B),
        "ensemble e contains models that are not available or ambiguous: a",
    ),
    "version": (
        {"a": PLAIN, "b": PLAIN},
        ensemble(step("a", {"x": "X"}, {"y": "t"}, "model_version: 3") + B),
        "ensemble 'e' depends on 'a' whose required version 3 is not loaded.",
    ),
    "type": (
        {"a": tensors({"x": F4}, {"y": "data_type: TYPE_INT32 dims: 4"}), "b": PLAIN},
        ensemble(A + B),
        "in ensemble e, ensemble tensor t: inconsistent data type: TYPE_INT32 is inferred from model a while "
        "TYPE_FP32 is inferred from model b",
    ),
    "shape": (
        {"a": tensors({"x": F4}, {"y": "data_type: TYPE_FP32 dims: [ 2, 3 ]"}), "b": PLAIN},
        ensemble(A + B),
        "in ensemble e, ensemble tensor t: inconsistent shape: [2,3] is inferred from model a while [4] is "
        "inferred from model b",
    ),
    "shape of models that batch": (
        {
            "a": "max_batch_size: 4 " + tensors({"x": F4}, {"y": "data_type: TYPE_FP32 dims: 5"}),
            "b": "max_batch_size: 4 " + PLAIN,
        },
        "max_batch_size: 4 " + ensemble(A + B),
        "in ensemble e, ensemble tensor t: inconsistent shape: [-1,5] is inferred from model a while [-1,4] is "
        "inferred from model b",
    ),
    "reshape of the ensemble itself": (
        {"a": PLAIN, "b": PLAIN},
        ensemble(
            A + B,
            {"X": "data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: 4 }"},
            {"Y": "data_type: TYPE_FP32 dims: [ 4, 1 ] reshape { shape: 4 }"},
        ),
        None,
    ),
    "reshape of the ensemble itself to another shape": (
        {"a": PLAIN, "b": PLAIN},
        ensemble(A + B, {"X": "data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] }"}),
        "in ensemble e, ensemble tensor X: inconsistent shape: [2,2] is inferred from model e while [4] is "
        "inferred from model a",
    ),
    "type of the ensemble itself": (
        {"a": PLAIN, "b": PLAIN},
        ensemble(A + B, {"X": "data_type: TYPE_STRING dims: 4"}),
        "in ensemble e, ensemble tensor X: inconsistent data type: TYPE_STRING is inferred from model e while "
        "TYPE_FP32 is inferred from model a",
    ),
    "unknown input": (
        {"a": PLAIN, "b": PLAIN},
        ensemble(step("a", {"x": "X", "q": "X"}, {"y": "t"}) + B),
        "in ensemble e, ensemble tensor X is mapping to non-existing input q in model a",
    ),
    "unmapped input": (
        {"a": tensors({"x": F4, "q": F4}, {"y": F4}), "b": PLAIN},
        ensemble(A + B),
        "in ensemble e, input q in model a is not mapped to any ensemble tensors",
    ),
    "unknown output": (
        {"a": PLAIN, "b": PLAIN},
        ensemble(step("a", {"x": "X"}, {"z": "t"}) + B),
        "in ensemble e, ensemble tensor t is mapped from non-existing output z in model a",
    ),
    "batch size": (
        {"a": PLAIN + "max_batch_size: 2", "b": PLAIN},
        ensemble(A + B, more="max_batch_size: 4"),
        "ensemble e allows maximum batch size 4, but it contains model a which only allows maximum batch size to be 2",
    ),
    "failed model": (
        {"a": PLAIN + "max_batch_size: -1", "b": PLAIN},
        ensemble(A + B),
        "ensemble 'e' depends on 'a' which has no loaded version. Model 'a' loading failed with error: "
        "'max_batch_size' must be non-negative value for a",
    ),
    "two decoupled models": (
        {
            "a": PLAIN + "model_transaction_policy { decoupled: true }",
            "b": tensors({"x": F4, "x2": F4}, {"y": F4}),
        },
        ensemble(
            step("a", {"x": "X"}, {"y": "t"})
            + step("a", {"x": "X"}, {"y": "u"})
            + step("b", {"x": "t", "x2": "u"}, {"y": "Y"})
        ),
        "in ensemble e, step of model 'b' receives inputs originated from different decoupled models",
    ),
    "responses of two decoupled models in those of the ensemble": (
        {"a": PLAIN + "model_transaction_policy { decoupled: true }"},
        ensemble(step("a", {"x": "X"}, {"y": "Y"}) + step("a", {"x": "X"}, {"y": "Z"}), outputs={"Y": F4, "Z": F4}),
        "in ensemble e, step of model 'e' receives inputs originated from different decoupled models",
    ),
    "responses of a decoupled model and of one behind it": (
        {"a": PLAIN + "model_transaction_policy { decoupled: true }"},
        ensemble(step("a", {"x": "X"}, {"y": "Y"}) + step("a", {"x": "Y"}, {"y": "Z"}), outputs={"Y": F4, "Z": F4}),
        "in ensemble e, step of model 'e' receives inputs originated from different decoupled models",
    ),
    "responses of a decoupled model and a tensor that comes once": (
        {"a": PLAIN + "model_transaction_policy { decoupled: true }", "b": PLAIN},
        ensemble(step("a", {"x": "X"}, {"y": "Y"}) + step("b", {"x": "X"}, {"y": "Z"}), outputs={"Y": F4, "Z": F4}),
        None,
    ),
}


@pytest.mark.parametrize(("models", "config", "failure"), JUDGED.values(), ids=JUDGED)
def test_judges_an_ensemble(tmp_path: Path, models: dict[str, str], config: str, failure: str | None) -> None:
    model = load(tmp_path, models, {"e": config}).models["e"]
    assert model.failure == failure
    assert bool(model.packages) == (failure is None)


def test_reads_a_missing_version_as_the_latest(tmp_path: Path) -> None:
    config = ensemble("\n" + step("a", {"x": "X"}, {"y": "Y"}, ""))
    model = load(tmp_path, {"a": PLAIN}, {"e": config}).models["e"]
    assert model.config is not None
    assert model.config.ensemble_scheduling.step[0].model_version == -1
    assert model.packages[0].config == model.config
    assert [str(finding) for finding in model.findings] == [
        f"{tmp_path}/e/config.pbtxt:4:1: warning: step 0 of ensemble 'e' has no model_version; -1 is assumed"
    ]


def test_keeps_version_zero_where_it_exists(tmp_path: Path) -> None:
    write(tmp_path, python_model("a", PLAIN + "version_policy { all { } }", versions=(0, 1)))
    model = load(tmp_path, {}, {"e": ensemble(step("a", {"x": "X"}, {"y": "Y"}, ""))}).models["e"]
    assert model.config is not None and model.failure is None
    assert model.config.ensemble_scheduling.step[0].model_version == 0


def test_is_decoupled_when_a_step_is(tmp_path: Path) -> None:
    decoupled = PLAIN + "model_transaction_policy { decoupled: true }"
    inner = ensemble(step("a", {"x": "X"}, {"y": "Y"}))
    outer = ensemble(step("inner", {"X": "X"}, {"Y": "Y"}))
    models = load(tmp_path, {"a": decoupled, "p": PLAIN}, {"a-outer": outer, "inner": inner}).models
    for name in ("inner", "a-outer"):
        (package,) = models[name].packages
        assert package.config.model_transaction_policy.decoupled, models[name].failure


def test_says_in_its_configuration_that_it_is_not_decoupled(tmp_path: Path) -> None:
    models = load(tmp_path, {"p": PLAIN}, {"e": ensemble(step("p", {"x": "X"}, {"y": "Y"}))}).models
    (package,) = models["e"].packages
    assert package.config.HasField("model_transaction_policy")
    assert not package.config.model_transaction_policy.decoupled


def conditional(**parameters: str) -> str:
    more = "".join(
        f'\nparameters {{ key: "eagleray.{key.replace("__", ".")}" value {{ string_value: "{value}" }} }}'
        for key, value in parameters.items()
    )
    second = step("b", {"x": "X"}, {"y": "Y", "word": "W"})
    outputs = {"Y": F4, "W": "data_type: TYPE_STRING dims: 1"}
    return ensemble(A + second, {"X": F4}, outputs, more)


CONDITIONS: dict[str, tuple[dict[str, str], str | None]] = {
    "condition and default": ({"when__b": "t < 0.5", "default__Y": "t", "default__W": "'none'"}, None),
    "by number": ({"when__1": "all t >= -1e-3", "default__Y": "0"}, None),
    "unknown step": (
        {"when__c": "X < 1", "default__Y": "t"},
        "parameter 'eagleray.when.c' of e names step 'c', which does not exist",
    ),
    "number of no step": (
        {"when__2": "X < 1", "default__Y": "t"},
        "parameter 'eagleray.when.2' of e names step '2', which does not exist",
    ),
    "twice": (
        {"when__b": "X < 1", "when__1": "X < 1", "default__Y": "t"},
        "parameter 'eagleray.when.b' of e is a second condition of step 1",
    ),
    "unknown tensor": (
        {"when__b": "Z < 1", "default__Y": "t"},
        "parameter 'eagleray.when.b' of e names tensor 'Z', which is no input and made by no step",
    ),
    "default of an input": (
        {"when__b": "t < 1", "default__X": "0"},
        "parameter 'eagleray.default.X' of e names tensor 'X', which no step makes",
    ),
    "code": (
        {"when__b": "__import__('os')", "default__Y": "t"},
        "parameter 'eagleray.when.b' of e must be [any|all] <tensor> <comparison> <value>, with a comparison of "
        "== != < <= > >= and a value that is a number, true, false or 'text'",
    ),
    "type": (
        {"when__b": "t == 'yes'"},
        "parameter 'eagleray.when.b' of e says \"t == 'yes'\", which does not go with tensor 't' of TYPE_FP32",
    ),
    "order of texts": (
        {"when__a": "W < 'yes'", "when__b": "t < 1"},
        "output 'Y' for ensemble 'e' is not written: at least one of its depending tensors, 't', is not connected",
    ),
    "type of a default": (
        {"when__b": "t < 1", "default__W": "1"},
        "parameter 'eagleray.default.W' of e says '1', which does not go with tensor 'W' of TYPE_STRING",
    ),
    "type of a tensor that is a default": (
        {"when__b": "t < 1", "default__W": "t"},
        "in ensemble e, ensemble tensor W: inconsistent data type: TYPE_STRING is inferred from model b while "
        "TYPE_FP32 is inferred from model a",
    ),
    "nobody needs it": ({"when__b": "X < 1"}, "ensemble tensor 't' is unused in ensemble 'e'"),
}


@pytest.mark.parametrize(("parameters", "failure"), CONDITIONS.values(), ids=CONDITIONS)
def test_judges_conditions(tmp_path: Path, parameters: dict[str, str], failure: str | None) -> None:
    wordy = tensors({"x": F4}, {"y": F4, "word": "data_type: TYPE_STRING dims: 1"})
    model = load(tmp_path, {"a": PLAIN, "b": wordy}, {"e": conditional(**parameters)}).models["e"]
    assert model.failure == failure
    assert [finding for finding in model.findings if "no effect" in finding.message] == []


def test_finds_cycles_and_what_hangs_on_them(tmp_path: Path) -> None:
    def through(other: str) -> str:
        return ensemble(step(other, {"X": "X"}, {"Y": "Y"}))

    snapshot = load(
        tmp_path, {}, {"a": through("b"), "b": through("c"), "c": through("a"), "d": through("a"), "s": through("s")}
    )
    cycle = "circular dependency between ensembles: a -> b -> c -> a"
    assert {name: model.failure for name, model in snapshot.models.items()} == {
        "a": cycle,
        "b": cycle,
        "c": cycle,
        "d": f"ensemble 'd' depends on 'a' which has no loaded version. Model 'a' loading failed with error: {cycle}",
        "s": "circular dependency between ensembles: s -> s",
    }


def test_follows_a_long_chain(tmp_path: Path) -> None:
    names = [f"e{index:03}" for index in range(300)]
    chained = {name: ensemble(step(other, {"X": "X"}, {"Y": "Y"})) for name, other in pairwise(names)}
    chained[names[-1]] = ensemble(step("a", {"x": "X"}, {"y": "Y"}))
    snapshot = load(tmp_path, {"a": PLAIN}, chained)
    assert {model.failure for model in snapshot.models.values()} == {None}


@pytest.mark.parametrize("version", [1, 2])
def test_a_step_of_any_version_is_asked_as_the_highest_is(version: int, tmp_path: Path) -> None:
    files = {
        f"a/{number}/model.onnx": onnx_bytes({name: [1, 4]}, {"Y": [1, 4]}) for number, name in ((1, "P"), (2, "Q"))
    }
    write(tmp_path, {**files, "a/config.pbtxt": "version_policy { all { } }"})
    wide = "data_type: TYPE_FP32 dims: [ 1, 4 ]"
    configs = {
        name: ensemble(
            step("a", {name.upper(): "X"}, {"Y": "Y"}, f"model_version: {version}"), {"X": wide}, {"Y": wide}
        )
        for name in ("p", "q")
    }
    models = load(tmp_path, {}, configs).models
    assert models["q"].failure is None
    assert models["p"].failure == "in ensemble p, ensemble tensor X is mapping to non-existing input P in model a"


def test_serves_an_ensemble_without_a_version_folder(tmp_path: Path) -> None:
    write(tmp_path, {**python_model("a", PLAIN), "e/config.pbtxt": ensemble(step("a", {"x": "X"}, {"y": "Y"}))})
    model = load_repositories([str(tmp_path)], LoaderOptions(), None).models["e"]
    assert [package.version for package in model.packages] == [1]
    assert ["version directory" in finding.message for finding in model.findings] == [True]
