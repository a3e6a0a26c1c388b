"""Tables of curricula: what is refused, in one line, and the parameters that a level gives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import struct

from rljax import PPOConfig
from rljax.collect.curriculum.levels import with_levels
from rljax.collect.curriculum.spec import make_curriculum
from rljax.collect.environments import make_training_env
from rljax.core.environments.environment import Environment, EnvState
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.errors import ConfigError
from rljax.envs import make_env

STARTS = [{"head_start": 3}, {"head_start": 0}]


def made(table: Any, env: str = "SparseGridWorld-v0") -> Any:
    return make_curriculum(table, *make_training_env(PPOConfig(env=env)))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"levels": STARTS}, "expected a table with a type and levels"),
        ({"type": "plr"}, "expected a table with a type and levels"),
        ({"type": "sucess", "levels": STARTS}, "curriculum.type = 'sucess': did you mean 'success'?"),
        ({"type": "plr", "levels": STARTS, "threshold": 0.5}, "curriculum.threshold: unknown key of type 'plr'"),
        ({"type": "success", "levels": STARTS, "threshold": 0}, "curriculum.threshold = 0: expected a number > 0 and <= 1"),
        ({"type": "plr", "levels": STARTS, "temperature": "hot"}, "curriculum.temperature = 'hot': expected a number > 0"),
        ({"type": "plr", "levels": STARTS, "score": "value_l2"}, "curriculum.score = 'value_l2': did you mean 'value_l1'?"),
        ({"type": "success", "levels": STARTS, "min_episodes": 200}, "expected less than 1 / (1 - decay) = 100"),
        ({"type": "success", "levels": STARTS, "success": "found"}, "curriculum.success = 'found'"),
        ({"type": "uniform", "levels": 3}, "curriculum.levels = 3: expected a list of tables"),
        ({"type": "uniform", "levels": {"head_start": [1, 1.5]}}, "curriculum.levels[1]: environment SparseGridWorld"),
        ({"type": "uniform", "levels": [{"head_start": 1}, {"goal_reward": 1}]}, "expected the same parameters in all levels"),
        ({"type": "uniform", "levels": {"head_start": [1], "goal_reward": [1, 2]}}, "expected lists of one length"),
        ({"type": "uniform", "levels": [{"head_strat": 1}]}, "did you mean 'head_start'?"),
        ({"type": "uniform", "levels": [{"num_rooms": 2}]}, "no parameter 'num_rooms' that can change between episodes"),
        ({"type": "uniform", "levels": [{"head_start": "far"}]}, "head_start"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        made(table)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@struct.dataclass
class SizedParams:
    size: int = 3
    label: str = "a"


class Sized(Environment):
    """Observations have as many numbers as a parameter says."""

    default_params = SizedParams()

    def observation_space(self, params: SizedParams) -> Box:
        return Box(0.0, 1.0, (params.size,))

    def action_space(self, params: SizedParams) -> Discrete:
        return Discrete(2)

    def reset_env(self, key: jax.Array, params: SizedParams) -> tuple[jax.Array, EnvState]:
        return jnp.zeros(params.size), EnvState(jnp.int32(0))

    def step_env(self, key: jax.Array, state: EnvState, action: jax.Array, params: SizedParams) -> Any:
        return jnp.zeros(params.size), EnvState(state.time + 1), jnp.float32(0), state.time > 3, {}


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([{"size": 3}, {"size": 4}], "levels[1]: the observation_space of Sized is Box([4], float32) there"),
        ([{"size": 3}, {"size": 3}], "Sized cannot take size anew for each episode, its program depends on them"),
        ([{"label": "b"}], "parameter label of Sized is a str, expected one that is a number or an array"),
    ],
)
def test_what_cannot_be_stacked_is_refused_in_one_line(levels: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        with_levels(Sized(), SizedParams(), levels)
    assert message in str(error.value)


def test_a_table_of_lists_is_a_list_of_tables_and_levels_keep_other_parameters() -> None:
    env, params = make_env("SparseGridWorld-v0", goal_reward=2.0)
    wrapped, by_table = with_levels(
        env, params, [{"head_start": 3, "max_steps_in_episode": 9}, {"head_start": 1, "max_steps_in_episode": 7}]
    )
    _, by_list = with_levels(env, params, {"head_start": [3, 1], "max_steps_in_episode": [9, 7]})
    assert wrapped.name == "SparseGridWorld-v0"
    for level, expected in enumerate([(3, 9), (1, 7)]):
        for levels in (by_table, by_list):
            of = levels.of(jnp.int32(level))
            assert (int(of.head_start), int(of.max_steps_in_episode), of.goal_reward) == (*expected, 2.0)
