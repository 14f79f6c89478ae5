"""Image files become rows for the digits model."""

import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

FORMATS = ("PNG", "JPEG")
MAX_PIXELS = 4096 * 4096
WIDE_GREY_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N")
"""Modes in which a PNG with 16 grey bits opens; their values end at 65,535."""


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        files = pb_utils.get_input_tensor_by_name(request, "IMAGE_BYTES").as_numpy().reshape(-1)
        rows = np.empty((len(files), 64), np.float32)
        for index, file in enumerate(files):
            try:
                rows[index] = read_image(bytes(file))
            except Exception as error:  # whatever is wrong with one image must not fail its neighbours
                pb_utils.Logger.log_verbose(f"image {index}: {error!r}")
                reason = f"image {index} of the request is not a readable {' or '.join(FORMATS)} file"
                return pb_utils.InferenceResponse(error=pb_utils.TritonError(reason, pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("IMAGE", rows)])


def read_image(file):
    """Return the image as 64 grey values, 0 (black) to 1 (white); transparent parts are black."""
    with Image.open(io.BytesIO(file), formats=FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels are too many")
        if image.mode in WIDE_GREY_MODES:
            grey = Image.fromarray(np.asarray(image, np.float32) / 65535)
        else:
            colour = image.convert("RGBA")
            opaque = Image.alpha_composite(Image.new("RGBA", colour.size, "black"), colour)
            grey = Image.fromarray(np.asarray(opaque.convert("L"), np.float32) / 255)
    if grey.size != (8, 8):
        grey = grey.resize((8, 8), Image.Resampling.BOX)
    return np.asarray(grey, np.float32).reshape(64)
