"""HTTP/2 for a server (RFC 9113), in callbacks: framing, flow control, and a bound on whatever a peer sends."""
