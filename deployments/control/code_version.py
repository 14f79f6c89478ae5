"""Which Eagleray runs here, as far as replicas and what is kept for a successor depend on it."""

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

_HOME: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("eagleray", "deployments", "repository_loader", "protocol")


@cache
def code_version() -> str:
    """Return the version, and a digest of the code that replicas run: of one version there may be several."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_HOME / package).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(_HOME)} {len(content)}\n".encode())
            digest.update(content)
    return f"{version('eagleray')} {digest.hexdigest()}"
