"""The seam to what holds models: a backend, its files, and the machine."""
