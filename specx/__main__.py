"""The process ``specx``: handles signals first, and imports everything else after that."""

from __future__ import annotations

import os
import sys

from specx import interrupts

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process."""
    interrupts.listen()
    try:
        code = _run()
    except KeyboardInterrupt:
        from specx.cli import interrupted

        code = interrupted()
    if interrupts.received():
        os._exit(interrupts.exit_code())  # objects stopped half-way may fail in their destructors
    interrupts.deafen()
    sys.exit(code)


def _run() -> int:
    from specx.cli.streams import finish, prepare  # imports click, and Ctrl-C is handled by now

    prepare()
    from specx.cli import exit_code_of

    try:
        code = exit_code_of(None)
    finally:
        interrupts.taken()  # from here on nothing is left to be interrupted
    return finish(code)


if __name__ == "__main__":
    main()
