"""The digits that the example models have not seen: images as PNG files, and their labels.

scikit-learn ships the data: 1,797 grey images of 8 x 8 pixels, values 0 to 16. A fixed quarter of them is held out.
"""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""Label texts, by digit; `model_repository/digits/labels.txt` holds the same."""

SPLIT_SEED = 7


def split() -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Return train images `[1347, 64]`, held-out images `[450, 64]` (values 0..1), train digits, held-out digits."""
    images, digits = load_digits(return_X_y=True)
    scaled = (images / 16).astype(np.float32)
    train_images, test_images, train_digits, test_digits = train_test_split(
        scaled, digits.astype(np.int64), test_size=0.25, random_state=SPLIT_SEED, stratify=digits
    )
    return train_images, test_images, train_digits, test_digits


def held_out_images() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the held-out images `[450, 64]`, values 0..1, and their digits `[450]`."""
    _, images, _, digits = split()
    return images, digits


def held_out_pngs() -> tuple[list[bytes], list[str]]:
    """Return the held-out images as 8 x 8 grey PNG files, and their label texts."""
    images, digits = held_out_images()
    return [png(image) for image in images], [LABELS[digit] for digit in digits]


def png(image: NDArray[np.float32]) -> bytes:
    """Write one image `[64]`, values 0..1, as an 8 x 8 PNG file with 8 grey bits."""
    grey = np.rint(image.reshape(8, 8) * 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "PNG")
    return file.getvalue()
