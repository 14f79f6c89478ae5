"""A bounded campaign of random bad input over both protocols and against the codecs: `python -m tests.fuzz`."""
