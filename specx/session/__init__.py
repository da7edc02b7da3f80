"""The round loop and what it works on: text, templates, stops, sums."""
