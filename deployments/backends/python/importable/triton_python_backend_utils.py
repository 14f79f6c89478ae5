"""Lets processes that a Python model has spawned import `triton_python_backend_utils`, as in Triton."""

import sys
from pathlib import Path

_HOME = str(Path(__file__).resolve().parents[4])

sys.path.insert(0, _HOME)
try:
    import deployments.backends.python.pb_utils  # noqa: F401, it takes this module's place in sys.modules
finally:
    sys.path.remove(_HOME)
