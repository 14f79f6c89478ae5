"""What HTTP and gRPC share where clients connect: TLS, restricted APIs, forwarded headers."""
