"""Self-play and leagues: games, learning and matchmaking inside one compiled step.

One iteration is `game_collect`, `game_update` and, with a pool, `League.record` and `League.review`. Arrays of games have the
axes `[L, S, B]` (learner, slot, game), flattened.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.algos.common.game_policy import game_act, value_in_game
from rljax.algos.common.optimizer import adam, annealed
from rljax.algos.common.policy import policy_and_value
from rljax.algos.common.teacher import faded
from rljax.algos.common.value_heads import num_values, value_of_rewards
from rljax.algos.impala import behaviour_params
from rljax.collect.curriculum.rules import EpisodeSteps, rollout_episodes, with_probabilities
from rljax.collect.games.rollout import GameNoise, GameSteps, acting_view, game_rollout, moves_without_action
from rljax.collect.games.turns import LastStep
from rljax.collect.minibatches import init_optimizer
from rljax.collect.normalizers import normalize
from rljax.collect.resets import environment_noise
from rljax.collect.rollout import episode_means, episode_totals
from rljax.collect.streams import of_seat
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.environments.spaces import action_heads
from rljax.core.errors import ConfigError
from rljax.core.games.game import lead
from rljax.league.acting import make_decide, scripted_actions
from rljax.league.config import GameConfig, LeagueConfig, SelfPlayConfig
from rljax.league.game_tree import exploitability
from rljax.league.league import LANES, League, reset_where, restarted
from rljax.league.learning import improve
from rljax.league.parts import (
    GameParts,
    GameState,
    Learner,
    begun_anew,
    copies_of,
    draw_teams,
    game_init,
    game_parts,
    learners_of,
    main_of,
    of_learners,
    player,
    players_of,
    split_player,
    with_ppo_fields,
)
from rljax.league.ratings import elo
from rljax.league.rules import INITIAL, MAIN, ROLES
from rljax.nn.groups import PerGroup


def game_collect(parts: GameParts, state: GameState) -> tuple[GameState, GameSteps]:
    """Step all games `num_steps` times; opponents are drawn before, for games that begin."""
    config, game, learners = parts.config, parts.game, parts.learners
    key, match_key, action_key, team_key, env_key = jax.random.split(state.key, 5)
    shape = (config.num_steps, config.num_envs)
    slots = config.num_slots if config.has_pool else 1
    groups = (learners, slots, config.num_envs // (learners * slots))
    league, head = state.league, parts.ppo.head
    newest = jnp.zeros(config.num_envs, jnp.int32)
    if league is not None:
        used = jnp.any(state.env_state.lane.reshape(*groups, 1) == jnp.arange(LANES), axis=2)
        league = league.match(parts.rules, match_key, players_of(state), used)
        newest = jnp.broadcast_to(league.newest[..., None], groups).reshape(-1)
    game_params = with_probabilities(parts.ppo.curriculum, state.curriculum, parts.game_params)
    own_params = of_learners(behaviour_params, learners)(learners_of(state))
    own_players = player(own_params, state.obs_statistics)

    noise = GameNoise(
        action=head.noise(action_key, (*shape, parts.acting)),
        team=draw_teams(parts, team_key, shape),
        lane=jnp.broadcast_to(newest, shape),
        env=environment_noise(game, game_params, env_key, *shape, config),
    )
    playing, obs, carry, steps = game_rollout(
        game,
        game_params,
        make_decide(parts, own_players, league),
        head.to_env,
        state.env_state,
        state.obs,
        noise,
        only_mine=league is None,
        carry=state.carry,
        keep=parts.ppo.keep,
        scripted=scripted_actions(parts) if (parts.scripted >= 0).any() else None,
    )
    if league is not None:
        # Scripted players have no place in the pool, so no record of results.
        ended = steps.done & ~jnp.asarray(parts.scripted >= 0)
        result = _result(parts, steps).reshape(-1, *groups)
        league = league.record(parts.rules, result, ended.reshape(-1, *groups), steps.lane.reshape(-1, *groups))
    return state.replace(env_state=playing, obs=obs, carry=carry, league=league, key=key), steps


def _team_means(parts: GameParts, values: jax.Array) -> jax.Array:
    """Return the mean over each team's players of values `[T, E, P]`, f32 `[T, E, teams]`."""
    of_team = jnp.asarray(parts.game.teams) == jnp.arange(parts.game.num_teams)[:, None]
    return jnp.stack([jnp.mean(values, axis=-1, where=members) for members in of_team], axis=-1)


def _own(parts: GameParts, steps: GameSteps, of_teams: jax.Array) -> jax.Array:
    """Return the part of the learner's team in values `[T, E, teams]`, f32 `[T, E]`."""
    own = steps.team[..., None] == jnp.arange(parts.game.num_teams)
    return of_seat(of_teams, own)


def _result(parts: GameParts, steps: GameSteps) -> jax.Array:
    """Return the result of the learner's team so far, f32 `[T, E]`: the mean over the other teams of 1 where it is ahead and
    -1 where it is behind. So equal players have a win rate of 1/2 in games of any number of teams.
    """
    of_teams = _team_means(parts, steps.result)
    # Its own team adds 0.
    ahead = lead(_own(parts, steps, of_teams)[..., None], of_teams)
    # Not `sum_of`: one team at a time, a league's step needs a third more memory on CPUs.
    return jnp.sum(ahead, axis=-1) / max(parts.game.num_teams - 1, 1)


def game_update(parts: GameParts, state: GameState, steps: GameSteps) -> tuple[GameState, Metrics]:
    """Update each learner on its games, and advance the state's keys and iteration. Metrics are those of learner 0, the main
    agent, but where that of another is not finite, this one.
    """
    config, game, learners = parts.config, parts.game, parts.learners
    key, *shuffle_keys = jax.random.split(state.key, learners + 1)
    last_obs, last_mask, _, last_moves = acting_view(game, state.env_state.game, state.obs, parts.game_params)
    rate = annealed(config, state.iteration)

    def by_learner(x: Any, axis: int) -> Any:
        """Learners first; the axis of games split."""
        return jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf.reshape(*leaf.shape[:axis], learners, -1, *leaf.shape[axis + 1 :]), axis, 0), x
        )

    if config.final_ent_coef is not None:
        done = jnp.minimum(state.iteration / config.num_iterations, 1.0)
        coefficient = config.ent_coef + done * (config.final_ent_coef - config.ent_coef)
        parts = with_ppo_fields(parts, ent_coef=coefficient)

    if config.teacher_kl_coef is not None:
        weight = faded(config, state.iteration, state.teacher).teacher_kl_coef
        parts = with_ppo_fields(parts, teacher_kl_coef=weight)

    def update(
        learner: Learner, weights: jax.Array | None, steps: GameSteps, last: LastStep, carry: Any, taught: Any, key: jax.Array
    ) -> tuple[Learner, Any, tuple[jax.Array, jax.Array] | None, Metrics]:
        own = parts if weights is None else with_ppo_fields(parts, head_weights=tuple(weights))
        return improve(own, learner, steps, last, carry, taught, key, rate)

    after, taught, advantages, stacked = of_learners(update, learners)(
        learners_of(state),
        config.learner_head_weights,
        by_learner(steps._replace(carry=None), 1)._replace(carry=by_learner(steps.carry, 0)),
        by_learner(LastStep(last_obs, last_mask, last_moves), 0),
        by_learner(state.carry, 0),
        by_learner(state.teacher_carry, 0),
        jnp.stack(shuffle_keys),
    )
    # A learner whose losses are not finite stands for all, since a run stops by its metrics.
    metrics = {name: x[jnp.argmax(~jnp.isfinite(x))] for name, x in stacked.items()} | {"train/learning_rate": rate}
    taught = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), taught)
    state = state.replace(key=key, iteration=state.iteration + 1, teacher_carry=taught, **after._asdict())
    if parts.ppo.curriculum is None:
        return state, metrics
    state, of_levels = _next_levels(parts, state, steps, advantages)
    return state, metrics | of_levels


def _next_levels(
    parts: GameParts, state: GameState, steps: GameSteps, advantages: tuple[jax.Array, jax.Array] | None
) -> tuple[GameState, Metrics]:
    """Return the state with the curriculum moved on by the games of all learners, and its metrics.

    Args:
        parts: from `game_parts`.
        state: the state.
        steps: `[T, E, ...]`.
        advantages: those of moves, f32 `[L, T, E / L, Q]`, and which are scored, bool; None: the curriculum has no scores.
    """
    curriculum, games = parts.ppo.curriculum, state.env_state
    assert curriculum is not None
    seen = EpisodeSteps(_learner_returns(parts, steps), steps.length, steps.done, steps.metrics, steps.extras)
    # The games of all learners, one after the other, as in `steps`.
    of_games = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(*steps.done.shape, -1), advantages)
    advantage, own = of_games or (None, None)
    episodes, playing = rollout_episodes(curriculum, seen, games.game, advantage, own)
    after, metrics = curriculum.update(state.curriculum, episodes)
    return state.replace(env_state=games._replace(game=playing), curriculum=after), metrics


def scripted_metrics(parts: GameParts, steps: GameSteps) -> Metrics:
    """Return the share of games won against scripted players, a draw as half, with more teams the share of teams it was ahead of;
    NaN where none ended.
    """
    there = parts.scripted >= 0
    if not there.any():
        return {}
    result, ended = _result(parts, steps), steps.done & there
    return {"league/win_rate_scripted": jnp.mean(0.5 + 0.5 * result, where=ended)}


def league_step(parts: GameParts, state: GameState) -> tuple[GameState, Metrics]:
    """Take snapshots and reset learners after an update."""
    league = state.league
    if league is None:
        return state, {}
    key, review_key = jax.random.split(state.key)
    league, taken, origin = league.review(parts.rules, review_key, players_of(state), state.iteration)
    anew = origin != jnp.arange(len(origin))
    params, obs_statistics = split_player(restarted(origin, players_of(state), league.initial))
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
    past = state.past_params
    if past is not None:
        past = reset_where(anew, past, copies_of(params, past.shape[1]))
    state = state.replace(params=params, average_params=average, past_params=past, obs_statistics=obs_statistics)
    state = begun_anew(parts, state, anew, jax.random.fold_in(review_key, len(origin)))
    return state.replace(opt_state=opt_state, league=league, key=key), metrics


def league_metrics(parts: GameParts, league: League, iteration: jax.Array) -> Metrics:
    """Win rates against the pool by role, and of the main agent against players from the second and the first half of the run so
    far; the pool's occupancy."""
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


def _learner_returns(parts: GameParts, steps: GameSteps) -> jax.Array:
    """Return the return so far of the learner's team, in self-play without a pool of player 0, f32 `[T, E]`."""
    if parts.config.has_pool:
        return _own(parts, steps, _team_means(parts, steps.returns))
    return steps.returns[..., 0]


def game_metrics(parts: GameParts, steps: GameSteps) -> Metrics:
    """Average the games that ended: return of main agents against others (of player 0 in self-play), length, and count."""
    config, returns = parts.config, _learner_returns(parts, steps)
    is_main = jnp.repeat(jnp.array([role == MAIN for role in parts.rules.roles]), config.num_envs // parts.learners)
    nvec = action_heads(parts.game, parts.game_params)
    # Scripted players choose without networks, whose action is nothing there.
    own = jnp.asarray(parts.game.teams) == steps.team[..., None]
    chooses = steps.moves & (own | ~jnp.asarray(parts.scripted >= 0)[:, None]) if (parts.scripted >= 0).any() else steps.moves
    without = moves_without_action(steps.mask, chooses, nvec, steps.action)
    return episode_means(episode_totals(steps.done & is_main, returns, steps.length, steps.metrics, without))


def tree_policies(parts: GameParts, kept: Any) -> tuple[jax.Array, jax.Array]:
    """The policy of one player, as a pool keeps it, in every information set of the game's tree, f32 `[I_p, A]` of each seat."""
    tree = parts.tree
    if tree is None:
        raise ConfigError("exploitability_every = none: the run has no game tree")
    params, statistics = split_player(kept)

    def of(seat: int) -> jax.Array:
        obs = jax.tree.map(jnp.asarray, tree.observations[seat])
        obs = obs if statistics is None else normalize(statistics, obs)
        outputs, _, _ = policy_and_value(parts.ppo, params, obs)
        probabilities: jax.Array = parts.ppo.head.distribution(outputs, jnp.asarray(tree.masks[seat])).probs
        return probabilities

    return of(0), of(1)


def make_games(config: GameConfig) -> Agent:
    """The agent of a configuration of self-play or of a league."""
    parts = game_parts(config)

    def init(key: jax.Array) -> GameState:
        return game_init(parts, key)

    def step(state: GameState) -> tuple[GameState, Metrics]:
        state, steps = game_collect(parts, state)
        state, metrics = game_update(parts, state, steps)
        metrics = game_metrics(parts, steps) | metrics
        metrics |= scripted_metrics(parts, steps)
        state, of_league = league_step(parts, state)
        return state, metrics | of_league

    def report(state: GameState) -> Metrics:
        return {"eval/rating": rating(state.league)} if state.league is not None else {}

    def exploitability_of_main(state: GameState) -> jax.Array:
        assert parts.tree is not None
        main = jax.tree.map(lambda x: x[0], players_of(state))
        return exploitability(parts.tree, tree_policies(parts, main))

    def evaluate_positions(state: GameState, obs: Any) -> tuple[jax.Array, jax.Array]:
        params, statistics = main_of(state)
        obs = obs if statistics is None else normalize(statistics, obs)
        outputs, value, _ = policy_and_value(parts.ppo, params, obs)
        logits = outputs.chosen(outputs.each) if isinstance(outputs, PerGroup) else outputs
        of_main = jax.tree.map(lambda x: x[0], state.reward_statistics)
        return logits, value_in_game(config, of_main, value_of_rewards(config, value))

    act = game_act(parts.game, parts.game_params, parts.ppo.policy, parts.ppo.head, main_of, num_values(config))
    return Agent(
        init,
        step,
        act,
        config,
        report=report,
        policy_and_value=None if parts.has_memory else evaluate_positions,
        exploitability=None if parts.tree is None else exploitability_of_main,
    )


register_agent(SelfPlayConfig, make_games)
register_agent(LeagueConfig, make_games)
