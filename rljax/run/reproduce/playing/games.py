"""Experiments with games: exact exploitability of small games, and matches against known opponents in large ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.ppo import PPOConfig
from rljax.collect.games.matches import play_match, policy_player
from rljax.core.agent import make_agent
from rljax.core.config import Config
from rljax.core.config_files import load_config
from rljax.core.environments.spaces import Box
from rljax.core.games.versus import Player, Versus, random_player
from rljax.envs import make_env
from rljax.envs.connect_four import ConnectFour, ConnectFourState
from rljax.envs.territory import MOVES, SIZE, Territory
from rljax.envs.tic_tac_toe import TicTacToe
from rljax.league import branch, exact_report, exploitability, exploited, game_tree, nash_conv, tree_policies, uniform_policies
from rljax.league.config import SelfPlayConfig
from rljax.league.training import game_parts
from rljax.planning.mcts import make_mcts, search_player, searching
from rljax.run.reproduce.playing.perfect import perfect_player
from rljax.run.reproduce.playing.solver import PHASES, Positions, solved_positions, value_losing_rates
from rljax.run.reproduce.report import Report, Trained, first_step, fresh_keys

SIMULATIONS = 32
"""Number of simulations per move of an agent that searches."""

UCT = 100
"""Number of simulations per move of the opponent that searches with random rollouts."""

GAMES = 200
DUEL_BUDGET: dict[str, Any] = {
    "total_timesteps": 200_000,
    "num_envs": 64,
    "num_steps": 16,
    "learning_rate": 1e-3,
    "gamma": 1.0,
    "network": {"hidden": [64, 64]},
}
"""Settings of the PPO that learns to win against an agent of Number Duel."""

THIRD_BUDGET: dict[str, Any] = {"total_timesteps": 150_000, "num_envs": 64, "num_steps": 32, "num_minibatches": 4}
"""Settings of the PPO that learns to win against two copies of an agent of Kuhn poker."""

BACKGAMMON: dict[str, Any] = {
    "env": "pgx:backgammon",
    "total_timesteps": 2_000_000,
    "num_envs": 64,
    "num_steps": 64,
    "num_minibatches": 4,
    "learning_rate": 1e-3,
    "network": {"hidden": [64, 64]},
}
DICE_SIMULATIONS, LONGEST_GAME = 64, 400
"""Simulations per move of the search of backgammon, and the moves after which a game is not counted."""

MAIN: dict[str, Any] = {"total_timesteps": 1_500_000, "network": {"hidden": [128, 128]}}
"""Changes of the preset for the main agent that exploiters learn to beat."""

EXPLOITER: dict[str, Any] = {"total_timesteps": 1_000_000, "num_envs": 128, "num_steps": 64, "anneal_lr": False}
ENOUGH = 0.7
"""Share of games won, over five iterations, at which a league takes a snapshot of an exploiter."""


def exact(report: Report, name: str, run: Trained) -> None:
    """Measure the exploitability of the last policy, of the pool's average and equilibrium and, where the run has them, of the
    averaged parameters; and the value of the pool's average."""
    parts = game_parts(run.agent.config)
    found = report.time_program(jax.vmap(lambda state: exact_report(parts, state)), run.states)
    parts_of_report = ("last", "average", "meta_nash", *(["averaged"] * (run.agent.config.average_decay is not None)))
    for part in parts_of_report:
        report.measure(f"{name}: exploitability, {part}", getattr(found, part))
    report.measure(f"{name}: value, average", found.average_value)


def biased_rps(report: Report) -> None:
    """Compare the league with self-play and a uniform pool, for the same number of steps."""
    config = load_config("biased_rps_league")
    config = config.replace(exploitability_every=config.total_timesteps)
    exact(report, "league", report.train(config, "league", preset="biased_rps_league"))
    shared = shared_fields(
        config, "vf_clip_eps", "max_grad_norm", "normalize_advantages", "num_slots", "snapshot_every", "exploitability_every"
    )
    controls: dict[str, dict[str, Any]] = {
        "self-play": {"ent_coef": 0.0},
        "self-play with the league's entropy bonus": {"ent_coef": config.ent_coef},
        "uniform pool": {"ent_coef": 0.0, "opponents": "uniform"},
    }
    for name, changes in controls.items():
        run = report.train(SelfPlayConfig(**{**shared, **changes}), name, preset="biased_rps_league")
        parts = game_parts(run.agent.config)

        def last(state: Any, parts: Any = parts) -> jax.Array:
            return exploitability(parts.tree, tree_policies(parts, jax.tree.map(lambda x: x[0], state.params)))

        report.measure(f"{name}: exploitability, last", report.time_program(jax.vmap(last), run.states))


def poker(report: Report, preset: str) -> None:
    """Measure the exploitability of a preset beside the NashConv of uniform play; NashConv is twice the exploitability."""
    run = report.train(preset)
    exact(report, preset, run)
    tree = game_tree(*make_env(run.agent.config.env))
    report.facts["NashConv of uniform play"] = nash_conv(tree, uniform_policies(tree))


def tictactoe(report: Report, preset: str) -> None:
    """Count the games lost to a perfect player, of 100 in each seat."""
    run = report.train(preset, eval_every=None)
    players: dict[str, Callable[[Any], Player]] = {"greedy": partial(policy_player, run.agent, deterministic=True)}
    if preset.endswith("alphazero"):
        players["with search"] = partial(search_player, run.agent, num_simulations=SIMULATIONS)
    for name, player in players.items():
        report.measure(f"{name}: lost of {GAMES}", lost_to_perfect(report, run, player))


class ShiftedTicTacToe(TicTacToe):
    """Tic-tac-toe whose observations are 500 and 1,500 instead of 0 and 1."""

    def observation_space(self, params: Any) -> Box:
        return Box(500.0, 1500.0, (18,))

    def observe(self, state: Any, params: Any) -> jax.Array:
        return 500.0 + 1000.0 * super().observe(state, params)


SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "rewards of the game": ("normalize_rewards", {}),
    "rewards times 1,000": ("normalize_rewards", {"scale_rewards": 1000.0}),
    "rewards times 0.01": ("normalize_rewards", {"scale_rewards": 0.01}),
    "observations times 1,000 plus 500": ("normalize_observations", {"env": f"{__name__}:{ShiftedTicTacToe.__name__}"}),
}
"""By the size of what AlphaZero learns from: the field that normalises it, and changes of `tictactoe_alphazero`."""


def normalisation(report: Report) -> None:
    """Count the games that AlphaZero loses to a perfect player, without search, where rewards or observations have other sizes.

    Runs take a tenth of the preset's steps.
    """
    for size, (field, changes) in SIZES.items():
        for normalised in (False, True):
            arm = f"{size}, {'normalised' if normalised else 'as they come'}"
            given = {"eval_every": None, "total_timesteps": 40_000, field: normalised, **changes}
            run = report.train("tictactoe_alphazero", arm, **given)
            player = partial(policy_player, run.agent, deterministic=True)
            report.measure(f"{arm}: lost of {GAMES}", lost_to_perfect(report, run, player))


def lost_to_perfect(report: Report, run: Trained, player: Callable[[Any], Player]) -> np.ndarray:
    """Return the games of tic-tac-toe lost to a perfect player, of 100 in each seat, i32 `[seeds]`."""
    game, params = make_env(run.agent.config.env)

    def lost(state: Any, key: jax.Array) -> jax.Array:
        return jnp.sum(play_match(game, params, player(state), perfect_player(), key, GAMES).result < 0)

    return report.time_program(jax.vmap(lost), run.states, fresh_keys(run))


def number_duel(report: Report) -> None:
    """Measure what a new PPO learns to win per game, from the main agent and from self-play with as many steps."""
    config = load_config("number_duel_league", eval_every=None)
    control = SelfPlayConfig(**shared_fields(config, "gamma"), ent_coef=0.0)
    arms: dict[str, Config] = {
        "league": config,
        "self-play": control,
        "self-play with the league's entropy bonus": control.replace(ent_coef=config.ent_coef),
    }
    for name, arm in arms.items():
        run = report.train(arm, name, preset="number_duel_league")
        report.measure(f"{name}: won from it", _won_by_new_ppo(report, run, run.states, DUEL_BUDGET))


def _won_by_new_ppo(report: Report, run: Trained, states: Any, budget: dict[str, Any]) -> jax.Array:
    """Return what a new PPO with this budget learns to win per game from the agent in each of its states, f32 `[seeds]`."""

    def gain(state: Any, key: jax.Array) -> jax.Array:
        return exploited(run.agent, state, key, **budget).value

    found: jax.Array = report.time_program(jax.vmap(gain), states, fresh_keys(run))
    return found


def kuhn_of_three(report: Report) -> None:
    """Measure what a new PPO learns to win per game from two copies of the agent, trained and not."""
    run = report.train("kuhn3_selfplay", eval_every=None)
    for name, states in (("trained", run.states), ("untrained", jax.vmap(run.agent.init)(run.keys))):
        report.measure(f"{name}: won from two copies", _won_by_new_ppo(report, run, states, THIRD_BUDGET))


def backgammon(report: Report) -> None:
    """Play a search with chance nodes against the greedy policy that guides it, and that policy against random play."""
    run = report.train(SelfPlayConfig(**BACKGAMMON), "backgammon")
    game, params = make_env(run.agent.config.env)
    greedy = partial(policy_player, run.agent, deterministic=True)
    search = partial(search_player, run.agent, num_simulations=DICE_SIMULATIONS)
    pairs: dict[str, tuple[Callable[[Any], Player], Callable[[Any], Player]]] = {
        "policy against random play": (greedy, lambda _: random_player),
        f"search of {DICE_SIMULATIONS} against its policy": (search, greedy),
    }
    for name, (first, second) in pairs.items():

        def points(run: tuple[Any, jax.Array], first: Any = first, second: Any = second) -> jax.Array:
            state, key = run
            return play_match(game, params, first(state), second(state), key, GAMES, max_steps=LONGEST_GAME).result

        # One seed after the other: the trees of all games of one take enough memory.
        found = np.asarray(report.time_program(partial(jax.lax.map, points), (run.states, fresh_keys(run))))
        ended = np.isfinite(found)
        report.measure(f"{name}: won", np.where(ended, found > 0, 0).sum(1) / ended.sum(1))
        report.measure(f"{name}: points a game", np.nanmean(found, axis=1))
        report.measure(f"{name}: games", ended.sum(1))


def branching(report: Report) -> None:
    """Count the steps after which an exploiter of Connect Four wins enough, begun as a branch of the main agent or anew."""
    run = report.train("connect_four_selfplay", "main agent", eval_every=None, **MAIN)
    game, _ = make_env(run.agent.config.env)
    config = report.configure(PPOConfig(**shared_fields(run.agent.config, "gamma", "ent_coef") | EXPLOITER), "exploiter")[0]

    def shares(branched: bool, state: Any, key: jax.Array) -> jax.Array:
        """Return the share of games won in each iteration, a draw as half, f32 `[iterations]`; NaN where none ended."""
        main = policy_player(run.agent, state, deterministic=False)
        exploiter = make_agent(config.replace(env=Versus(game, main)))
        own = jax.tree.map(lambda x: x[0], state.params)
        start = branch(exploiter, own, key) if branched else exploiter.init(key)
        _, metrics = jax.lax.scan(lambda state, _: exploiter.step(state), start, None, config.num_iterations)
        return 0.5 + 0.5 * metrics["episode/return"]

    steps = [int(i + 1) * config.steps_per_iteration for i in range(config.num_iterations)]
    for name, branched in (("branch", True), ("anew", False)):
        program = jax.vmap(partial(shares, branched))
        won = np.asarray(report.time_program(program, run.states, fresh_keys(run)))
        smooth = np.stack([np.nanmean(won[:, max(0, i - 4) : i + 1], axis=1) for i in range(won.shape[1])], axis=1)
        report.measure(f"{name}: steps to a share of {ENOUGH}", first_step(smooth, steps, ENOUGH))
        report.measure(f"{name}: share at the end", smooth[:, -1])


def greedy_painter(sees_far: bool) -> Player:
    """Return a player whose members each move greedily on their own.

    They go to the neighbouring cell with the highest immediate gain, or if `sees_far`, towards the nearest cell that is not their
    team's.
    """
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
    """Measure the mean lead in cells at the end of a game: of self-play over other players, and of greedy over random ones."""
    run = report.train("territory_selfplay", eval_every=None)
    game, params = make_env(run.agent.config.env)
    for name, other in PAINTERS.items():

        def lead(state: Any, key: jax.Array, other: Any = other) -> jax.Array:
            return jnp.mean(
                play_match(game, params, policy_player(run.agent, state, deterministic=False), other(), key, GAMES).result
            )

        report.measure(f"lead over {name}", report.time_program(jax.vmap(lead), run.states, fresh_keys(run)))
        if name != "random":
            match = report.time_program(
                lambda key, other=other: play_match(game, params, other(), random_player, key, GAMES), run.keys[0]
            )
            report.facts[f"lead of {name} over random"] = jnp.mean(match.result)


def connect_four(report: Report, preset: str) -> None:
    """Play against random play and a search, with and without a search by the agent; measure its moves in solved positions."""
    run = report.train(preset, eval_every=None)
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

            report.measure(f"{name}: won against {other}", report.time_program(jax.vmap(won), run.states, fresh_keys(run)))
    if importlib.util.find_spec("bitbully") is None:
        report.note = "bitbully is not installed: no solved positions"
        return
    positions = solved_positions(300)
    untrained = jax.vmap(run.agent.init)(run.keys)
    for when, states in (("untrained", untrained), ("trained", run.states)):
        moves = np.asarray(report.time_program(jax.vmap(partial(best_moves, run.agent, positions)), states))
        rates = [value_losing_rates(positions, found) for found in moves]
        for phase in (*PHASES, "all"):
            report.measure(f"{when}: moves that lose value, {phase}", [rate[phase] for rate in rates])


def best_moves(agent: Any, positions: Positions, state: Any) -> jax.Array:
    """Return the greedy legal moves of an agent, i32 `[N]`, with the observation of the player to move."""
    game, states = ConnectFour(), ConnectFourState(jnp.asarray(positions.board), jnp.asarray(positions.time))
    of_both = jax.vmap(lambda state: game.observe(state, game.default_params))(states)
    seen = of_both[jnp.arange(len(of_both)), states.time % 2]
    moves: jax.Array = agent.act(state, seen, None, jax.random.key(0), True, positions.value > -2)[0]
    return moves


def shared_fields(config: Any, *more: str) -> dict[str, Any]:
    """Return the fields that are the same for a league and its control."""
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
