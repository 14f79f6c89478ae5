"""What this process logs, where to, and in which form; no Ray."""
