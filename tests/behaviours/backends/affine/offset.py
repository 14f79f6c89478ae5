import json
from pathlib import Path


def offset_in(folder):
    return json.loads((Path(folder) / "offset.json").read_text())
