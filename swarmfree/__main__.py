"""``python -m swarmfree`` is the command ``swarmfree``."""

from swarmfree.cli.entry import main

if __name__ == "__main__":
    main()
