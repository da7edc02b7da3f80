"""What is written to files, and read again."""
