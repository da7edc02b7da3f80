"""Parts of scripts/bench_peers.py: the sides, what is measured of them, and the tables."""
