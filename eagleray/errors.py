"""Eagleray's errors in whatever process they arrive in, where a module named `protocol` may be somebody else's."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_FILE = Path(__file__).resolve().parent.parent / "protocol" / "errors.py"
_NAME = f"{__name__}.classes"


def restore(kind: str, message: str) -> Any:
    """Return an error by the name of its class; unpickling calls this."""
    return getattr(_classes(), kind)(message)


def _classes() -> ModuleType:
    """Return our `protocol.errors` where it is imported, else the same file under a name that nobody else has."""
    ours = sys.modules.get("protocol.errors")
    if ours is not None and ours.__file__ and Path(ours.__file__).resolve() == _FILE:
        return ours
    loaded = sys.modules.get(_NAME)
    if loaded is None:
        spec = importlib.util.spec_from_file_location(_NAME, _FILE)
        assert spec is not None and spec.loader is not None
        loaded = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    return loaded
