"""``python -m equipoise``: the command line if its script is not on the path."""

from equipoise.cli import main

if __name__ == "__main__":
    main()
