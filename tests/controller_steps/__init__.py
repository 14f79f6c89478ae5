"""Kills the controller at any step of what it does; nothing in the product knows of it."""
