"""The folders of behaviours become one model repository: `python -m tests.behaviours.repository FOLDER` writes it."""

import shutil
import sys
from pathlib import Path
from typing import Any

import onnx.parser
import yaml

from tests.behaviours.tensors import Described, to_array, to_bytes

FOLDERS = Path(__file__).parent
BACKENDS = FOLDERS / "backends"
"""Python-based backends, for `--backend-directory`."""
_MODEL_FILES = {"config.pbtxt", "model.py", "model.onnxtxt"}


def load_cases() -> dict[str, dict[str, Any]]:
    """Return what each folder's `case.yaml` says, by the folder's name."""
    return {path.parent.name: yaml.safe_load(path.read_text()) for path in sorted(FOLDERS.glob("*/case.yaml"))}


def model_folders(name: str) -> dict[str, Path]:
    """Return the models of a folder: itself, and those of its folders that hold a model."""
    folder = FOLDERS / name
    found = [folder, *sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.isdigit())]
    return {each.name: each for each in found if any((each / file).exists() for file in _MODEL_FILES)}


def write_repository(root: Path, cases: dict[str, dict[str, Any]]) -> Path:
    """Write the models of all folders to `models`, beside which `gates` is for their gates; no name may be taken twice."""
    models = root / "models"
    models.mkdir(parents=True)
    (root / "gates").mkdir()
    for name, case in cases.items():
        for model, folder in model_folders(name).items():
            assert not (models / model).exists(), f"two folders have a model {model}"
            versions = case.get("versions", {}).get(model, [])
            _write_model(models / model, folder, versions, case.get("files", {}).get(model, {}))
    return models


def _write_model(target: Path, folder: Path, versions: list[int], files: dict[str, Described]) -> None:
    target.mkdir()
    for source in sorted(folder.iterdir()):
        if source.is_dir() and source.name.isdigit():
            for file in source.iterdir():
                _write_file(target / source.name, file)
        elif source.name in _MODEL_FILES - {"config.pbtxt"}:
            _write_file(target / "1", source)
        elif source.is_file() and source.name != "case.yaml":
            shutil.copy(source, target / source.name)
    for path, described in files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(to_bytes(to_array(described)))
    if not any(each.is_dir() and each.name.isdigit() for each in target.iterdir()):
        versions = versions or [1]
    for version in versions:
        (target / str(version)).mkdir(exist_ok=True)
    config = target / "config.pbtxt"
    if config.exists() and '"python"' in config.read_text() and not any(target.glob("*/*.py")):
        for version in target.glob("[0-9]*"):
            shutil.copy(FOLDERS / "echo.py", version / "model.py")


def _write_file(version: Path, source: Path) -> None:
    version.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".onnxtxt":
        model = onnx.parser.parse_model(source.read_text())
        (version / f"{source.stem}.onnx").write_bytes(model.SerializeToString())
    elif source.is_file():
        shutil.copy(source, version / source.name)


if __name__ == "__main__":
    print(write_repository(Path(sys.argv[1]), load_cases()))
