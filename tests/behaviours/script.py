"""Does what a folder's `case.yaml` says, step by step, in one way of sending requests."""

import re
from typing import Any
from urllib.parse import quote

import numpy as np

from tests.behaviours.tally import SUCCESS, Tally, pending
from tests.behaviours.tensors import to_array
from tests.behaviours.ways import HTTP_STATUSES, WAYS, Sent
from tests.serving import Server, wait_until

_TIMEOUT_S = 30.0
_PASSED_ON = {"id": "request_id", "timeout_us": "timeout", "sequence": "sequence_id"}
_ALIKE = ("priority", "parameters", "headers", "json", "outputs")


class Script:
    """The requests, gates and expectations of one folder."""

    def __init__(self, server: Server, grpc_address: str, way: str, default_model: str, tally: Tally) -> None:
        self._server = server
        self._way_name = way
        self._way = WAYS[way](server.address, grpc_address)
        self._model = default_model
        self._tally = tally
        self._gates = server.repository.parent / "gates"
        self._sent: dict[str, tuple[Sent, str]] = {}
        self._order: list[str] = []
        self._held: dict[str, list[str]] = {}
        self._before: dict[str, dict[str, Any]] = {}
        self.models: set[str] = set()

    def run(self, steps: list[dict[str, Any]]) -> None:
        """Do the steps; afterwards no gate is closed and nothing is under way."""
        try:
            for number, step in enumerate(steps, 1):
                only = step.get("only")
                if only is not None and self._way_name not in ([only] if isinstance(only, str) else only):
                    continue
                (verb,) = [key for key in step if hasattr(self, f"do_{key}")]
                try:
                    getattr(self, f"do_{verb}")(
                        step[verb], **{k: v for k, v in step.items() if k not in (verb, "only")}
                    )
                except AssertionError as error:
                    raise AssertionError(f"step {number}, {step}: {error}") from None
        finally:
            for model in list(self._held):
                self.do_release(model)
            self._way.close()

    # Requests

    def do_call(
        self, request: dict[str, Any], expect: Any = None, error: Any = None, responses: Any = None, **more: Any
    ) -> None:
        """Send a request and compare its answer."""
        name = self._send(request)
        self._compare(name, {"expect": expect, "error": error, "responses": responses, **more})

    def do_send(self, request: dict[str, Any]) -> None:
        """Send a request and go on as soon as the server has it; its id is its name."""
        name = self._send(request)
        model = self._sent[name][1]
        if model in self._held:
            self._held[model].append(name)
            wait_until(lambda: self._has(model), f"the server has {name}", _TIMEOUT_S, 0.003)

    def do_answers(self, answers: dict[str, Any]) -> None:
        """Compare the answers of requests that were sent."""
        for name, answer in answers.items():
            self._compare(name, answer)

    def do_cancel(self, name: str) -> None:
        """Cancel a request as its client; the server has noticed before it sees the next request."""
        self._sent[name][0].cancel()
        for _ in range(3):  # what its loop is told at once it has done two round trips later
            self._server.get("/v2")

    def do_responded(self, counts: dict[str, int]) -> None:
        """Wait until requests have so many responses."""
        for name, count in counts.items():
            wait_until(
                lambda n=name, c=count: len(self._sent[n][0].results) >= c, f"{name} has {count}", _TIMEOUT_S, 0.01
            )

    def do_unanswered(self, names: list[str]) -> None:
        """Assert that requests have no answer yet, though another round trip is over."""
        self._server.get("/v2")
        assert not [name for name in names if self._sent[name][0].ended.is_set()]

    def _send(self, request: dict[str, Any]) -> str:
        model = request.get("model", self._model)
        self._watch(model)
        rest = {_PASSED_ON[key]: value for key, value in request.items() if key in _PASSED_ON}
        rest |= {key: request[key] for key in _ALIKE if key in request}
        for flag in ("start", "end"):
            if flag in request:
                rest[f"sequence_{flag}"] = request[flag]
        unknown = set(request) - {*_PASSED_ON, *_ALIKE, "start", "end", "model", "version", "inputs"}
        assert not unknown, f"a request has no {unknown}"
        name = request.get("id") or f"#{len(self._sent)}"
        sent = self._way.send(model, str(request.get("version", "")), request["inputs"], **rest)
        self._sent[name] = (sent, model)
        return name

    def _compare(self, name: str, answer: dict[str, Any]) -> None:
        sent, model = self._sent[name]
        assert sent.ended.wait(_TIMEOUT_S), f"{name} has no answer"
        answer = {key: value for key, value in answer.items() if value is not None}
        inner = answer.pop("inner", {})
        if "error" in answer:
            self._compare_error(sent, answer.pop("error"))
            outcome = answer.pop("counted", None)
        else:
            assert sent.error is None, sent.error
            outcome = SUCCESS
            self._compare_results(sent, answer)
        assert not answer, f"an answer has no {list(answer)}"
        if outcome is not None:
            self._tally.add(model, outcome)
        for step, counts in inner.items():
            for each, count in ({SUCCESS: counts} if isinstance(counts, int) else counts).items():
                self._tally.add(step, each, count)

    def _compare_error(self, sent: Sent, error: list[str]) -> None:
        assert sent.error is not None, f"an answer without an error: {[each.get_response() for each in sent.results]}"
        code, text = error
        status, told = sent.error
        if status is not None:
            expected = HTTP_STATUSES.get(code, 400) if isinstance(status, int) else code
            assert status == expected, f"{status} instead of {expected}: {told}"
        if text or code != "CANCELLED":
            _assert_text(text, told)

    def _compare_results(self, sent: Sent, answer: dict[str, Any]) -> None:
        responses = answer.pop("responses", None)
        expected = [answer.pop("expect")] if "expect" in answer else None
        expected = responses if responses is not None else expected
        if expected is not None:
            assert len(sent.results) == len(expected), f"{len(sent.results)} responses instead of {len(expected)}"
            for result, outputs in zip(sent.results, expected, strict=True):
                _compare_outputs(result, outputs)
        if "parameters" in answer:
            given = parameters_of(sent.results[0])
            wanted = answer.pop("parameters")
            assert {key: given.get(key) for key in wanted} == wanted, given
        if "version" in answer:
            assert version_of(sent.results[0]) == str(answer.pop("version"))

    # Gates

    def do_hold(self, model: str) -> None:
        """Close the gate of a model: none of its batches finishes."""
        self._held[model] = []
        self._watch(model)
        (self._gates / model).write_text("")
        log = self._gates / f"{model}.log"
        if log.exists():
            with log.open("r+") as file:
                file.truncate(0)

    def do_finish(self, names: list[str]) -> None:
        """Let the batches of some requests finish."""
        for name in names:
            gate = self._gates / self._sent[name][1]
            temporary = gate.with_suffix(".new")
            temporary.write_text(f"{gate.read_text()} {name}")
            temporary.rename(gate)

    def do_release(self, model: str) -> None:
        """Open the gate."""
        (self._gates / model).unlink()
        del self._held[model]

    def do_running(self, names: list[str]) -> None:
        """Wait until requests run."""
        for name in names:
            model = self._sent[name][1]
            wait_until(lambda m=model, n=name: n in self._ran(m), f"{name} runs", _TIMEOUT_S, 0.003)

    def do_waiting(self, counts: dict[str, int]) -> None:
        """Wait until so many requests wait for models."""
        for model, count in counts.items():
            wait_until(
                lambda m=model, c=count: pending(self._server, m) >= c, f"{count} wait for {model}", _TIMEOUT_S, 0.003
            )

    def do_batches(self, batches: list[list[str]], model: str = "") -> None:
        """Compare the batches that ran since the gate was closed."""
        log = (self._gates / f"{model or self._model}.log").read_text()
        got = [line.split() for line in log.splitlines()]
        assert got == [[str(each) for each in batch] for batch in batches], got

    def _has(self, model: str) -> bool:
        ran = self._ran(model)
        elsewhere = [n for n in self._held[model] if n not in ran and not self._sent[n][0].ended.is_set()]
        return not elsewhere or pending(self._server, model) >= len(elsewhere)

    def _ran(self, model: str) -> set[str]:
        log = self._gates / f"{model}.log"
        return set(log.read_text().split()) if log.exists() else set()

    # What the server says

    def do_statistics(self, expected: dict[str, Any], model: str = "") -> None:
        """Compare how much was counted since the model's first request of this run."""
        model = model or self._model
        wait_until(
            lambda: self._counted(model, expected) == expected,
            f"{expected}, not {self._counted(model, expected)}",
            5.0,
            0.02,
        )

    def _counted(self, model: str, expected: dict[str, Any]) -> dict[str, Any]:
        now, before = statistics(self._server, model), self._before.get(model, {})
        return {key: _difference(now.get(key, 0), before.get(key, 0)) for key in expected}

    def _watch(self, model: str) -> None:
        self.models.add(model)
        if model not in self._before:
            self._before[model] = statistics(self._server, model)

    def do_watch(self, model: str) -> None:
        """Count from here on what a model does."""
        self._watch(model)

    def do_get(self, path: str, status: int = 200, body: Any = None, error: str | None = None) -> None:
        """Compare a document, of which `body` is a part, or its error."""
        answer = self._server.get(path)
        assert answer.status == status, answer.body
        if error is not None:
            _assert_text(error, answer.error)
        if body is not None:
            _assert_part(body, answer.json, path)

    def do_post(
        self,
        path: str,
        json: Any = None,
        text: str | None = None,
        headers: dict[str, str] | None = None,
        status: int = 200,
        body: Any = None,
        error: str | None = None,
        events: list[Any] | None = None,
        answer_headers: dict[str, str] | None = None,
        counts: dict[str, dict[str, int]] | None = None,
    ) -> None:
        """Post a body as it stands, and compare the answer, or the events of a stream."""
        import json as module

        with self._server.client() as client:
            sent: Any = text.encode() if text is not None else module.dumps(json).encode()
            answer = client.request("POST", path, sent, headers)
        assert answer.status == status, (answer.status, answer.body)
        if error is not None:
            _assert_text(error, answer.error)
        if body is not None:
            _assert_part(body, answer.json, path)
        if events is not None:
            got = [module.loads(each.removeprefix("data: ")) for each in answer.body.decode().split("\n\n") if each]
            assert len(got) == len(events), got
            for wanted, given in zip(events, got, strict=True):
                _assert_part(wanted, given, path)
        for name, value in (answer_headers or {}).items():
            assert answer.headers.get(name.lower()) == value, answer.headers
        for model, outcomes in (counts or {}).items():
            self.models.add(model)
            for outcome, count in outcomes.items():
                self._tally.add(model, outcome, count)

    def do_index(self, expected: dict[str, Any]) -> None:
        """Compare the repository index: a model's state, or for a model that is not ready a part of its reason."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in self._server.post("/v2/repository/index", {}).json:
            rows.setdefault(row["name"], []).append(row)
        for model, wanted in expected.items():
            states = {str(row.get("version", "")): row for row in rows[model]}
            if isinstance(wanted, dict):
                assert {version: row.get("state") for version, row in states.items()} == {
                    str(k): v for k, v in wanted.items()
                }, rows[model]
                continue
            (row,) = states.values()
            assert row.get("state") == "UNAVAILABLE", row
            assert wanted in row["reason"], row["reason"]


def statistics(server: Server, model: str) -> dict[str, Any]:
    """Return what the statistics count of a model, over all its versions, under short names; {} when there is none."""
    answer = server.get(f"/v2/models/{quote(model)}/stats")
    if answer.status != 200:
        return {}
    found: dict[str, Any] = {}
    for row in answer.json["model_stats"]:
        counts = {"inferences": row["inference_count"], "executions": row["execution_count"]}
        counts |= {name: row["inference_stats"][name]["count"] for name in row["inference_stats"]}
        for name, count in counts.items():
            found[name] = found.get(name, 0) + count
        batches = found.setdefault("batches", {})
        for batch in row["batch_stats"]:
            batches[batch["batch_size"]] = batches.get(batch["batch_size"], 0) + batch["compute_infer"]["count"]
    return found


def version_of(result: Any) -> str:
    """Return which version has answered."""
    response = result.get_response()
    return str(response["model_version"] if isinstance(response, dict) else response.model_version)


def parameters_of(result: Any) -> dict[str, Any]:
    """Return the parameters of a response."""
    response = result.get_response()
    if isinstance(response, dict):
        return dict(response.get("parameters", {}))
    return {key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in response.parameters.items()}


def _difference(now: Any, before: Any) -> Any:
    if isinstance(now, dict):
        before = before or {}
        return {key: value - before.get(key, 0) for key, value in now.items() if value != before.get(key, 0)}
    return now - before


def _compare_outputs(result: Any, expected: dict[str, Any]) -> None:
    response = result.get_response()
    outputs = response["outputs"] if isinstance(response, dict) else response.outputs
    given = {(each["name"] if isinstance(each, dict) else each.name): each for each in outputs}
    assert set(given) == set(expected), f"outputs {sorted(given)} instead of {sorted(expected)}"
    for name, described in expected.items():
        each = given[name]
        datatype = each["datatype"] if isinstance(each, dict) else each.datatype
        array, wanted = result.as_numpy(name), to_array(described)
        assert datatype == described[0], f"{name} is {datatype}"
        assert list(array.shape) == list(wanted.shape), f"{name} has shape {list(array.shape)}"
        if array.dtype == np.object_:
            texts = [each.encode() if isinstance(each, str) else each for each in array.ravel()]
            assert texts == list(wanted.ravel()), f"{name} is {array.tolist()}"
        else:
            assert np.array_equal(array, wanted, equal_nan=array.dtype.kind == "f"), f"{name} is {array.tolist()}"


def _assert_text(text: str, told: str) -> None:
    if text.startswith("~"):
        assert re.search(text[1:], told), f"{told!r} does not match"
    else:
        assert told == text, f"{told!r} instead of {text!r}"


def _assert_part(part: Any, whole: Any, where: str) -> None:
    """Assert that `part` is in `whole`: of objects the members that it names, all else as it is."""
    if isinstance(part, dict):
        for key, value in part.items():
            assert isinstance(whole, dict) and (value is None) != (key in whole), f"{where}: {key!r} in {whole}"
            if value is not None:
                _assert_part(value, whole[key], f"{where}.{key}")
    elif isinstance(part, list) and isinstance(whole, list):
        assert len(part) == len(whole), f"{where}: {whole}"
        for index, value in enumerate(part):
            _assert_part(value, whole[index], f"{where}[{index}]")
    else:
        assert part == whole, f"{where}: {whole!r} instead of {part!r}"
