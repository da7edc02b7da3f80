"""Runtimes for specx, one file each; found through the entry-point group ``specx.backends``."""
