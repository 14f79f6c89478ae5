"""gRPC as Triton speaks it, over `app.http2`: inference in callbacks, everything else as messages of the service."""
