"""Large JSON is parsed in a process of its own: a parser holds the interpreter's lock from end to end."""
