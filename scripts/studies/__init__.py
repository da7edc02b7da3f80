"""The parts of scripts/study.py: running prompts, reading their tokens, analysis and output."""
