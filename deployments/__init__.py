"""What runs inside the cluster: core, schedulers, backends, lane, and the Serve deployments around them."""
