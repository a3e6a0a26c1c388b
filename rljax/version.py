"""The version, in a module that imports little: what writes it into files is imported by `rljax` itself."""

import subprocess
from pathlib import Path

__version__ = "0.1.0"


def source_commit() -> str | None:
    """Return the commit of the running source, with `-dirty` if it has changed since; None outside a git checkout."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != here.parent.resolve():
            return None  # installed into the folder of another project
        changed = git("status", "--porcelain", "--", ".", "../envs", "../configs", ":!zoo")
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
