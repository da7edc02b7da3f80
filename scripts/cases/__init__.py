"""Inputs that specx must survive, and the runs that try them, for scripts/try_cases.py."""
