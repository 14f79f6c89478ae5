"""One package or file per framework; each framework is imported only there, at load time."""
