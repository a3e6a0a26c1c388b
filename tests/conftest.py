"""Shared by all tests: small helpers and a compilation cache for the session."""

from __future__ import annotations

import os

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def _compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs that several tests compile are compiled once; honours JAX_COMPILATION_CACHE_DIR, which subprocesses inherit."""
    folder = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("xla")))
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
