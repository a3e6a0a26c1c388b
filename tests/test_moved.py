"""Old paths of modules and names lead to the new ones, with a warning."""

from __future__ import annotations

import importlib

import pytest

from rljax.moved import MOVED, RENAMED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_module_is_the_new_one(old: str) -> None:
    import sys

    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match="the old path will go"):
        assert importlib.import_module(old) is importlib.import_module(MOVED[old])


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in RENAMED.items() for name in names])
def test_an_old_name_is_the_new_one(module: str, name: str) -> None:
    place, _, now = RENAMED[module][name].partition(":")
    with pytest.warns(DeprecationWarning, match="the old name will go"):
        assert getattr(importlib.import_module(module), name) is getattr(importlib.import_module(place), now)


def test_other_names_are_not_there() -> None:
    for module in RENAMED:
        with pytest.raises(AttributeError, match="no_such_name"):
            importlib.import_module(module).no_such_name  # noqa: B018
