"""What speculation gains with a pair on this machine, and the settings that gain most."""
