"""Draw the pictures of the cookbook: `python docs/gallery.py [names]`, all of them by default.

Examples run with their whole budgets, about a minute each; of a notebook it is the last picture among its outputs.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "images" / "cookbook"
WIDTH = 1000
"""Largest width in pixels."""


def main(names: list[str]) -> None:
    """Draw the pictures of the examples and notebooks of these names, or of all."""
    for path in sorted([*ROOT.glob("examples/*.py"), *ROOT.glob("notebooks/*.ipynb")]):
        if names and path.stem not in names:
            continue
        if path.suffix == ".ipynb":
            keep(of_notebook(path), path.stem)
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "picture.png"
            subprocess.run([sys.executable, str(path), "--out", str(out)], check=True)
            keep(out.read_bytes(), path.stem)


def of_notebook(path: Path) -> bytes:
    """Return the last picture that is no animation among a notebook's outputs."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found = [o["data"]["image/png"] for cell in cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
    return base64.b64decode("".join(found[-1]))


def keep(picture: bytes, name: str) -> None:
    """Write a picture of at most `WIDTH` pixels with few colours: a tenth of its bytes."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.thumbnail((WIDTH, WIDTH), Image.Resampling.LANCZOS)
    image.quantize(64).save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
