"""`python -m rljax` is the `rljax` command."""

from rljax.cli.main import main

if __name__ == "__main__":
    main()
