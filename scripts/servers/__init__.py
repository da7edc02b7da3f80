"""Parts of scripts/bench_server.py: servers, their clients, what is measured, and the tables."""
