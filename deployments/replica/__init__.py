"""What runs in one process that hosts models."""
