"""The models of a user: by name, on disk, and on the hub."""
