"""AlphaZero (Silver et al., 2018) inside one compiled step, with the search of Gumbel AlphaZero (Danihelka et al., 2022), which
improves the policy with few simulations.

One iteration plays `num_steps` moves in every game, each chosen by a search that the network guides, then fits the network to the
policies of the searches and to the results of the games.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import mctx
import optax
from flax.core import FrozenDict

from rljax.algos.common.config import OnPolicyConfig
from rljax.algos.common.game_policy import build_game_policy, evaluate_positions, game_act, seen_game_rewards
from rljax.algos.common.optimizer import adam, annealed
from rljax.algos.common.policy import policy_and_value
from rljax.algos.common.state import NormalizedState, after_update, normalize_obs
from rljax.collect.curriculum.levels import LEVEL, LEVEL_SCORE
from rljax.collect.curriculum.rules import Curriculum, EpisodeSteps, rollout_episodes, with_probabilities
from rljax.collect.environments import changed_steps, make_training_game, training_reward
from rljax.collect.games.rollout import acting_view
from rljax.collect.games.turns import turn_advantages
from rljax.collect.minibatches import init_optimizer, minibatch_steps
from rljax.collect.normalizers import RunningStatistics, init_reward_statistics, init_statistics, scale_rewards
from rljax.collect.resets import environment_noise, fresh_episodes, fresh_pool, initial_environments
from rljax.collect.returns import explained_variance
from rljax.collect.rollout import episode_means, episode_totals, metrics_of, steps_without_action
from rljax.collect.streams import flat_steps
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.config import algorithm, leaf, static
from rljax.core.environments.environment import step_or_restart
from rljax.core.errors import ConfigError, shown
from rljax.core.games.game import Game, side_rewards
from rljax.core.keys import as_single_key, draw
from rljax.core.state import per_environment, statistics
from rljax.nn.modules.classes import mask_logits
from rljax.nn.outputs.actions import ActionHead
from rljax.nn.policy import Policy
from rljax.planning.mcts import MAX_SIMULATIONS, check_searchable, evaluation_from
from rljax.planning.nodes import ILLEGAL, completed_qvalues, search_nodes


@algorithm("alphazero")
class AlphaZeroConfig(OnPolicyConfig):
    """AlphaZero, for games with turns and full information; chance in their steps must be given by `Game.chance`."""

    of_games: ClassVar[bool] = True

    env: Any = static(default="TicTacToe-v0", doc="id of a game, or a Game object")
    total_timesteps: int = static(default=200_000, doc="budget of moves, rounded down to whole iterations", gt=0, steps=True)
    gamma: float = leaf(default=1.0, doc="discount per move in the value targets; the search does not discount", ge=0, le=1)
    num_envs: int = static(default=128, doc="number of games played in parallel", gt=0)
    num_steps: int = static(default=16, doc="number of moves per game in an iteration", gt=0)
    num_simulations: int = static(
        default=32, doc="number of positions that the search before each move adds to its tree", gt=0, le=MAX_SIMULATIONS
    )
    root_exploration: float = leaf(
        default=0.25, doc="share of the search's prior that is uniform over all legal moves", ge=0, le=1
    )
    random_moves: float = leaf(
        default=0.2, doc="share of uniformly random moves, so that the agent also learns rare positions", ge=0, le=1
    )
    num_epochs: int = static(default=1, doc="passes over the moves of an iteration", gt=0)
    learning_rate: float = leaf(default=1e-3, doc="Adam step size", ge=0)
    max_grad_norm: float | None = leaf(default=1.0, doc="clip the global gradient norm", gt=0)
    vf_coef: float = leaf(default=1.0, doc="weight of the value loss", ge=0)
    td_lambda: float = leaf(
        default=0.8,
        doc="trace decay of the value targets; 1 uses the result of the game, including the effect of random moves",
        ge=0,
        le=1,
    )
    curriculum: Mapping[str, Any] | None = static(
        default=None,
        doc="levels of the game's parameters: { type = 'uniform', 'success' or 'plr', levels = [{ ... }, ...] }",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_rewards is not None:
            raise ConfigError(
                f"clip_rewards = {self.clip_rewards}: a search adds whole rewards to values, so AlphaZero cannot learn those of "
                "clipped rewards; expected none; scale_rewards or normalize_rewards suit large rewards"
            )
        for name, value in (("randomize", self.randomize or None), ("sticky_actions", changed_steps(self, "sticky_actions"))):
            if value is not None:
                told = name if isinstance(value, jax.core.Tracer) else f"{name} = {shown(value)}"
                raise ConfigError(f"{told}: a search does not foresee what is drawn, expected none")


class AlphaZeroParts(NamedTuple):
    """Game and policy of a configuration, built once; `curriculum` is the rule of the game's levels, None without levels."""

    config: AlphaZeroConfig
    game: Game
    game_params: Any
    policy: Policy
    head: ActionHead
    curriculum: Curriculum | None = None


class AlphaZeroState(NormalizedState, kw_only=True):
    """State of a run of E games; `obs` are those of all players, `[E, P, ...]`.

    Statistics of observations are of those of the players to move, statistics of rewards of all E * P seats.

    Attributes:
        length: number of moves so far in the games under way, i32 `[E]`.
        returns: returns of player 0 so far in these games, f32 `[E]`.
        curriculum: state of the curriculum; None without one.
    """

    env_state: Any = per_environment(depends_on=("curriculum",))
    curriculum: Any = statistics(depends_on=("env", "env_params", "curriculum"))
    length: jax.Array = per_environment()
    returns: jax.Array = per_environment()


class SearchedMoves(NamedTuple):
    """T moves of E games, `[T, E, ...]`: the observation of the player to move, its legal actions, the policy of the search
    (`weights`, which add up to 1), and the results; rewards `[T, E, P]` are those of each player's side. `extras` are `level` and
    `level_score` of games with a curriculum.
    """

    obs: Any
    mask: jax.Array
    weights: jax.Array
    moves: jax.Array
    reward: jax.Array
    done: jax.Array
    length: jax.Array
    returns: jax.Array
    metrics: Mapping[str, jax.Array] = FrozenDict()
    extras: Mapping[str, jax.Array] = FrozenDict()


class _Batch(NamedTuple):
    obs: Any
    mask: jax.Array
    weights: jax.Array
    target: jax.Array


def alphazero_parts(config: AlphaZeroConfig) -> AlphaZeroParts:
    """Build game and network.

    Raises:
        ConfigError: `env` is not a game that can be searched, or the network does not fit.
    """
    game, env_params, curriculum = make_training_game(config)
    with jax.ensure_compile_time_eval():
        # Levels that come later have no probability yet, and are looked at as well.
        looked_at = env_params if curriculum is None else env_params.with_probability(jnp.ones(curriculum.num_levels))
    check_searchable(game, looked_at)
    _, _, _, policy, head = build_game_policy(config, made=(game, env_params))
    if policy.initial_carry((1,)) is not None:
        raise ConfigError("network: a search sees whole positions, so AlphaZero expects a network without memory")
    return AlphaZeroParts(config, game, env_params, policy, head, curriculum)


def alphazero_init(parts: AlphaZeroParts, key: jax.Array) -> AlphaZeroState:
    """The state before the first iteration."""
    config = parts.config
    params_key, env_key, eval_key, key = jax.random.split(as_single_key(key), 4)
    env_state, obs = initial_environments(parts.game, parts.game_params, env_key, config.num_envs)
    one = jax.tree.map(lambda x: x[0, 0], obs)
    params = parts.policy.init(params_key, one)
    return AlphaZeroState(
        params=params,
        obs_statistics=init_statistics(one) if config.normalize_observations else None,
        reward_statistics=init_reward_statistics(config.num_envs * parts.game.num_players) if config.normalize_rewards else None,
        curriculum=None if parts.curriculum is None else parts.curriculum.init(),
        opt_state=init_optimizer(adam(config), params),
        env_state=env_state,
        obs=obs,
        length=jnp.zeros(config.num_envs, jnp.int32),
        returns=jnp.zeros(config.num_envs),
        key=key,
        eval_key=eval_key,
        iteration=jnp.zeros((), jnp.int32),
    )


def alphazero_collect(parts: AlphaZeroParts, state: AlphaZeroState) -> tuple[AlphaZeroState, SearchedMoves]:
    """Play `num_steps` moves in every game, each after a search."""
    config, game, keep = parts.config, parts.game, (LEVEL, LEVEL_SCORE) if parts.curriculum is not None else ()
    game_params = with_probabilities(parts.curriculum, state.curriculum, parts.game_params)
    key, search_key, env_key = jax.random.split(state.key, 3)
    nodes = search_nodes(game, game_params, evaluation_from(partial(evaluate_positions, parts, state)))

    def step(loop: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], SearchedMoves]:
        env_state, obs, length, returns = loop
        key, chance, noise = inputs
        root_key, tree_key = jax.random.split(key)
        seen, mask, _, moves = acting_view(game, env_state, obs, game_params)
        seen, mask = jax.tree.map(lambda x: x[:, 0], (seen, mask))
        root = nodes.root(root_key, env_state)
        legal = jnp.pad(mask, ((0, 0), (0, root.prior_logits.shape[1] - nodes.num_actions)))
        found = mctx.gumbel_muzero_policy(
            params=None,
            rng_key=tree_key,
            root=_with_root_exploration(root, legal, config.root_exploration),
            recurrent_fn=nodes.recurrent,
            num_simulations=config.num_simulations,
            invalid_actions=~legal,
            qtransform=completed_qvalues(nodes),
        )
        taken = jnp.where(
            chance[..., 0] < config.random_moves, jnp.argmax(jnp.where(mask, chance[..., 1:], -1.0), -1), found.action
        )
        joint = jnp.repeat(taken[:, None], game.num_players, axis=1)
        obs, env_state, reward, terminated, truncated, info = jax.vmap(
            lambda k, f, s, a: step_or_restart(game, k, f, s, a, game_params)
        )(noise.step_key, fresh_episodes(game, game_params, noise, pool), env_state, joint)
        weights = found.action_weights[:, : nodes.num_actions]
        done, length, returns = terminated | truncated, length + 1, returns + reward[:, 0]
        shared = side_rewards(game, reward)
        extras: FrozenDict[str, jax.Array] = FrozenDict({name: info[name] for name in keep})
        happened = SearchedMoves(seen, mask, weights, moves, shared, done, length, returns, metrics_of(info), extras)
        return (env_state, obs, jnp.where(done, 0, length), jnp.where(done, 0.0, returns)), happened

    noise = environment_noise(game, game_params, env_key, config.num_steps, config.num_envs, config)
    chance_key, search_key = jax.random.split(search_key)
    actions = game.action_space(game_params).n
    chance = draw(jax.random.uniform, chance_key, (config.num_steps, config.num_envs, 1 + actions))
    keys = jax.random.split(search_key, config.num_steps)
    pool = fresh_pool(game, game_params, noise)
    start = (state.env_state, state.obs, state.length, state.returns)
    (env_state, obs, length, returns), moves = jax.lax.scan(step, start, (keys, chance, noise))
    return state.replace(key=key, env_state=env_state, obs=obs, length=length, returns=returns), moves


def _with_root_exploration(root: mctx.RootFnOutput, mask: jax.Array, share: float | jax.Array) -> mctx.RootFnOutput:
    """Return the root with a share of its prior spread uniformly over all legal moves. Otherwise a prior that is confident too
    early is never corrected, because the other moves are never searched.

    The share enters the target too, as root noise does in AlphaZero, but hardly: a search of 16 multiplies the odds of the best
    move against the worst by about exp(5.5). Of a share of .25 over 7 moves the worst keeps 2e-4, one half way between 3e-3. Only
    among moves of nearly one value does it draw the policy towards the uniform one.
    """
    legal = mask / jnp.sum(mask, axis=-1, keepdims=True)
    prior = (1.0 - share) * jax.nn.softmax(root.prior_logits) + share * legal
    return root.replace(prior_logits=jnp.where(mask, jnp.log(jnp.maximum(prior, 1e-30)), ILLEGAL))


def alphazero_update(parts: AlphaZeroParts, state: AlphaZeroState, moves: SearchedMoves) -> tuple[AlphaZeroState, Metrics]:
    """Fit the network to the searches and to the results."""
    config, game = parts.config, parts.game
    key, shuffle_key = jax.random.split(state.key)
    seen = normalize_obs(state, moves.obs)
    _, value, _ = policy_and_value(parts, state.params, seen)
    last_obs, _, _, last_moves = acting_view(game, state.env_state, state.obs, parts.game_params)
    _, last_value, _ = policy_and_value(parts, state.params, normalize_obs(state, last_obs))
    reward = training_reward(config, moves.reward)
    reward_statistics = seen_game_rewards(config, state.reward_statistics, moves.reward, moves.done)
    advantages = turn_advantages(
        reward if reward_statistics is None else scale_rewards(reward_statistics, reward),
        value[..., None],
        moves.moves,
        moves.done,
        last_value,
        last_moves,
        config.gamma,
        config.td_lambda,
        game.turn_gap,
    )
    # Moves whose result is not known have an advantage of 0: their target is the predicted value.
    target = advantages.gae[..., 0] + value
    batch = flat_steps(_Batch(seen, moves.mask, moves.weights, target))

    def loss(params: Any, minibatch: _Batch) -> tuple[jax.Array, Metrics]:
        logits, value, _ = policy_and_value(parts, params, minibatch.obs)
        cross_entropy = jnp.mean(optax.softmax_cross_entropy(mask_logits(logits, minibatch.mask), minibatch.weights))
        value_loss = 0.5 * jnp.mean(jnp.square(value - minibatch.target))
        target_entropy = -jnp.mean(jnp.sum(jax.scipy.special.xlogy(minibatch.weights, minibatch.weights), axis=-1))
        return cross_entropy + config.vf_coef * value_loss, {
            "train/policy_loss": cross_entropy - target_entropy,
            "train/search_entropy": target_entropy,
            "train/value_loss": value_loss,
        }

    rate = annealed(config, state.iteration)
    params, opt_state, metrics = minibatch_steps(
        loss,
        adam(config),
        state.params,
        state.opt_state,
        batch,
        shuffle_key,
        num_epochs=config.num_epochs,
        num_minibatches=config.num_minibatches,
        learning_rate=rate,
    )
    metrics |= {
        "train/value": jnp.mean(value),
        "train/explained_variance": explained_variance(target, value),
        "train/learning_rate": rate,
    }
    changes = {"params": params, "opt_state": opt_state, "reward_statistics": reward_statistics, "key": key}
    if parts.curriculum is not None:
        played = EpisodeSteps(moves.returns, moves.length, moves.done, moves.metrics, moves.extras)
        episodes, changes["env_state"] = rollout_episodes(
            parts.curriculum, played, state.env_state, advantages.gae, advantages.known
        )
        changes["curriculum"], of_levels = parts.curriculum.update(state.curriculum, episodes)
        metrics |= of_levels
    return after_update(state, moves, **changes), metrics


def make_alphazero(config: AlphaZeroConfig) -> Agent:
    """The agent of a configuration. `act` is the network alone; `search_player` of rljax.planning has it search."""
    parts = alphazero_parts(config)

    def init(key: jax.Array) -> AlphaZeroState:
        return alphazero_init(parts, key)

    def step(state: AlphaZeroState) -> tuple[AlphaZeroState, Metrics]:
        state, moves = alphazero_collect(parts, state)
        state, metrics = alphazero_update(parts, state, moves)
        without = steps_without_action(moves.mask)
        totals = episode_totals(moves.done, moves.returns, moves.length, moves.metrics, without)
        return state, episode_means(totals) | metrics

    def acting(state: AlphaZeroState) -> tuple[Any, RunningStatistics | None]:
        return state.params, state.obs_statistics

    return Agent(
        init,
        step,
        game_act(parts.game, parts.game_params, parts.policy, parts.head, acting),
        config,
        policy_and_value=partial(evaluate_positions, parts),
    )


register_agent(AlphaZeroConfig, make_alphazero)
