"""JAX's generator for CPUs: the published numbers, those of JAX alone, and one kernel for each draw."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.threefry import threefry2x32, use_short_threefry

use_short_threefry()

DRAWS: dict[str, Callable[[jax.Array], Any]] = {
    "bits": lambda key: jax.random.bits(key, (3, 5)),
    "bytes": lambda key: jax.random.bits(key, (7,), jnp.uint8),
    "keys": lambda key: jax.random.key_data(jax.random.split(key, 4)),
    "a key of a number": lambda key: jax.random.key_data(jax.random.fold_in(key, 11)),
    "keys of numbers": lambda key: jax.random.key_data(
        jax.vmap(lambda k: jax.vmap(lambda n: jax.random.fold_in(k, n))(jnp.arange(3)))(jax.random.split(key, 2))
    ),
    "normal": lambda key: jax.random.normal(key, (6,)),
    "many keys": lambda key: jax.vmap(lambda k: jax.random.uniform(k, (2, 3)))(jax.random.split(key, 5)),
}


EVERY_TYPE = """
import jax, jax.numpy as jnp

def drawn():
    found = []
    for impl in ("threefry2x32", "rbg", "unsafe_rbg"):
        key = jax.random.key(3, impl=impl)
        keys, numbers = jax.random.split(key, 3), jnp.arange(4)
        each = jax.vmap(lambda k: jax.random.fold_in(k, 5))(keys)
        every = jax.vmap(lambda k: jax.vmap(lambda n: jax.random.fold_in(k, n))(numbers))(keys)
        found += [jax.random.key_data(x).tolist() for x in (jax.random.fold_in(key, 9), each, every, jax.random.split(keys[0]))]
        found += [jax.vmap(lambda k: jax.random.bits(k, (2,), dtype))(keys).tolist() for dtype in ("uint8", "uint32")]
    return found
"""
"""A script's function that draws."""


@pytest.mark.parametrize(
    ("key", "count", "word"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_the_numbers_are_those_that_its_authors_published(
    key: tuple[int, int], count: tuple[int, int], word: tuple[int, int]
) -> None:
    """The known answers of Random123, `kat_vectors`, threefry2x32 with 20 rounds."""
    words = threefry2x32(*(jnp.full((2,), x, jnp.uint32) for x in (*key, *count)))
    np.testing.assert_array_equal(words, np.tile(np.array(word, np.uint32)[:, None], 2))


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_on_a_cpu_is_one_kernel(draw: Callable[[jax.Array], Any]) -> None:
    text = jax.jit(draw).lower(jax.random.key(5)).compile().as_text()
    draws = re.findall(r" call\(.*to_apply=%([\w.]+)", text)
    assert draws
    assert " while(" not in text
    for name in draws:
        (body,) = re.findall(rf"^%{re.escape(name)} .*?^}}", text, re.MULTILINE | re.DOTALL)
        assert len(re.findall(r"= \S+ fusion\(", body)) == 1


def shifts(function: Callable[[jax.Array], Any]) -> int:
    """Number of shifts in the compiled program: one for each round wherever it is computed."""
    return jax.jit(function).lower(jax.random.key(0)).compile().as_text().count(" shift-right-logical(")


def test_numbers_that_are_read_often_are_drawn_once() -> None:
    def read(readers: int) -> Callable[[jax.Array], list[jax.Array]]:
        return lambda key: [jnp.sin(x) + jnp.flip(x) for x in jax.random.bits(key, (4, 100))[:readers]]

    assert shifts(read(4)) == shifts(read(1))


def test_a_chain_of_keys_is_compiled_link_by_link() -> None:
    def chain(links: int) -> Callable[[jax.Array], jax.Array]:
        def split_often(key: jax.Array) -> jax.Array:
            for _ in range(links):
                key, _ = jax.random.split(key)
            return jax.random.key_data(key)

        return split_often

    assert shifts(chain(12)) - shifts(chain(8)) == shifts(chain(8)) - shifts(chain(4)) > 0


def test_draws_are_those_of_jax_in_all_versions() -> None:
    """The numbers here were drawn in a process without rljax, and are the same in JAX 0.10 and 0.11."""
    key = jax.random.key(2026)
    assert jax.random.bits(key, (3,)).tolist() == [3871830408, 3478574990, 3331668629]
    assert jax.random.key_data(jax.random.split(key, 2)).tolist() == [[3789761601, 119823817], [2381190641, 1119404671]]
    assert jax.random.key_data(jax.random.fold_in(key, 7)).tolist() == [3955297340, 3504928620]
    assert jax.random.randint(key, (4,), 0, 1_000_000).tolist() == [897431, 125425, 372779, 766002]


def test_draws_are_those_of_jax_alone_with_keys_of_every_type() -> None:
    """`unsafe_rbg` draws other numbers for broadcast arguments than for one key and several numbers."""
    numbers: dict[str, Any] = {}
    exec(EVERY_TYPE, numbers)
    alone = f"import sys\n{EVERY_TYPE}\nassert 'rljax' not in sys.modules\nprint(drawn())"
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, timeout=120, check=True)
    assert str(numbers["drawn"]()) == done.stdout.strip()
