"""What the server can do, whatever the protocol."""
