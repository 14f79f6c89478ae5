"""Writes `docs/configuration.md` from the tables that loading uses.

Run `python -m repository_loader.configuration_page > docs/configuration.md` after a change of one.
"""

from collections.abc import Iterable, Iterator, Sequence

from repository_loader.backend_traits import BACKENDS, BackendTraits
from repository_loader.ensemble_conditions import CONDITION_KEYS
from repository_loader.field_rules import COLUMNS, FIELDS, FieldRule
from repository_loader.overrides import OVERRIDES, PREFIX
from repository_loader.parameters import EVERY_BACKEND, PARAMETERS, Parameter

_INTRODUCTION = """\
# Configuration

What becomes of each field of `config.pbtxt`. This page is generated (`python -m repository_loader.configuration_page`)
from the tables that loading uses; `eagleray validate` and the log say the same.

* **yes**: the field does what it does in Triton.
* **warning**: it has no effect; `validate` and the log say so once, with file, line and column.
* **refused**: the model is not loaded, with that reason.

A value that is the default of its field is as good as none."""

_BACKENDS = """\
## Backends

Triton's backends that are not here (openvino, tensorflow, …) are refused with what to do instead. Those that open no
file are the ones that Triton's own tests use; of fields they have what a Python model has."""

_FIELDS = "## Fields"

_PARAMETERS = """\
## `parameters`

Keys of Eagleray's own. A value of the wrong kind is refused, an unknown key is warned of. `autoscaling.…` may be
written without `eagleray.`; where both stand, the one with it counts."""

_OTHERS = """\
Keys of the backends. A Python model sees every key; for the others an unknown one is warned of, and a number or a truth
value that cannot be read is refused."""


def page() -> str:
    """Return the page."""
    return "\n".join(_blocks()) + "\n"


def _blocks() -> Iterator[str]:
    loaded = [backend for backend in BACKENDS.values() if backend.implementation]
    yield from (_INTRODUCTION, "", _BACKENDS, "")
    header = ("backend", "files", "instance kinds", "`count` on the CPU", "instances are", "installed with")
    yield from _table(header, (_backend_row(backend) for backend in loaded))
    yield from ("", _FIELDS, "")
    yield from _table(("field", *COLUMNS, "what it does here"), map(_field_row, FIELDS.values()))
    yield from ("", _PARAMETERS, "")
    own = {PREFIX + name: text for name, text in OVERRIDES.items()} | CONDITION_KEYS
    yield from _table(("key", "what it says"), ((f"`{name}`", text) for name, text in own.items()))
    yield from ("", _OTHERS, "")
    rows = [("all", parameter) for parameter in EVERY_BACKEND]
    rows += [(backend, parameter) for backend, parameters in PARAMETERS.items() for parameter in parameters]
    yield from _table(("backend", "key", "kind", "what it does here"), (_parameter_row(*row) for row in rows))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _backend_row(backend: BackendTraits) -> tuple[str, ...]:
    return (
        backend.name,
        ", ".join(f"`{file.name}`" for file in backend.files) or "—",
        ", ".join(f"KIND_{kind}" for kind in ("CPU", "GPU", "MODEL") if kind in backend.kinds),
        str(backend.cpu_count) if "CPU" in backend.kinds else "—",
        "threads of one replica" if backend.releases_gil else "processes of one replica",
        ", ".join(f"`{package}`" for package in backend.requires.values()) or "—",
    )


def _field_row(rule: FieldRule) -> tuple[str, ...]:
    verdicts = tuple(rule.verdict(column) for column in COLUMNS)
    because = f"where not: {rule.because}" if rule.meaning and rule.because else rule.because
    words = "; ".join(filter(None, (rule.meaning, because)))
    return (f"`{rule.path}`", *verdicts, words)


def _parameter_row(backend: str, parameter: Parameter) -> tuple[str, ...]:
    words = "; ".join(filter(None, (parameter.meaning, parameter.because and f"**warning**: {parameter.because}")))
    return backend, f"`{parameter.name}`", parameter.kind, words


if __name__ == "__main__":
    print(page(), end="")
