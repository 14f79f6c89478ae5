"""One class per Triton scheduler, each with an injected clock; no Ray, no sockets."""
