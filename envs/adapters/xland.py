"""XLand-MiniGrid (Nikulin et al., 2024): `xland:XLand-MiniGrid-R1-9x9`, `xland:MiniGrid-DoorKey-8x8` and so on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xminigrid
from xminigrid.registration import _REGISTRY
from xminigrid.rendering.rgb_render import render as draw_rgb

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.errors import ConfigError
from rljax.envs.adapters import FromSuite, check_name, like, raw_key

TILES = 16
"""More than the number of kinds of tiles and of colours."""
PIXELS = 32
"""Pixels along each side of a tile in a picture."""


class XLandEnv(FromSuite):
    """A grid world of XLand-MiniGrid, with its own parameters. What is seen of the grid are integers, i32 (not pixels).

    Args:
        env: the environment.
        params: its default parameters.
        name: its name, for messages and records.
        benchmark: None, or the rulesets of which one is drawn for each episode.
    """

    def __init__(self, env: Any, params: Any, name: str, benchmark: Any = None):
        super().__init__(env, name)
        self._params, self.benchmark = params, benchmark

    @property
    def default_params(self) -> Any:
        return self._params

    def observation_space(self, params: Any) -> Box:
        return Box(0, TILES, tuple(self.env.observation_shape(params)), jnp.int32)

    def action_space(self, params: Any) -> Discrete:
        return Discrete(self.env.num_actions(params))

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        return state.last() & (state.discount > 0)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        if self.benchmark is not None:
            key, rules_key = jax.random.split(key)
            params = params.replace(ruleset=self.benchmark.sample_ruleset(raw_key(rules_key)))
        state = self.env.reset(params, raw_key(key))
        return state.observation.astype(jnp.int32), state

    def step_env(
        self, key: jax.Array, state: Any, action: jax.Array, params: Any
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, Any]]:
        after = like(self.env.step(params, state, action), state)
        over = after.last() & (after.discount == 0)
        return after.observation.astype(jnp.int32), after, jnp.float32(after.reward), over, {}

    def render(self, state: Any, params: Any) -> jax.Array:
        def draw(grid: Any, agent: Any) -> Any:
            return np.asarray(draw_rgb(np.asarray(grid), agent, params.view_size), np.uint8)

        shape = jax.ShapeDtypeStruct((params.height * PIXELS, params.width * PIXELS, 3), jnp.uint8)
        return jax.pure_callback(draw, shape, state.state.grid, state.state.agent, vmap_method="sequential")


def ids() -> list[str]:
    return sorted(xminigrid.registered_environments())


def factory(name: str) -> Callable[..., Any]:
    """Return the function that builds an environment. Its argument `benchmark` names rulesets, such as "trivial-1m", that the
    library fetches; without it, the goal and the rules of an XLand are those of `params.ruleset`, which has none.
    """
    check_name("xland", name, ids())

    def build(benchmark: str = "") -> XLandEnv:
        env, params = xminigrid.make(name)
        return XLandEnv(env, params, f"xland:{name}", xminigrid.load_benchmark(benchmark) if benchmark else None)

    return build


def adapt(env: Any, given: Mapping[str, Any] | None = None) -> XLandEnv:
    """Take an environment whose parameters are the defaults of its class, but for those that are `given`.

    Raises:
        ConfigError: the library makes environments of this class with several parameters, which the object does not have, and
            none of them is given.
    """
    made = env
    while "_env" in vars(made):  # a wrapper
        made = made._env
    kind = type(made)
    path = f"{kind.__module__}:{kind.__name__}"
    kwargs = {name: spec.kwargs for name, spec in _REGISTRY.items() if spec.kwargs and spec.entry_point == path}
    if kwargs and not any(set(given or ()) & set(each) for each in kwargs.values()):
        name, each = next(iter(kwargs.items()))
        raise ConfigError(
            f"env: an object {kind.__name__} of XLand does not have its parameters ({', '.join(each)}): give its id, such as "
            f"env = 'xland:{name}', or env_params with them"
        )
    return XLandEnv(env, env.default_params(), f"xland:{type(env).__name__}")
