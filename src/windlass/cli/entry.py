"""Entry point of the command: Ctrl-C ends it without a traceback from its first import on."""

import sys


def main() -> None:
    """Import the command line and run it. Does not return."""
    try:
        from windlass.cli.main import main  # takes most of the time of a command, on a slow file system seconds

        main()
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python 3.11 makes a RuntimeError of a Ctrl-C that comes while a class is made.
        if KeyboardInterrupt not in (type(error), type(error.__cause__)):
            raise
        sys.exit(130)
