"""Experiments with games: exact exploitability where the game is small, known opponents where it is not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.games.matches import play_match, policy_player
from rljax.core.config import Config, load_config
from rljax.core.versus import Player, random_player
from rljax.envs import make_env
from rljax.envs.connect_four import ConnectFour, ConnectFourState
from rljax.envs.territory import MOVES, SIZE, Territory
from rljax.league import exact_report, exploitability, exploited, game_tree, nash_conv, tree_policies, uniform_policies
from rljax.league.config import SelfPlayConfig
from rljax.league.training import game_parts
from rljax.planning.mcts import make_mcts, search_player, searching
from rljax.run.reproduce.perfect import perfect_player
from rljax.run.reproduce.report import Report, Trained
from rljax.run.reproduce.solver import PHASES, Positions, solved_positions, value_losing_rates

SIMULATIONS = 32
"""Of an agent that searches before each move."""

UCT = 100
"""Simulations of the opponent that searches by playing on at random."""

GAMES = 200
DUEL_BUDGET: dict[str, Any] = {
    "total_timesteps": 200_000,
    "num_envs": 64,
    "num_steps": 16,
    "learning_rate": 1e-3,
    "gamma": 1.0,
    "network": {"hidden": [64, 64]},
}
"""Of the PPO that learns to win from an agent of Number Duel."""


def exact(report: Report, name: str, run: Trained) -> None:
    """Exploitability of the last policy, the average of the pool's and its equilibrium, and the values of these."""
    parts = game_parts(run.agent.config)
    found = report.timed(jax.vmap(lambda state: exact_report(parts, state)), run.states)
    for part in ("last", "average", "meta_nash"):
        report.measured(f"{name}: exploitability, {part}", getattr(found, part))
    report.measured(f"{name}: value, average", found.average_value)


def biased_rps(report: Report) -> None:
    """The league, and self-play and a uniform pool of as many steps."""
    config = load_config("biased_rps_league")
    config = config.replace(exploitability_every=config.total_timesteps)
    exact(report, "league", report.trained(config, "league", preset="biased_rps_league"))
    shared = _shared(
        config, "vf_clip_eps", "max_grad_norm", "normalize_advantages", "num_slots", "snapshot_every", "exploitability_every"
    )
    controls: dict[str, dict[str, Any]] = {
        "self-play": {"ent_coef": 0.0},
        "self-play with the league's entropy bonus": {"ent_coef": config.ent_coef},
        "uniform pool": {"ent_coef": 0.0, "opponents": "uniform"},
    }
    for name, changes in controls.items():
        run = report.trained(SelfPlayConfig(**{**shared, **changes}), name, preset="biased_rps_league")
        parts = game_parts(run.agent.config)

        def last(state: Any, parts: Any = parts) -> jax.Array:
            return exploitability(parts.tree, tree_policies(parts, jax.tree.map(lambda x: x[0], state.params)))

        report.measured(f"{name}: exploitability, last", report.timed(jax.vmap(last), run.states))


def poker(report: Report, preset: str) -> None:
    """NashConv is twice the exploitability. Uniform play beside it."""
    run = report.trained(preset)
    exact(report, preset, run)
    tree = game_tree(*make_env(run.agent.config.env))
    report.facts["NashConv of uniform play"] = nash_conv(tree, uniform_policies(tree))


def tictactoe(report: Report, preset: str) -> None:
    """Games lost to a player that makes no mistake, in either seat, of 100 in each."""
    run = report.trained(preset, eval_every=None)
    game, params = make_env(run.agent.config.env)
    players: dict[str, Callable[[Any], Player]] = {"greedy": partial(policy_player, run.agent, deterministic=True)}
    if preset.endswith("alphazero"):
        players["with search"] = partial(search_player, run.agent, num_simulations=SIMULATIONS)
    for name, player in players.items():

        def lost(state: Any, key: jax.Array, player: Any = player) -> jax.Array:
            match = play_match(game, params, player(state), perfect_player(), key, GAMES)
            return jnp.sum(match.result < 0)

        report.measured(f"{name}: lost of {GAMES}", report.timed(jax.vmap(lost), run.states, _fresh(run)))


def number_duel(report: Report) -> None:
    """What a fresh PPO wins a game, from the main agent and from self-play of as many steps."""
    config = load_config("number_duel_league", eval_every=None)
    control = SelfPlayConfig(**_shared(config, "gamma"), ent_coef=0.0)
    arms: dict[str, Config] = {
        "league": config,
        "self-play": control,
        "self-play with the league's entropy bonus": control.replace(ent_coef=config.ent_coef),
    }
    for name, arm in arms.items():
        run = report.trained(arm, name, preset="number_duel_league")

        def gain(state: Any, key: jax.Array, run: Trained = run) -> jax.Array:
            return exploited(run.agent, state, key, **DUEL_BUDGET).value

        report.measured(f"{name}: won from it", report.timed(jax.vmap(gain), run.states, _fresh(run)))


def greedy_painter(sees_far: bool) -> Player:
    """Each on its own: to the neighbouring cell that brings most at once, or towards the nearest cell that is not its team's."""
    game = Territory()
    teams, cells = jnp.array(game.teams), jnp.stack(jnp.meshgrid(jnp.arange(SIZE), jnp.arange(SIZE), indexing="ij"), axis=-1)

    def play(key: jax.Array, state: Any, _obs: Any, _mask: jax.Array) -> jax.Array:
        to = (state.place[:, None] + jnp.asarray(MOVES)) % SIZE
        there = state.paint[to[..., 0], to[..., 1]]
        worth = jnp.where(there == 0, 1.0, jnp.where(there == 1 + teams[:, None], 0.0, 2.0))
        if sees_far:
            apart = jnp.abs(to[:, :, None, None] - cells)
            away = jnp.sum(jnp.minimum(apart, SIZE - apart), axis=-1)
            own = state.paint == 1 + teams[:, None, None]
            worth = -1.0 * jnp.min(jnp.where(own[:, None], SIZE * SIZE, away), axis=(2, 3)) - 0.6 * (jnp.arange(len(MOVES)) == 0)
        chosen: jax.Array = jnp.argmax(worth + 0.5 * jax.random.uniform(key, worth.shape), axis=-1)
        return chosen.astype(jnp.int32)

    return play


PAINTERS: dict[str, Callable[[], Player]] = {
    "random": lambda: random_player,
    "greedy for the next step": lambda: greedy_painter(False),
    "greedy for the nearest": lambda: greedy_painter(True),
}


def territory(report: Report) -> None:
    """The mean lead in cells at the end of a game, of self-play and of the greedy players over random ones."""
    run = report.trained("territory_selfplay", eval_every=None)
    game, params = make_env(run.agent.config.env)
    for name, other in PAINTERS.items():

        def lead(state: Any, key: jax.Array, other: Any = other) -> jax.Array:
            return jnp.mean(
                play_match(game, params, policy_player(run.agent, state, deterministic=False), other(), key, GAMES).result
            )

        report.measured(f"lead over {name}", report.timed(jax.vmap(lead), run.states, _fresh(run)))
        if name != "random":
            match = report.timed(
                lambda key, other=other: play_match(game, params, other(), random_player, key, GAMES), run.keys[0]
            )
            report.facts[f"lead of {name} over random"] = jnp.mean(match.result)


def connect_four(report: Report, preset: str) -> None:
    """Games against random play and a search, of the sampled policy and with a search of its own; moves in solved positions."""
    run = report.trained(preset, eval_every=None)
    game, params = make_env(run.agent.config.env)
    uct = searching(make_mcts(game, params, num_simulations=UCT), game)
    own: dict[str, Callable[[Any], Player]] = {
        "policy": partial(policy_player, run.agent),
        f"search of {SIMULATIONS}": partial(search_player, run.agent, num_simulations=SIMULATIONS),
    }
    for name, player in own.items():
        for other, opponent, games in (("random", random_player, 2 * GAMES), (f"UCT of {UCT}", uct, GAMES)):

            def won(state: Any, key: jax.Array, player: Any = player, opponent: Any = opponent, games: int = games) -> jax.Array:
                return jnp.mean(play_match(game, params, player(state), opponent, key, games).result > 0)

            report.measured(f"{name}: won against {other}", report.timed(jax.vmap(won), run.states, _fresh(run)))
    if importlib.util.find_spec("bitbully") is None:
        report.note = "bitbully is not installed: no solved positions"
        return
    positions = solved_positions(300)
    untrained = jax.vmap(run.agent.init)(run.keys)
    for when, states in (("untrained", untrained), ("trained", run.states)):
        moves = np.asarray(report.timed(jax.vmap(partial(best_moves, run.agent, positions)), states))
        rates = [value_losing_rates(positions, found) for found in moves]
        for phase in (*PHASES, "all"):
            report.measured(f"{when}: moves that lose value, {phase}", [rate[phase] for rate in rates])


def best_moves(agent: Any, positions: Positions, state: Any) -> jax.Array:
    """The greedy legal moves i32 `[N]` of an agent that sees what the player to move sees."""
    game, states = ConnectFour(), ConnectFourState(jnp.asarray(positions.board), jnp.asarray(positions.time))
    of_both = jax.vmap(lambda state: game.observe(state, game.default_params))(states)
    seen = of_both[jnp.arange(len(of_both)), states.time % 2]
    moves: jax.Array = agent.act(state, seen, None, jax.random.key(0), True, positions.value > -2)[0]
    return moves


def _fresh(run: Trained) -> jax.Array:
    """Keys `[seeds]` that training did not use."""
    return jax.vmap(lambda key: jax.random.fold_in(key, 1))(run.keys)


def _shared(config: Any, *more: str) -> dict[str, Any]:
    """Fields that a league and its control have alike."""
    names = (
        "env",
        "total_timesteps",
        "num_envs",
        "num_steps",
        "num_epochs",
        "num_minibatches",
        "network",
        "learning_rate",
        *more,
    )
    return {name: getattr(config, name) for name in names}
