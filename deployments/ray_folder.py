"""Where Ray keeps its sessions, and so its logs, without Ray."""

import os
from pathlib import Path


def ray_folder() -> Path:
    """Return the folder of a Ray that was started with this environment, and without `--temp-dir`.

    Unlike `tempfile.gettempdir`, Ray neither looks at `TEMP` and `TMP` nor passes over a folder that cannot be written.
    """
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"
