"""``python -m specx``: the command line."""

from specx.cli import main

if __name__ == "__main__":
    main()
