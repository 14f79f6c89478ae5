"""Model repositories that are not folders: object stores and archives, mirrored into a cache of each node."""
