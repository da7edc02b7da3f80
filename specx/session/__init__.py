"""Generation: sessions, the round loop, chat templates, stops and tallies."""
