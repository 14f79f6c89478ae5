"""The core: loaded model versions, their schedulers, instances and statistics; no Ray, no sockets."""
