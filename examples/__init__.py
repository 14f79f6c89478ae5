"""Example model repositories, the programs that made them, and data to try them on."""
