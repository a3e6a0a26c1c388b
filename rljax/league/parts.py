"""Parts of self-play and leagues: the game, the policy and the rules of a configuration, and the state of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.common.game_policy import build_game_policy
from rljax.algos.common.optimizer import adam
from rljax.algos.common.teacher import TaughtState, teacher_fields
from rljax.algos.common.value_heads import info_keys, num_values
from rljax.algos.ppo import PPOParts
from rljax.collect.curriculum.levels import LEVEL, LEVEL_SCORE
from rljax.collect.environments import make_training_game
from rljax.collect.games.rollout import Playing
from rljax.collect.games.sides import Side, sides
from rljax.collect.intrinsic import make_intrinsic
from rljax.collect.minibatches import init_optimizer, ravel
from rljax.collect.normalizers import init_reward_statistics, init_statistics
from rljax.collect.resets import initial_environments
from rljax.collect.rollout import reset_carry
from rljax.core.environments.environment import BELIEF, tree_where
from rljax.core.errors import ConfigError
from rljax.core.games.game import Game
from rljax.core.games.game_wrappers import public_part
from rljax.core.games.versus import Seated, check_scripted, seat_player, without_view
from rljax.core.keys import as_single_key, draw
from rljax.core.memory import check_memory
from rljax.core.state import ENVIRONMENT_CONFIG, copy_of_params, copy_of_state, per_environment, statistics
from rljax.league.config import GameConfig, LeagueConfig
from rljax.league.game_tree import GameTree, game_tree
from rljax.league.league import League
from rljax.league.rules import MAIN, Rules

FINAL_OBSERVATION = "final_observation"


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

    @property
    def learners(self) -> int:
        return len(self.rules.roles)

    @property
    def scripted(self) -> np.ndarray:
        """Number of the scripted opponent in the configuration's list of each game, -1 against others, i32 `[E]`."""
        config = self.config
        names = config.scripted if isinstance(config, LeagueConfig) else ()
        slots = config.num_slots if config.has_pool else 1
        numbers = np.full((self.learners, slots, config.num_envs // (self.learners * slots)), -1, np.int32)
        mains = [learner for learner, role in enumerate(self.rules.roles) if role == MAIN]
        for number in range(len(names)):
            numbers[mains, slots - 1 - number] = number
        return numbers.reshape(-1)

    @property
    def acting(self) -> int:
        """Q, the number of players whose observations a step takes."""
        return 1 if self.game.turn_gap else self.game.num_players

    @property
    def sides(self) -> tuple[Side, Side] | None:
        """The seats of the learner's team and those of the others; None without opponents, and where one seat acts in a step."""
        return sides(self.game) if self.config.has_pool and not self.game.turn_gap else None

    @property
    def has_memory(self) -> bool:
        return self.ppo.policy.initial_carry((1,)) is not None

    @property
    def whole_streams(self) -> bool:
        """True if minibatches are whole streams instead of single steps."""
        return self.has_memory or self.config.learner == "impala"


class GameState(TaughtState, kw_only=True):
    """State of L learners and E games.

    `params`, `opt_state` and the statistics have leaves `[L, ...]`; learner 0 is the main agent. `env_state` is `Playing`, and
    `obs` are those of all players, `[E, P, ...]`.

    Attributes:
        league: pool, payoffs and opponents; None without a pool.
        carry: memory of all seats in the games under way, `[E, P, ...]`, zeros where a game begins; None without memory.
        intrinsic: state of the learners' bonuses; None without one.
        curriculum: state of the curriculum, one for all learners; None without one.
        past_params: parameters of past iterations, raveled, oldest first, f32 `[L, policy_lag, P]`; None without lag.
    """

    # A game ends against the opponent that it began with.
    env_state: Any = per_environment(depends_on=("scripted", "curriculum"))
    league: League | None = copy_of_state(
        lambda state, league: league.begun_with(players_of(state), state.iteration),
        depends_on=ENVIRONMENT_CONFIG,  # results of one game say nothing about another
        recount=lambda league, count: league.recounted(count),
    )
    carry: Any = per_environment()
    intrinsic: Any = statistics(depends_on=("env", "env_params", "intrinsic"))
    curriculum: Any = statistics(depends_on=("env", "env_params", "curriculum"))
    past_params: jax.Array | None = copy_of_params(lambda params, past: copies_of(params, past.shape[1]))


class Learner(NamedTuple):
    """The fields of a state that belong to learners, of one of them or with leaves `[L, ...]`."""

    params: Any
    average_params: Any
    opt_state: Any
    obs_statistics: Any
    reward_statistics: Any
    intrinsic: Any
    past_params: Any
    teacher: Any


class Player(NamedTuple):
    """Parameters of a player, and the statistics that normalise its observations."""

    params: Any
    obs_statistics: Any


def learners_of(state: GameState) -> Learner:
    """Return the fields of all learners."""
    return Learner(*(getattr(state, name) for name in Learner._fields))


def player(params: Any, obs_statistics: Any) -> Any:
    """Return what a pool keeps of players: their parameters, and the statistics if there are any."""
    return params if obs_statistics is None else Player(params, obs_statistics)


def player_like(params: Any, kept: Any) -> Any:
    """Return a player with other parameters, and the statistics of `kept`."""
    return player(params, split_player(kept).obs_statistics)


def split_player(kept: Any) -> Player:
    """Undo `player`."""
    return kept if isinstance(kept, Player) else Player(kept, None)


def players_of(state: GameState) -> Any:
    """Return the learners as players, leaves `[L, ...]`."""
    return player(state.params, state.obs_statistics)


def main_of(state: GameState) -> Player:
    """Return the main agent."""
    return split_player(jax.tree.map(lambda x: x[0], players_of(state)))


def game_parts(config: GameConfig) -> GameParts:
    """Build game, policy and rules.

    Raises:
        ConfigError: `env` is not a game, or does not fit the rest.
    """
    game, env_params, curriculum = make_training_game(config)
    _, _, one, policy, head = build_game_policy(config, num_values(config), (game, env_params))
    intrinsic = None
    if config.intrinsic is not None:
        streams = config.num_envs // config.num_learners * (1 if game.turn_gap else game.num_players)
        intrinsic = make_intrinsic(config.intrinsic, config.num_steps * streams, gamma=config.intrinsic_gamma)
    keep = info_keys(config, game, env_params)
    if intrinsic is not None and BELIEF not in keep:
        keep += (FINAL_OBSERVATION,)
    if curriculum is not None:
        keep += (LEVEL, LEVEL_SCORE)
    ppo = PPOParts(config, one, env_params, policy, head, intrinsic, keep, curriculum)
    parts = GameParts(config, game, env_params, config.rules(), ppo, None)
    _check_parts(parts)
    return parts if config.exploitability_every is None else parts._replace(tree=game_tree(game, env_params))


def with_ppo_fields(parts: GameParts, **changes: Any) -> GameParts:
    """Return the parts with other fields of the configuration that the update reads; they may be traced."""
    return parts._replace(ppo=parts.ppo._replace(config=parts.ppo.config.replace(**changes)))


_OF_PPO = {
    "magnet_coef": "a term of PPO's loss",
    "dual_clip": "a bound in PPO's loss",
    "target_kl": "where PPO's gradient steps stop",
}
"""Optional fields that V-trace does not use, and what they are."""


def _check_parts(parts: GameParts) -> None:
    config, game = parts.config, parts.game
    if config.has_pool and game.num_teams < 2:
        raise ConfigError(
            f"env = {game.name!r}: all players are one team, so it has no opponents; expected self_play with 'self'"
        )
    for name in config.scripted if isinstance(config, LeagueConfig) else ():
        check_scripted(game, name, f"scripted: no scripted player {name!r}")
    seats = parts.acting if parts.sides is None else parts.sides[0].seats.shape[1]
    streams = config.num_envs // parts.learners * seats
    if parts.whole_streams and streams % config.num_minibatches:
        raise ConfigError(
            f"num_minibatches = {config.num_minibatches}: must divide the {streams} streams of a learner, which minibatches have "
            "whole with a memory or with learner = 'impala'"
        )
    if not parts.whole_streams:
        moves = batch_size(parts)
        if not moves:
            raise ConfigError(
                f"num_minibatches = {config.num_minibatches}: a learner has fewer moves in a rollout; raise num_envs or num_steps"
            )
        config.check_minibatch_size(moves // config.num_minibatches)
    if config.learner == "impala":
        for name, what in _OF_PPO.items():
            if getattr(config, name) is not None:
                raise ConfigError(f"{name}: is {what}, expected none with learner = 'impala'")
    if config.exploitability_every is not None and parts.has_memory:
        raise ConfigError("exploitability_every: is computed of policies without memory, expected none with this network")
    if config.policy_lag:
        one = jax.eval_shape(parts.ppo.policy.init, jax.random.key(0), _one_obs(parts))
        size = 4 * sum(x.size for x in jax.tree.leaves(one)) * parts.learners
        what = f"policy_lag = {config.policy_lag}: that many past policies of each learner"
        check_memory(config.policy_lag * size, what, f"policies of all learners take {size:,} bytes")


def _one_obs(parts: GameParts) -> Any:
    return jax.eval_shape(lambda: parts.ppo.env.reset_env(jax.random.key(0), parts.game_params))[0]


def batch_size(parts: GameParts) -> int:
    """Return the number of moves of one learner that are learned from in an iteration. In games against others every team has the
    same share on average; without others, all moves are one's own.
    """
    config, game = parts.config, parts.game
    moves = (config.num_steps - game.turn_gap) * config.num_envs // parts.learners * parts.acting
    share = game.num_teams if config.has_pool else 1
    return moves // (share * config.num_minibatches) * config.num_minibatches


def scripted_players(parts: GameParts) -> dict[str, tuple[Seated, np.ndarray]]:
    """Return the scripted opponents by name, and the numbers of the games against each, i32 `[games]`."""
    config, game, params, scripted = parts.config, parts.game, parts.game_params, parts.scripted
    found: dict[str, tuple[Seated, np.ndarray]] = {}
    if not isinstance(config, LeagueConfig):
        return found
    for name in dict.fromkeys(config.scripted):
        games = np.flatnonzero([number >= 0 and config.scripted[number] == name for number in scripted])
        found[name] = seat_player(without_view(game.scripted[name], params), game, params), games
    return found


def game_init(parts: GameParts, key: jax.Array) -> GameState:
    """Return the state before the first iteration: untrained learners with different weights, and new games."""
    config, learners = parts.config, parts.learners
    params_key, env_key, eval_key, team_key, key = jax.random.split(as_single_key(key), 5)
    game, obs = initial_environments(parts.game, parts.game_params, env_key, config.num_envs)
    one = jax.tree.map(lambda x: x[0, 0], obs)
    params = _stack([parts.ppo.policy.init(k, one) for k in jax.random.split(params_key, learners)])
    players, against = parts.game.num_players, scripted_players(parts)
    begin = {
        name: jax.vmap(lambda state, player=player: player.initial(state, None))(game) for name, (player, _) in against.items()
    }
    playing = Playing(
        game=game,
        returns=jnp.zeros((config.num_envs, players)),
        length=jnp.zeros(config.num_envs, jnp.int32),
        team=draw_teams(parts, team_key, (config.num_envs,)),
        lane=jnp.zeros(config.num_envs, jnp.int32),
        scripted=begin,
    )
    seats = config.num_envs // learners * players
    obs_statistics = _of_each(learners, init_statistics(one)) if config.normalize_observations else None
    league = None
    if config.has_pool:
        league = League.create(parts.rules, player(params, obs_statistics), config.pool_size, config.num_slots)
    carry = parts.ppo.policy.initial_carry((config.num_envs, players))
    return GameState(
        params=params,
        opt_state=jax.vmap(lambda p: init_optimizer(adam(config), p))(params),
        obs_statistics=obs_statistics,
        reward_statistics=_of_each(learners, init_reward_statistics(seats)) if config.normalize_rewards else None,
        intrinsic=initial_bonus(parts, jax.random.fold_in(params_key, 1), one),
        curriculum=None if parts.ppo.curriculum is None else parts.ppo.curriculum.init(),
        past_params=copies_of(params, config.policy_lag) if config.policy_lag else None,
        carry=carry,
        **teacher_fields(config, params, obs_statistics, carry, (learners,)),
        env_state=playing,
        obs=obs,
        league=league,
        key=key,
        eval_key=eval_key,
        iteration=jnp.zeros((), jnp.int32),
    )


def initial_bonus(parts: GameParts, key: jax.Array, obs: Any) -> Any:
    """Return the states of the learners' bonuses before any game, leaves `[L, ...]`; None without a bonus."""
    intrinsic = parts.ppo.intrinsic
    if intrinsic is None:
        return None
    games = parts.config.num_envs // parts.learners
    streams = games * (parts.game.num_players if BELIEF in parts.ppo.keep else parts.acting)
    public = public_part(parts.game, obs)
    return _stack([intrinsic.init(k, public, streams) for k in jax.random.split(key, parts.learners)])


def begun_anew(parts: GameParts, state: GameState, anew: jax.Array, key: jax.Array) -> GameState:
    """Return the state with nothing left of what learners that are reset, bool `[L]`, have seen: the statistics of rewards, the
    bonus, and the memory of their own seats in games under way.
    """
    rewards, intrinsic, carry = state.reward_statistics, state.intrinsic, state.carry
    if rewards is not None:
        fresh = _of_each(parts.learners, init_reward_statistics(rewards.discounted_return.shape[1]))
        rewards = jax.vmap(tree_where)(anew, fresh, rewards)
    if intrinsic is not None:
        one = jax.tree.map(lambda x: x[0, 0], state.obs)
        intrinsic = jax.vmap(tree_where)(anew, initial_bonus(parts, key, one), intrinsic)
    if carry is not None:
        own = jnp.asarray(parts.game.teams) == state.env_state.team[:, None]
        games = jnp.repeat(anew, parts.config.num_envs // parts.learners)
        carry = reset_carry(carry, own & games[:, None])
    return state.replace(reward_statistics=rewards, intrinsic=intrinsic, carry=carry)


def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _of_each(learners: int, tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (learners, *x.shape)), tree)


def copies_of(params: Any, count: int) -> jax.Array:
    """Return the parameters of each learner `[L, ...]`, raveled, `count` times: f32 `[L, count, P]`."""
    return jax.vmap(lambda p: jnp.tile(ravel(p), (count, 1)))(params)


def draw_teams(parts: GameParts, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw the learner's team in games that begin, i32 `shape`."""
    return (draw(jax.random.uniform, key, shape) * parts.game.num_teams).astype(jnp.int32)


def of_learners(function: Callable[..., Any], learners: int) -> Callable[..., Any]:
    """`vmap` over learners, but of a single one: products of batches of one matrix are slower than products."""
    if learners > 1:
        return jax.vmap(function)

    def alone(*arguments: Any) -> Any:
        result = function(*jax.tree.map(lambda x: x[0], arguments))
        return jax.tree.map(lambda x: x[None], result)

    return alone
