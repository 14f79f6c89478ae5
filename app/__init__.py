"""What a client or an operator touches: builder, ingress, HTTP, metrics, CLI."""
