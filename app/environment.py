"""The settings that environment variables give."""

import difflib
import os
from typing import Any

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
_CLIENT = ("EAGLERAY_CLIENT_HEADERS", "EAGLERAY_CLIENT_KEY", "EAGLERAY_CLIENT_URL")
"""What the commands that ask a server take from the environment."""


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
            closest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            sentences.append(f"the environment variable {name} is no setting; did you mean {closest[0]}?")
    return sentences
