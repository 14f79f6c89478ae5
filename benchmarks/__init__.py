"""Eagleray beside Triton: the same models and clients, one after the other, on this machine."""
