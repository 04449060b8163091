"""`python -m windlass`: the command, where its script is not on the path."""

from windlass.cli.entry import main

if __name__ == "__main__":
    main()
