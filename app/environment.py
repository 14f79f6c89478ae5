"""The settings that environment variables give."""

import difflib
import os
from collections.abc import Iterable
from typing import Any, Final

from app.settings import Settings

_PREFIX = "EAGLERAY_"
_NOT_OURS = ("EAGLERAY_BENCH", "EAGLERAY_TEST")
"""What the variables of the benchmarks and of the tests begin with."""
_ONE_PER_LINE = frozenset(
    {
        "api_key",
        "http_restricted_api",
        "grpc_restricted_protocol",
        "metrics_config",
        "rate_limit_resource",
        "backend_config",
        "trace_config",
    }
)
_LIKENESS: Final = 0.76
"""Of a mistyped name: `MODEL_REPO` has 0.77 of `MODEL_REPOSITORY`; `SERVICE_PORT`, which Kubernetes sets, 0.75."""
_CLIENT = ("EAGLERAY_CLIENT_HEADERS", "EAGLERAY_CLIENT_KEY", "EAGLERAY_CLIENT_URL")
"""What the commands that ask a server take from the environment."""
_FLAGS_ALONE = ("dashboard", "dashboard-port", "num-cpus", "num-gpus", "ray-address")
"""Flags of `eagleray serve` that say how Ray is started, and are no settings of what runs on it."""


def environment() -> dict[str, Any]:
    """Return the settings that the environment gives.

    Those of several values are separated by the path separator, or by line ends where values hold one; addresses by
    spaces.
    """
    found: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        value = os.environ.get(variable_of(name))
        if value is None:
            continue
        if not str(field.annotation).startswith("tuple"):
            found[name] = value
        elif name in _ONE_PER_LINE:
            found[name] = tuple(value.splitlines())
        elif "://" in value:
            found[name] = tuple(value.split())
        else:
            found[name] = tuple(filter(None, value.split(os.pathsep)))
    return found


def variable_of(name: str) -> str:
    """Return the variable that gives a setting."""
    return f"{_PREFIX}{name.upper()}"


def unknown_variables() -> list[str]:
    """Return a sentence on every variable of the environment that looks like a setting and is none."""
    known = [*map(variable_of, Settings.model_fields), *_CLIENT]
    sentences = []
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in known and not name.startswith(_NOT_OURS):
            flag = name.removeprefix(_PREFIX).lower().replace("_", "-")
            hint = "".join(f"; did you mean {close}?" for close in _near(name, known))
            hint = f"; give --{flag}" if flag in _FLAGS_ALONE else hint
            sentences.append(f"the environment variable {name} is no setting{hint}")
    return sentences


def _near(name: str, known: Iterable[str]) -> list[str]:
    """Return the variable that is meant by a mistyped one, if any is near; what all begin with does not count."""
    rests = [each.removeprefix(_PREFIX) for each in known]
    return [f"{_PREFIX}{each}" for each in _similar(name.removeprefix(_PREFIX).upper(), rests)]


def near_setting(name: str) -> str:
    """Return the setting that is meant by a mistyped one, "" if none is near."""
    return next(iter(_similar(name.lower().replace("-", "_"), list(Settings.model_fields))), "")


def _similar(name: str, known: list[str]) -> list[str]:
    return difflib.get_close_matches(name, known, n=1, cutoff=_LIKENESS)
