"""HTTP/1.1 as Triton speaks it: inference in callbacks, everything else through Starlette."""
