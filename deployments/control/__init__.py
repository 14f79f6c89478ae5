"""The repository controller, the directory that it publishes, and the Serve applications that it deploys."""
