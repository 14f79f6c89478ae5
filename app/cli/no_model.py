"""What is said where repositories have no model."""

from typing import Final

NO_MODEL: Final = "there is no model: one is a folder of the repository with version folders in it, as m/1/model.onnx"
