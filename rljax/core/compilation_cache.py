"""JAX's cache of compiled programs on disk, switched on and off while the process runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache


def use_compilation_cache(used: bool) -> None:
    """Set whether compiled programs are read from the cache on disk and written to it."""
    jax.config.update("jax_enable_compilation_cache", used)
    # JAX looks at the setting only when it compiles for the first time.
    compilation_cache.reset_cache()


@contextlib.contextmanager
def without_compilation_cache() -> Iterator[None]:
    """Compile anew within this context; afterwards the setting is what it was before."""
    before: bool = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    use_compilation_cache(False)
    try:
        yield
    finally:
        use_compilation_cache(before)
