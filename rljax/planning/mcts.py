"""Monte Carlo tree search over any `Game` in which players take turns, with mctx (Babuschkin et al., 2020).

The search starts from the true state, so games with hidden information are refused: the search would see the hidden part. Random
steps are searched if the game gives the probabilities of their outcomes (`Game.chance`), by chance nodes (see nodes.py); games
that do not are refused, too: one random result would count as certain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import mctx

from rljax.algos.common.config import learns_values
from rljax.collect.environments import make_game
from rljax.core.agent import Agent
from rljax.core.check import check_outcomes, check_zero_sum
from rljax.core.config import env_name
from rljax.core.environments.spaces import Discrete, as_space
from rljax.core.errors import ConfigError, is_whole, shown
from rljax.core.games.chance import draws_from_state, draws_in_step, num_outcomes
from rljax.core.games.game import Game, side_rewards
from rljax.core.games.game_step_wrappers import in_steps_of
from rljax.core.games.game_wrappers import split_views, stack_of, with_frames
from rljax.core.games.versus import Player, Remembering, random_player
from rljax.planning.nodes import ILLEGAL, Evaluation, search_nodes

MAX_ROLLOUT = 1_000
"""Largest number of steps of random play; its return up to there counts."""

MAX_SIMULATIONS = 100_000
"""Largest number of simulations of one search: a search keeps the state of every position in its tree."""


class SearchResult(NamedTuple):
    """Result of searching B states: the action to take, i32 `[B]`; the weights of all actions, f32 `[B, A]`, which add up to 1;
    and the value of the state to the player to move, f32 `[B]`."""

    action: jax.Array
    weights: jax.Array
    value: jax.Array


class Search(Protocol):
    """`(key, state [B, ...]) -> SearchResult`; some player must be to move in each of the states."""

    def __call__(self, key: jax.Array, state: Any) -> SearchResult: ...


def random_evaluation(game: Game, params: Any) -> Evaluation:
    """Return an evaluation by random play to the end of the game, as in UCT (Kocsis and Szepesvari, 2006), with a uniform prior
    policy.
    """

    def evaluate(key: jax.Array, state: Any, _obs: Any, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        def going(loop: tuple[Any, ...]) -> jax.Array:
            return ~loop[2] & (loop[4] < MAX_ROLLOUT)

        def step(loop: tuple[Any, ...]) -> tuple[Any, ...]:
            key, state, _, total, time = loop
            key, act_key, step_key = jax.random.split(key, 3)
            action = random_player(act_key, state, None, game.action_mask(state, params))
            _, state, reward, over, _ = game.step_env(step_key, state, action, params)
            return key, state, over | game.is_truncated(state, params), total + reward, time + 1

        player = jnp.argmax(game.to_move(state))
        start = (key, state, jnp.zeros((), bool), jnp.zeros(game.num_players), jnp.zeros((), jnp.int32))
        total = jax.lax.while_loop(going, step, start)[3]
        return jnp.zeros(mask.shape), side_rewards(game, total)[player]

    return evaluate


def evaluation_from(policy_and_value: Callable[[Any], tuple[jax.Array, jax.Array]]) -> Evaluation:
    """Return the evaluation by a network, `obs -> (logits, value)`."""

    def evaluate(_key: jax.Array, _state: Any, obs: Any, _mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        return policy_and_value(obs)

    return evaluate


def make_mcts(
    game: Game,
    params: Any = None,
    *,
    evaluate: Evaluation | None = None,
    num_simulations: int = 100,
    exploration: float = 1.4,
) -> Search:
    """Return a Monte Carlo tree search, which takes the most visited action.

    Each simulation follows the legal action with the largest q + c p sqrt(N) / (1 + n) (Silver et al., 2017); an action that was
    not visited yet has the value of its state as q.

    Args:
        game: a zero-sum game of two sides that take turns.
        params: parameters of the game; by default `game.default_params`.
        evaluate: evaluation of new states; by default `random_evaluation`, whose uniform prior makes this a UCT.
        num_simulations: number of states added to the tree.
        exploration: c, in units of returns.

    Raises:
        ConfigError: the game cannot be searched (`check_searchable`), or a number is not allowed.
    """
    check_searchable(game, params)
    if not is_whole(num_simulations, 1, MAX_SIMULATIONS):
        raise ConfigError(f"num_simulations = {num_simulations}: expected a whole number > 0 and <= {MAX_SIMULATIONS}")
    params = game.default_params if params is None else params
    nodes = search_nodes(game, params, evaluate or random_evaluation(game, params))

    def select(tree: Any, node: jax.Array) -> jax.Array:
        visits = tree.children_visits[node]
        q = jnp.where(visits > 0, tree.qvalues(node), tree.node_values[node])
        logits = tree.children_prior_logits[node]
        bonus = exploration * jax.nn.softmax(logits) * jnp.sqrt(jnp.sum(visits)) / (1.0 + visits)
        # At the first visit, only the prior distinguishes actions.
        score = q + jnp.where(jnp.sum(visits) > 0, bonus, jax.nn.softmax(logits))
        return jnp.argmax(jnp.where(logits > 0.5 * ILLEGAL, score, -jnp.inf)).astype(jnp.int32)

    def choose(_key: jax.Array, tree: Any, node: jax.Array, _depth: jax.Array | None = None) -> jax.Array:
        return nodes.choose(select, tree, node)

    def search(key: jax.Array, state: Any) -> SearchResult:
        root_key, search_key = jax.random.split(key)
        found = nodes.root(root_key, state)
        tree = mctx.search(
            params=None,
            rng_key=search_key,
            root=found,
            recurrent_fn=nodes.recurrent,
            root_action_selection_fn=choose,
            interior_action_selection_fn=choose,
            num_simulations=num_simulations,
            invalid_actions=found.prior_logits < 0.5 * ILLEGAL,
        )
        summary = tree.summary()
        visits, weights = (x[:, : nodes.num_actions] for x in (summary.visit_counts, summary.visit_probs))
        return SearchResult(jnp.argmax(visits, axis=-1).astype(jnp.int32), weights, summary.value)

    return search


def searching(search: Search, game: Game) -> Player:
    """Return a search as a player for matches; frames that its game stacks (`GameFrameStack`) are its carry."""

    def found(key: jax.Array, state: Any) -> jax.Array:
        return jnp.repeat(search(key, jax.tree.map(lambda x: x[None], state)).action, game.num_players)

    def play(key: jax.Array, state: Any, _obs: Any, _mask: jax.Array) -> jax.Array:
        return found(key, in_steps_of(game, state))

    def remembering(key: jax.Array, state: Any, obs: Any, _mask: jax.Array, frames: Any) -> tuple[jax.Array, Any]:
        _, after = split_views(game)[1](obs, frames)
        return found(key, with_frames(game, in_steps_of(game, state), obs, frames)), after

    return play if stack_of(game) is None else Remembering(remembering)


def search_player(agent: Agent, state: Any, num_simulations: int) -> Player:
    """Return a player that searches before each move, guided by the policy and the value of a trained agent.

    A search adds the mean rewards of a side to the agent's values. Self-play and leagues value a player's own rewards, so their
    agents need a game in which the players of a team are rewarded alike.

    Args:
        agent: an agent of self-play, a league or AlphaZero, or a clone or student of a game.
        state: its trained state.
        num_simulations: number of positions that a search adds to its tree.

    Raises:
        ConfigError: the agent plays no game, or one that cannot be searched, or its values are not of the game's rewards.
    """
    check_evaluates(agent)
    assert agent.policy_and_value is not None
    game, params = make_game(agent.config)
    evaluate = evaluation_from(partial(agent.policy_and_value, state))
    return searching(make_mcts(game, params, evaluate=evaluate, num_simulations=num_simulations), game)


def check_evaluates(agent: Agent) -> None:
    """Refuse agents that do not value positions as a search needs it.

    Raises:
        ConfigError: the agent plays no game, or has a memory, or learned no value, or that of clipped rewards.
    """
    config = agent.config
    if agent.policy_and_value is None:
        raise ConfigError(f"{config.algorithm} on {env_name(config)}: only agents of games can search, and only without memory")
    if not learns_values(config):
        raise ConfigError(
            f"vf_coef = {config.vf_coef}: the agent learned no values, and a search needs them; expected more than 0"
        )
    if config.clip_rewards is not None:
        raise ConfigError(
            f"clip_rewards = {config.clip_rewards}: the agent's values are of clipped rewards, and a search adds them to whole "
            "rewards; expected none"
        )


def check_searchable(game: Game, params: Any = None) -> None:
    """Refuse games that a search would play wrongly.

    These are games with simultaneous moves, with more than two sides or rewards that do not add up to zero (one side's loss is
    then not the other's gain), with hidden information, or with random steps whose outcomes are not said (`Game.chance`). The
    rewards and outcomes of a user's own game are checked by random play, except under a trace.

    Args:
        game: the game.
        params: its parameters; by default `game.default_params`.

    Raises:
        ConfigError: it is no game, or one of these; the message says which.
    """
    if not isinstance(game, Game):
        raise ConfigError(f"game = {shown(game)}: expected a game, such as rljax.make_env('ConnectFour-v0')[0]")
    params = game.default_params if params is None else params
    if len(set(game.teams)) != 2:
        raise ConfigError(f"{game.name}: has {len(set(game.teams))} sides, expected a zero-sum game of two")
    if not isinstance(as_space(game.action_space(params)), Discrete):
        raise ConfigError(f"{game.name}: its actions are not Discrete, as a search needs them")
    if game.turn_gap == 0:
        raise ConfigError(f"{game.name}: players move at the same time, expected a game in which they take turns")
    if game.hides_state:
        raise ConfigError(f"{game.name}: hides a part of its state, which a search would see; expected full information")
    if draws_from_state(game, params):
        raise ConfigError(f"{game.name}: its state holds a random key, with which a search would foresee random results")
    check_zero_sum(game, params)
    if num_outcomes(game, params) > 1:
        check_outcomes(game, params)
    elif draws_in_step(game, params):
        raise ConfigError(
            f"{game.name}: its steps are random, and it does not say how: "
            "define chance (the probabilities of the outcomes) and step_outcome instead of step_env"
        )
