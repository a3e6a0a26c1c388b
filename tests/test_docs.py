"""The reference pages name what is public, all of it and nothing else. The site itself is built by `mkdocs build --strict`."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest
import yaml

DOCS = Path(__file__).parent.parent / "docs"
PUBLIC = ("rljax", "rljax.envs", "rljax.league", "rljax.planning")


def rendered(text: str) -> list[str]:
    """The paths that a page renders: those after `:::`, and the members listed there."""
    paths: list[str] = []
    for path, block in re.findall(r"^::: (\S+)\n((?: +\S.*\n)*)", text, re.MULTILINE):
        members = (yaml.safe_load(block) or {}).get("options", {}).get("members") or []
        paths += [path, *(f"{path}.{name}" for name in members)]
    return paths


def found(path: str) -> object:
    """What a dotted path leads to.

    Raises:
        AttributeError: nothing.
    """
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[end:], module)
    raise AttributeError(path)


PAGES = {page.relative_to(DOCS).as_posix(): rendered(page.read_text(encoding="utf-8")) for page in DOCS.rglob("*.md")}
RENDERED = [path for paths in PAGES.values() for path in paths]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str) -> None:
    links = re.findall(r"\]\[(rljax[\w.]*)\]", (DOCS / page).read_text(encoding="utf-8"))
    for path in PAGES[page] + links:
        found(path)
    assert set(links) <= set(RENDERED)


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_on_a_page(package: str) -> None:
    module, shown = importlib.import_module(package), [found(path) for path in RENDERED]
    missing = [name for name in module.__all__ if not any(getattr(module, name) is thing for thing in shown)]
    assert not missing


def test_nothing_is_on_two_pages() -> None:
    assert sorted(RENDERED) == sorted(set(RENDERED))


def test_every_page_is_in_the_navigation() -> None:
    assert set(re.findall(r": ([\w/]+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)) == set(
        PAGES
    )
