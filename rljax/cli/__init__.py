"""The `rljax` command."""
