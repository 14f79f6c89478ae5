"""What HTTP and gRPC share where clients connect: sockets, connections, TLS, API keys, restricted APIs, bounds."""
