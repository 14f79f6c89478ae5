"""The Serve deployment that clients talk to, and what it listens on."""
