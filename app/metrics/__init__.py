"""What the metrics port says: Prometheus text of what the processes of a node have counted."""
