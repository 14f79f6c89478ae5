"""Runs the `model.py` files of Triton's Python backend unchanged."""
