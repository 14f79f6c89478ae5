"""Python-based backends that come with Eagleray: `<backend>/model.py`, which models ask for with `runtime`."""
