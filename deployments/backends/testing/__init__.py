"""The backends that Triton's own tests use: models without a file that copy, repeat and count."""
