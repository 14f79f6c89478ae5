"""Instances of Python models that run in processes of their own."""
