"""JAX's cache of compiled programs: switched off and on again while the process runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from rljax.core.compilation_cache import use_compilation_cache, without_compilation_cache

OPTIONS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_enable_compilation_cache")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A cache on disk that keeps every program."""
    before = {name: getattr(jax.config, name) for name in OPTIONS}
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    use_compilation_cache(before["jax_enable_compilation_cache"])


def kept_after_compiling(cache: Path, number: int) -> int:
    """The number of files in the cache after a program is compiled that was not there before."""
    jax.jit(lambda x: x * 3 + number).lower(1.0).compile()
    return len([*cache.iterdir()])


def test_programs_are_compiled_anew_where_the_cache_was_used_before(cache: Path) -> None:
    """JAX would go on using the persistent cache, which it looks at when it compiles for the first time."""
    kept = []
    for number, used in enumerate((True, False, True)):
        use_compilation_cache(used)
        kept.append(kept_after_compiling(cache, number))
    assert kept[0] > 0
    assert kept[1] == kept[0]
    assert kept[2] > kept[1]


@pytest.mark.parametrize("used", [True, False])
def test_the_setting_is_afterwards_what_it_was(used: bool, cache: Path) -> None:
    use_compilation_cache(used)
    with contextlib.suppress(ZeroDivisionError), without_compilation_cache():
        assert kept_after_compiling(cache, 0) == 0
        raise ZeroDivisionError
    assert (kept_after_compiling(cache, 1) > 0) == used
