"""Self-play and leagues: games, PPO and matchmaking inside one compiled step.

One iteration is `game_collect`, `game_update` and, with a pool, `League.record` and `League.review`. Arrays of games have the
axes `[L, S, B]` (learner, slot, game), flattened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.algos.common.game_policy import build_game_policy, game_act
from rljax.algos.common.optimizer import adam, annealed
from rljax.algos.common.policy import policy_and_value
from rljax.algos.common.training import evaluation_due
from rljax.algos.ppo import PPOParts, ppo_learn
from rljax.collect.games.rollout import (
    GameNoise,
    GameSteps,
    Playing,
    acting_view,
    game_rollout,
    moves_without_action,
)
from rljax.collect.games.turns import seat_streams
from rljax.collect.minibatches import init_optimizer
from rljax.collect.rollout import environment_noise, episode_means, episode_totals, initial_environments
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.errors import ConfigError
from rljax.core.game import Game
from rljax.core.keys import as_key, draw
from rljax.core.spaces import action_heads
from rljax.core.state import State, copy_of_params
from rljax.league.config import GameConfig, LeagueConfig, SelfPlayConfig
from rljax.league.game_tree import GameTree, exploitability, game_tree
from rljax.league.league import LANES, League, reset_where, restarted
from rljax.league.ratings import elo
from rljax.league.rules import INITIAL, MAIN, ROLES, Rules


class GameParts(NamedTuple):
    """Game, policy and rules of a configuration, built once.

    `ppo` has the policy of one player; `tree` is the game written out, where the exact exploitability is asked for.
    """

    config: GameConfig
    game: Game
    game_params: Any
    rules: Rules
    ppo: PPOParts
    tree: GameTree | None


class GameState(State, kw_only=True):
    """State of L learners and E games.

    `params` and `opt_state` have leaves `[L, ...]`; learner 0 is the main agent. `env_state` is `Playing`, and `obs` are those of
    all players, `[E, P, ...]`.

    Attributes:
        league: pool, payoffs and opponents; None without a pool.
    """

    league: League | None = copy_of_params(lambda params, league: league.begun_with(params))


def game_parts(config: GameConfig) -> GameParts:
    """Build game, policy and rules.

    Raises:
        ConfigError: `env` is not a game, or does not fit the rest.
    """
    game, env_params, one, policy, head = build_game_policy(config, config.log_std)
    if not _batch_size(config, game):
        raise ConfigError(
            f"num_minibatches = {config.num_minibatches}: a learner has fewer moves in a rollout; raise num_envs or num_steps"
        )
    tree = None
    if config.exploitability_every is not None:
        tree = game_tree(game, env_params)
    return GameParts(config, game, env_params, config.rules(), PPOParts(config, one, env_params, policy, head, None, ()), tree)


def _batch_size(config: GameConfig, game: Game) -> int:
    """Moves of one learner that are learned from in an iteration. Of games against others every team has the same share; all are
    one's own where there are no others."""
    seen = 1 if game.turn_gap else game.num_players
    moves = (config.num_steps - game.turn_gap) * config.num_envs // len(config.roles) * seen
    share = max(game.teams) + 1 if config.has_pool else 1
    return moves // (share * config.num_minibatches) * config.num_minibatches


def game_init(parts: GameParts, key: jax.Array) -> GameState:
    """Return the state before the first iteration: untrained learners with different weights, and new games."""
    config, learners = parts.config, len(parts.rules.roles)
    params_key, env_key, eval_key, team_key, key = jax.random.split(as_key(key), 5)
    game, obs = initial_environments(parts.game, parts.game_params, env_key, config.num_envs)
    one = jax.tree.map(lambda x: x[0, 0], obs)
    params = _stack([parts.ppo.policy.init(k, one) for k in jax.random.split(params_key, learners)])
    opt_state = jax.vmap(lambda p: init_optimizer(adam(config), p))(params)
    players = parts.game.num_players
    playing = Playing(
        game=game,
        returns=jnp.zeros((config.num_envs, players)),
        length=jnp.zeros(config.num_envs, jnp.int32),
        team=_draw_teams(parts, team_key, (config.num_envs,)),
        lane=jnp.zeros(config.num_envs, jnp.int32),
    )
    league = League.create(parts.rules, params, config.pool_size, config.num_slots) if config.has_pool else None
    return GameState(
        params=params,
        opt_state=opt_state,
        env_state=playing,
        obs=obs,
        league=league,
        key=key,
        eval_key=eval_key,
        iteration=jnp.zeros((), jnp.int32),
    )


def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _draw_teams(parts: GameParts, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    count = max(parts.game.teams) + 1
    return (draw(jax.random.uniform, key, shape) * count).astype(jnp.int32)


def _of_learners(function: Callable[..., Any], learners: int) -> Callable[..., Any]:
    """`vmap` over learners, but of a single one: products of batches of one matrix are slower than products."""
    if learners > 1:
        return jax.vmap(function)

    def alone(*arguments: Any) -> Any:
        result = function(*jax.tree.map(lambda x: x[0], arguments))
        return jax.tree.map(lambda x: x[None], result)

    return alone


def game_collect(parts: GameParts, state: GameState) -> tuple[GameState, GameSteps]:
    """Step all games `num_steps` times; opponents are drawn before, for games that begin."""
    config, game, learners = parts.config, parts.game, len(parts.rules.roles)
    key, match_key, action_key, team_key, env_key = jax.random.split(state.key, 5)
    shape = (config.num_steps, config.num_envs)
    slots = config.num_slots if config.has_pool else 1
    groups = (learners, slots, config.num_envs // (learners * slots))
    league = state.league
    newest = jnp.zeros(config.num_envs, jnp.int32)
    if league is not None:
        used = jnp.any(state.env_state.lane.reshape(*groups, 1) == jnp.arange(LANES), axis=2)
        league = league.match(parts.rules, match_key, state.params, used)
        newest = jnp.broadcast_to(league.newest[..., None], groups).reshape(-1)
    head = parts.ppo.head

    def outputs_of(params: Any, obs: Any) -> jax.Array:
        outputs: jax.Array = policy_and_value(parts.ppo, params, obs)[0]
        return outputs

    def act(obs: Any, mask: jax.Array, mine: jax.Array, lane: jax.Array, noise: jax.Array) -> jax.Array:
        own = jax.tree.map(lambda x: x.reshape(learners, -1, *x.shape[1:]), obs)
        outputs = _of_learners(outputs_of, learners)(state.params, own).reshape(*mine.shape, -1)
        if league is not None:
            grouped = jax.tree.map(lambda x: x.reshape(*groups, *x.shape[1:]), obs)
            of_lanes = jax.vmap(jax.vmap(jax.vmap(outputs_of, (0, None))))(league.lanes, grouped)
            first, second = (of_lanes[:, :, i].reshape(outputs.shape) for i in range(LANES))
            others = jnp.where((lane == 1)[:, None, None], second, first)
            outputs = jnp.where(mine[..., None], outputs, others)
        return head.sample(head.distribution(outputs, mask), noise)

    seen = 1 if game.turn_gap else game.num_players
    noise = GameNoise(
        action=head.noise(action_key, (*shape, seen)),
        team=_draw_teams(parts, team_key, shape),
        lane=jnp.broadcast_to(newest, shape),
        env=environment_noise(game, parts.game_params, env_key, *shape),
    )
    playing, obs, steps = game_rollout(game, parts.game_params, act, state.env_state, state.obs, noise, only_mine=league is None)
    if league is not None:
        result = _own_return(parts, steps).reshape(-1, *groups)
        league = league.record(parts.rules, result, steps.done.reshape(-1, *groups), steps.lane.reshape(-1, *groups))
    return state.replace(env_state=playing, obs=obs, league=league, key=key), steps


def _own_return(parts: GameParts, steps: GameSteps) -> jax.Array:
    """Return the learner's return in its game so far, f32 `[T, E]`: that of the first player of its team."""
    first = jnp.array([parts.game.teams.index(team) for team in range(max(parts.game.teams) + 1)])
    chosen = first[steps.team][..., None] == jnp.arange(parts.game.num_players)
    return jnp.sum(jnp.where(chosen, steps.returns, 0.0), axis=-1)


def game_update(parts: GameParts, state: GameState, steps: GameSteps) -> tuple[GameState, Metrics]:
    """Update each learner by PPO on its moves, and advance the state's keys and iteration. Metrics are those of learner 0, the
    main agent.
    """
    config, game, learners = parts.config, parts.game, len(parts.rules.roles)
    key, *shuffle_keys = jax.random.split(state.key, learners + 1)
    last_obs, _, _, last_moves = acting_view(game, state.env_state.game, state.obs, parts.game_params)
    rate = annealed(config, state.iteration)

    def by_learner(x: Any, axis: int) -> Any:
        """Learners first; the axis of games split."""
        return jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf.reshape(*leaf.shape[:axis], learners, -1, *leaf.shape[axis + 1 :]), axis, 0), x
        )

    if config.final_ent_coef is not None:
        done = jnp.minimum(state.iteration / config.num_iterations, 1.0)
        coefficient = config.ent_coef + done * (config.final_ent_coef - config.ent_coef)
        parts = parts._replace(ppo=parts.ppo._replace(config=parts.ppo.config.replace(ent_coef=coefficient)))

    def improve(
        params: Any, opt_state: Any, magnet: Any, steps: GameSteps, last: tuple[Any, ...], key: jax.Array
    ) -> tuple[Any, ...]:
        return _improved(parts, params, opt_state, magnet, steps, last, key, rate)

    params, opt_state, stacked = _of_learners(improve, learners)(
        state.params,
        state.opt_state,
        state.average_params,
        by_learner(steps, 1),
        by_learner((last_obs, last_moves), 0),
        jnp.stack(shuffle_keys),
    )
    metrics = {name: x[0] for name, x in stacked.items()} | {"train/learning_rate": rate}
    return state.replace(params=params, opt_state=opt_state, key=key, iteration=state.iteration + 1), metrics


def _improved(
    parts: GameParts,
    params: Any,
    opt_state: Any,
    magnet: Any,
    steps: GameSteps,
    last: tuple[Any, Any],
    key: jax.Array,
    rate: jax.Array,
) -> tuple[Any, Any, Metrics]:
    """One learner after its gradient steps; games are its own, `[T, E', ...]`."""
    outputs, value, _ = policy_and_value(parts.ppo, params, steps.obs)
    log_prob = parts.ppo.head.distribution(outputs, steps.mask).log_prob(steps.action)
    last_obs, last_moves = last
    _, last_value, _ = policy_and_value(parts.ppo, params, last_obs)
    streams, value, next_value = seat_streams(
        steps, value, log_prob, last_value, last_moves, parts.game.turn_gap, parts.config.has_pool
    )
    size = _batch_size(parts.config, parts.game)
    return ppo_learn(parts.ppo, params, opt_state, streams, value, next_value, key, rate, size=size, magnet=magnet)


def league_step(parts: GameParts, state: GameState) -> tuple[GameState, Metrics]:
    """Take snapshots and reset learners after an update."""
    league = state.league
    if league is None:
        return state, {}
    key, review_key = jax.random.split(state.key)
    league, taken, origin = league.review(parts.rules, review_key, state.params, state.iteration)
    anew = origin != jnp.arange(len(origin))
    params = restarted(origin, state.params, league.initial)
    fresh = jax.vmap(lambda p: init_optimizer(adam(parts.config), p))(params)
    opt_state = reset_where(anew, state.opt_state, fresh)
    average = state.average_params
    if average is not None:
        average = reset_where(anew, average, params)
    metrics = league_metrics(parts, league, state.iteration) | {
        "league/snapshots": jnp.sum(taken, dtype=jnp.float32),
        "league/resets": jnp.sum(anew, dtype=jnp.float32),
        "league/branches": jnp.sum(anew & (origin != INITIAL), dtype=jnp.float32),
    }
    return state.replace(params=params, average_params=average, opt_state=opt_state, league=league, key=key), metrics


def league_metrics(parts: GameParts, league: League, iteration: jax.Array) -> Metrics:
    """Win rates against the pool by role, and of the main agent against its younger and older half; the pool's occupancy."""
    roles, pool = parts.rules.roles, league.pool
    learners = len(roles)
    rates, games = league.payoff.win_rate(), league.payoff.record.games
    against, met = rates[:learners, learners:], (games[:learners, learners:] > 0) & pool.filled
    metrics = {"league/pool": jnp.mean(pool.filled, dtype=jnp.float32)}
    for role in sorted(set(roles)):
        rows = jnp.array([r == role for r in roles])[:, None]
        metrics[f"league/win_rate_{ROLES[role]}"] = jnp.mean(against, where=met & rows)
    young = pool.age * 2 >= iteration
    metrics["league/win_rate_main_young"] = jnp.mean(against[0], where=met[0] & young)
    metrics["league/win_rate_main_old"] = jnp.mean(against[0], where=met[0] & ~young)
    metrics["league/worst_win_rate_main"] = jnp.min(jnp.where(met[0], against[0], jnp.inf), initial=1.0)
    return metrics


def rating(league: League) -> jax.Array:
    """The main agent's Elo rating by the record of results, f32 []; it was 1000 before training, and is in the pool as it was."""
    learners = league.snapshot_at.shape[0]
    wins = league.payoff.record.wins + 0.5 * league.payoff.record.draws
    return elo(wins, anchor=learners).rating[0]


def game_metrics(parts: GameParts, steps: GameSteps) -> Metrics:
    """Average the games that ended: return of main agents against others (of player 0 in self-play), length, and count."""
    config, learners = parts.config, len(parts.rules.roles)
    returns = _own_return(parts, steps) if config.has_pool else steps.returns[..., 0]
    is_main = jnp.repeat(jnp.array([role == MAIN for role in parts.rules.roles]), config.num_envs // learners)
    nvec = action_heads(parts.game, parts.game_params)
    without = moves_without_action(steps.mask, steps.moves, nvec)
    return episode_means(episode_totals(steps.done & is_main, returns, steps.length, steps.metrics, without))


def tree_policies(parts: GameParts, params: Any) -> tuple[jax.Array, jax.Array]:
    """The policy of one player's parameters in every information set of the game's tree, f32 `[I_p, A]` of each player."""
    tree = parts.tree
    if tree is None:
        raise ConfigError("exploitability_every = none: the run has no game tree")

    def of(player: int) -> jax.Array:
        obs, mask = jnp.asarray(tree.observations[player]), jnp.asarray(tree.masks[player])
        outputs, _, _ = policy_and_value(parts.ppo, params, obs)
        probabilities: jax.Array = parts.ppo.head.distribution(outputs, mask).probs
        return probabilities

    return of(0), of(1)


def _exploitability_metrics(parts: GameParts, state: GameState) -> Metrics:
    config, tree = parts.config, parts.tree
    if tree is None or config.exploitability_every is None:
        return {}

    def of(params: Any) -> jax.Array:
        return exploitability(tree, tree_policies(parts, jax.tree.map(lambda x: x[0], params)))

    due = evaluation_due(config.exploitability_every, config.steps_per_iteration, state.iteration - 1)
    due |= state.iteration == config.num_iterations
    return {"league/exploitability": jax.lax.cond(due, of, lambda _: jnp.full((), jnp.nan), state.params)}


def make_games(config: GameConfig) -> Agent:
    """The agent of a configuration of self-play or of a league."""
    parts = game_parts(config)

    def init(key: jax.Array) -> GameState:
        return game_init(parts, key)

    def step(state: GameState) -> tuple[GameState, Metrics]:
        state, steps = game_collect(parts, state)
        state, metrics = game_update(parts, state, steps)
        metrics = game_metrics(parts, steps) | metrics
        state, of_league = league_step(parts, state)
        return state, metrics | of_league | _exploitability_metrics(parts, state)

    def report(state: GameState) -> Metrics:
        return {"eval/rating": rating(state.league)} if state.league is not None else {}

    def main(state: GameState) -> Any:
        return jax.tree.map(lambda x: x[0], state.params)

    def evaluate_positions(state: GameState, obs: Any) -> tuple[jax.Array, jax.Array]:
        logits, value, _ = policy_and_value(parts.ppo, main(state), obs)
        return logits, value

    return Agent(
        init, step, game_act(parts.ppo.policy, parts.ppo.head, main), config, report=report, policy_and_value=evaluate_positions
    )


register_agent(SelfPlayConfig, make_games)
register_agent(LeagueConfig, make_games)
