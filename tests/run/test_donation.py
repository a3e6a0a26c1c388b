"""Every program that a driver calls again and again takes its state's memory over: the state is donated, all of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.agent import Agent, Halves
from rljax.core.memory import tree_bytes
from rljax.run import chunks, driver
from rljax.run.search.population import Programs
from tests.run.tiny_runs import TINY
from tests.run.tiny_teacher import ready

CONFIGS = {name: TINY[name].replace(eval_every=None) for name in ("ppo", "dqn", "sac", "league", "bc")}


def donated(compiled: Any) -> set[int]:
    """The numbers of the arguments whose memory the results of a compiled program take over."""
    head = compiled.as_text().split("\n", 1)[0]
    aliases = re.search(r"input_output_alias=\{(.*?)\}, entry", head)
    return set() if aliases is None else {int(number) for number in re.findall(r"\((\d+), \{\}", aliases[1])}


def assert_donated(compiled: Any, state: Any, before: int = 0) -> None:
    """All arrays of the state are taken over but for empty ones; `before` arguments come first."""
    leaves = jax.tree.leaves(state)
    wanted = {before + i for i, x in enumerate(leaves) if x.size}
    assert wanted <= donated(compiled), sorted(wanted - donated(compiled))
    assert compiled.memory_analysis().alias_size_in_bytes >= tree_bytes(state)


@pytest.fixture
def compiled_chunks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """The programs that `fit` compiles, each with the state that it is given."""
    made: list[tuple[Any, Any]] = []

    def noted(compile_chunk: Callable[..., Any]) -> Callable[..., Any]:
        def compiling(iteration: Any, example: Any, *rest: Any) -> Any:
            made.append((compile_chunk(iteration, example, *rest), example))
            return made[-1][0]

        return compiling

    monkeypatch.setattr(driver, "compile_chunk", noted(chunks.compile_chunk))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seeds", [None, 2])
def test_fit_donates_its_state(name: str, seeds: int | None, compiled_chunks: list[tuple[Any, Any]]) -> None:
    if seeds is not None and name in ("league", "bc"):
        pytest.skip("one program with several seeds is enough")
    config = ready(CONFIGS[name])
    rljax.fit(config.replace(total_timesteps=8 * config.steps_per_iteration), seeds=seeds)
    (chunk, state), *more = compiled_chunks
    assert not more
    assert_donated(chunk, state)


def test_the_state_that_was_given_is_gone() -> None:
    """On this device, too: not only the compiler's promise."""
    agent = rljax.make_agent(CONFIGS["ppo"])
    iteration = chunks.vectorized_iteration(agent, None)
    state = agent.init(jax.random.key(0))
    names = sorted(jax.eval_shape(iteration, state, jnp.int32(0))[1])
    chunk = chunks.compile_chunk(iteration, state, (), len(names), 2)
    after, *_ = chunk(state, jnp.int32(0), jnp.int32(1))
    assert all(x.is_deleted() for x in jax.tree.leaves(state))
    assert not any(x.is_deleted() for x in jax.tree.leaves(after))


class Rolling(NamedTuple):
    """A state whose environment counts steps."""

    params: jax.Array
    time: jax.Array


def test_overlapped_halves_leave_nothing_of_a_step_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot donate, but keep no more than the state that was given and the newest one."""
    shape = (3, 17, 5)  # of no other array

    def kept(*_: Any) -> dict[str, jax.Array]:
        def count() -> np.ndarray:
            return np.array(sum(x.shape == shape for x in jax.live_arrays()), np.float32)

        return {"kept": jax.pure_callback(count, jax.ShapeDtypeStruct((), jnp.float32))}

    monkeypatch.setattr(chunks, "evaluation_metrics", kept)
    given = Rolling(params=jnp.ones(shape), time=jnp.zeros(()))
    halves = Halves(
        init=lambda _: given,
        collect=lambda state: state._replace(time=state.time + 1),
        update=lambda state: (state._replace(params=state.params + 1), {}),
        join=lambda collected, updated: updated._replace(time=collected.time),
    )
    agent = Agent(halves.init, halves.step, lambda *args: (args[1], None), None, halves=halves)
    _, rows, _ = chunks.overlapped_chunk(agent, given, 1, 4, 4)(given, np.int32(0), np.int32(4))
    assert rows[:, 0].tolist() == [2.0] * 4


@pytest.mark.slow
def test_sweep_and_tune_donate_the_states_of_all_runs() -> None:
    programs = Programs(CONFIGS["dqn"], ("learning_rate",))
    values, keys = programs._example(3)
    assert_donated(programs.chunk(3)[0], jax.eval_shape(programs._init, values, keys), before=len(values))


@pytest.mark.slow
def test_every_phase_donates_its_state(tmp_path: Path, compiled_chunks: list[tuple[Any, Any]]) -> None:
    """A clone, then reinforcement learning that begins with its weights."""
    clone = ready(CONFIGS["bc"].replace(normalize_rewards=False))
    learn = TINY["ppo"].replace(network=clone.network, eval_every=None, total_timesteps=4 * 64)
    rljax.fit(clone.replace(total_timesteps=4 * clone.steps_per_iteration), run_dir=tmp_path / "clone")
    rljax.fit(learn, init_from=tmp_path / "clone", run_dir=tmp_path / "learn")
    assert len(compiled_chunks) == 2
    for chunk, state in compiled_chunks:
        assert_donated(chunk, state)


@pytest.mark.slow
def test_make_train_keeps_one_state() -> None:
    """The whole run is one program, whose loop has no second buffer: its temporaries are less than half of one."""
    config = CONFIGS["dqn"].replace(buffer_size=400_000, prioritized=False)
    held = tree_bytes(jax.eval_shape(rljax.make_agent(config).init, jax.random.key(0)).replay)
    compiled = jax.jit(rljax.make_train(config)).lower(jax.random.key(0)).compile()
    memory: Any = compiled.memory_analysis()
    assert memory.output_size_in_bytes >= held
    assert memory.temp_size_in_bytes < 0.5 * held
