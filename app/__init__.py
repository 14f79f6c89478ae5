"""What a client or an operator touches: builder, ingress, HTTP, gRPC, metrics, traces, console, command line."""
