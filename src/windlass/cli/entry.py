"""Entry point of the command, which exits on Ctrl-C without a traceback even during imports."""

import sys


def main() -> None:
    """Imports and runs the command line. Does not return."""
    try:
        # imported here, because Ctrl-C during the slow imports must not show a traceback
        from windlass.cli.main import main

        main()
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python 3.11 raises RuntimeError for a Ctrl-C during the creation of a class.
        if KeyboardInterrupt not in (type(error), type(error.__cause__)):
            raise
        sys.exit(130)
