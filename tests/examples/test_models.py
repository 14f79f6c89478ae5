"""The example models answer as their README says, on images they have not seen."""

import importlib
import io
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from deployments.backends.python.model_module import ModelModule
from examples.held_out import LABELS, held_out_images, held_out_pngs, png

REPOSITORY = Path(__file__).parents[2] / "examples/model_repository"


def accuracy_of_onnx(version: int) -> float:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        REPOSITORY / f"digits/{version}/model.onnx", options, providers=["CPUExecutionProvider"]
    )
    images, digits = held_out_images()
    (scores,) = session.run(["SCORES"], {"IMAGE": images})
    assert scores.shape == (len(images), 10)
    assert scores.sum(axis=1) == pytest.approx(1, abs=1e-5)
    return float(np.mean(scores.argmax(axis=1) == digits))


def test_second_version_of_digits_is_more_accurate() -> None:
    assert 0.88 < accuracy_of_onnx(1) < 0.93
    assert accuracy_of_onnx(2) > 0.97


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_model_reads_most_digits() -> None:
    torch = pytest.importorskip("torch")
    model = torch.jit.load(REPOSITORY / "digits_torch/1/model.pt", map_location="cpu")
    images, digits = held_out_images()
    with torch.inference_mode():
        scores = model(torch.from_numpy(images)).numpy()
    assert scores.shape == (len(images), 10)
    assert np.mean(scores.argmax(axis=1) == digits) > 0.97


def test_label_file_names_every_digit() -> None:
    assert (REPOSITORY / "digits/labels.txt").read_text().split() == list(LABELS)


def test_held_out_pngs_carry_the_images() -> None:
    files, labels = held_out_pngs()
    images, digits = held_out_images()
    assert labels == [LABELS[digit] for digit in digits]
    with Image.open(io.BytesIO(files[0])) as image:
        assert image.size == (8, 8)
        assert np.asarray(image, np.float32).reshape(64) / 255 == pytest.approx(images[0], abs=0.002)


def test_made_files_stay_small_and_name_no_path_of_the_machine() -> None:
    files = [file for file in REPOSITORY.rglob("*") if file.is_file() and file.parent.name != "__pycache__"]
    assert sum(file.stat().st_size for file in files) < 1_500_000
    root = str(Path(__file__).parents[2]).encode()
    assert not [file for file in files if root in file.read_bytes()]


@pytest.fixture(scope="module")
def preprocess() -> Iterator[ModuleType]:
    importlib.import_module("deployments.backends.python.pb_utils")  # models import it by Triton's name
    folder = REPOSITORY / "digits_preprocess"
    module = ModelModule(str(folder), str(folder / "1"))
    yield module.load(str(folder / "1/model.py"))
    module.close()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_preprocessing_reads_every_colour_mode_of_png(preprocess: ModuleType, mode: str) -> None:
    # Only black and white, so that every mode can hold it.
    pixels = np.kron(np.eye(8, dtype=np.uint8), np.ones((5, 5), np.uint8)) * 255
    image = Image.fromarray(pixels.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(pixels).convert(mode)
    assert image.mode == mode
    file = io.BytesIO()
    image.save(file, "PNG")
    assert preprocess.read_image(file.getvalue()) == pytest.approx(np.eye(8).reshape(64))


def test_preprocessing_paints_transparent_parts_black(preprocess: ModuleType) -> None:
    file = io.BytesIO()
    Image.new("LA", (8, 8), (255, 0)).save(file, "PNG")
    assert not preprocess.read_image(file.getvalue()).any()


@pytest.mark.parametrize("keep", [0, 4, 60], ids=["empty", "signature", "cut"])
def test_preprocessing_refuses_broken_files(preprocess: ModuleType, keep: int) -> None:
    with pytest.raises((OSError, SyntaxError)):
        preprocess.read_image(png(np.linspace(0, 1, 64, dtype=np.float32))[:keep])


def test_what_the_page_says_to_install_has_what_its_script_imports() -> None:
    root = REPOSITORY.parents[1]
    page = (root / "examples/README.md").read_text()
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "pip install '.[examples,torch]'" in page and "import tritonclient.http" in page
    assert any(each.startswith("tritonclient[http]") for each in extras["examples"])
