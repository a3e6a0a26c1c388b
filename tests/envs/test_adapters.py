"""Environments of other suites: what they do is what the suites do, training traces, and what is wrong is one line."""

from __future__ import annotations

import enum
import importlib.util
import runpy
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.core.contract import check_contract
from rljax.core.environments.environment import action_mask_of
from rljax.core.environments.spaces import as_space, legal_action
from rljax.envs import resolve_env
from rljax.envs.about import constructor_arguments
from rljax.envs.adapters import SUITES, plain_arguments, raw_key, suite_ids
from rljax.envs.registry import factory_of

STEPS = 100
Shown = dict[str, Any]
"""A step of a suite: `obs`, a list of arrays, `reward`, and `over`: the episode is terminated or truncated."""


def of_brax(env: Any) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Shown]]:
    return env.reset, lambda _, state, action: env.step(state, action), lambda s: shown(s.obs, s.reward, s.done > 0.5)


def brax() -> Any:
    envs = importlib.import_module("brax.envs")
    return of_brax(envs.get_environment("reacher"))


def playground() -> Any:
    registry = importlib.import_module("mujoco_playground").registry
    return of_brax(registry.load("CartpoleBalance", config_overrides={"impl": "jax"}))


def craftax() -> Any:
    made = importlib.import_module("craftax.craftax_env").make_craftax_env_from_name
    env = made("Craftax-Classic-Symbolic-v1", auto_reset=False)
    params = env.default_params.replace(max_timesteps=60)

    def step(key: jax.Array, state: Any, action: jax.Array) -> Any:
        obs, inner, reward, done, _ = env.step_env(key, state[1], action, params)
        return obs, inner, reward, done

    return lambda key: (*env.reset_env(key, params), 0.0, False), step, lambda s: shown(s[0], s[2], s[3])


def jumanji() -> Any:
    env = importlib.import_module("jumanji").make("Tetris-v0", time_limit=60)
    # 4 rotations and 10 columns
    step = lambda _, state, action: env.step(state[0], jnp.stack([action // 10, action % 10]))  # noqa: E731

    def show(state: Any) -> Shown:
        obs = state[1].observation
        parts = {"grid": obs.grid, "tetromino": obs.tetromino, "step_count": obs.step_count}
        return shown(parts, state[1].reward, state[1].last())

    return env.reset, step, show


def navix() -> Any:
    env = importlib.import_module("navix").make("Navix-DoorKey-5x5-v0", max_steps=60)
    return env.reset, lambda _, state, action: env.step(state, action), lambda s: shown(s.observation, s.reward, s.step_type > 0)


def xland() -> Any:
    env, params = importlib.import_module("xminigrid").make("MiniGrid-Empty-6x6")
    params = params.replace(max_steps=60)
    reset, step = lambda key: env.reset(params, key), lambda _, state, action: env.step(params, state, action)
    return reset, step, lambda s: shown(s.observation, s.reward, s.last())


def jaxmarl() -> Any:
    library = importlib.import_module("jaxmarl")
    scenario = importlib.import_module("jaxmarl.environments.smax").map_name_to_scenario("3m")
    env = library.make("HeuristicEnemySMAX", scenario=scenario)

    def step(key: jax.Array, state: Any, action: jax.Array) -> Any:
        obs, inner, reward, done, _ = env.step_env(key, state[1], dict(zip(env.agents, action, strict=True)))
        return obs, inner, reward, done["__all__"]

    def show(state: Any) -> Shown:
        obs, _, reward, over = state
        stacked = {"obs": jnp.stack([obs[a] for a in env.agents]), "privileged": jnp.stack([obs["world_state"]] * 3)}
        return shown(stacked, jnp.stack([reward[a] for a in env.agents]), over)

    return lambda key: (*env.reset(key), dict.fromkeys(env.agents, 0.0), False), step, show


def shown(obs: Any, reward: Any, over: Any) -> Shown:
    parts = [jnp.float32(x) for x in jax.tree.leaves(obs)]
    return {"obs": parts, "reward": jnp.float32(reward), "over": jnp.asarray(over, bool)}


ENVIRONMENTS: dict[Callable[[], Any], tuple[str, dict[str, Any]]] = {
    brax: ("brax:reacher", {}),
    playground: ("playground:CartpoleBalance", {}),
    craftax: ("craftax:Craftax-Classic-Symbolic-v1", {"max_timesteps": 60}),
    jumanji: ("jumanji:Tetris-v0", {"time_limit": 60}),
    navix: ("navix:Navix-DoorKey-5x5-v0", {"max_steps": 60}),
    xland: ("xland:MiniGrid-Empty-6x6", {"max_steps": 60}),
    jaxmarl: ("jaxmarl:HeuristicEnemySMAX", {"scenario": "3m"}),
}
"""How each suite itself does it: its reset, its step and what that shows; and its id here, with parameters."""


def need(suite: str) -> None:
    pytest.importorskip(SUITES[suite].package, reason=f"{suite} is not installed", exc_type=ModuleNotFoundError)


def actions_of(env: Any, params: Any) -> Callable[[jax.Array, Any], Any]:
    """A legal action at random, of each player."""
    space = as_space(env.action_space(params))

    def draw(key: jax.Array, mask: Any, shape: tuple[int, ...]) -> Any:
        noise = jax.random.uniform(key, (*shape, space.flat_dim))
        choose = lambda n, m: legal_action(space, m, n)[0]  # noqa: E731
        return jax.vmap(choose, (0, None if mask is None else 0))(noise, mask) if shape else choose(noise, mask)

    shape = (env.num_players,) if isinstance(env, rljax.Game) else ()
    return lambda key, state: draw(key, action_mask_of(env, state, params), shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    "suite", [pytest.param(suite, marks=[pytest.mark.long] * (suite is playground), id=suite.__name__) for suite in ENVIRONMENTS]
)
def test_a_suites_own_steps_are_taken_and_training_traces(suite: Callable[[], Any]) -> None:
    need(suite.__name__)
    reset, step, show = suite()
    env_id, changes = ENVIRONMENTS[suite]
    env, params = rljax.make_env(env_id, **changes)
    assert check_contract(env, params) == []
    choose = actions_of(env, params)

    def both(key: jax.Array) -> tuple[Any, Any, Any]:
        reset_key, *keys = jax.random.split(key, 1 + 2 * STEPS)
        obs, state = env.reset_env(reset_key, params)
        own = reset(raw_key(reset_key))

        def one(carry: Any, keys: jax.Array) -> Any:
            state, own = carry
            action = choose(keys[0], state)
            obs, state, reward, terminated, _ = env.step_env(keys[1], state, action, params)
            truncated = env.is_truncated(state, params)
            own = jax.tree.map(lambda x, first: jnp.asarray(x, jnp.result_type(first)), step(raw_key(keys[1]), own, action), own)
            return (state, own), (shown(obs, reward, terminated | truncated), show(own), terminated & truncated)

        first = shown(obs, show(own)["reward"], False), show(own)
        return first, *jax.lax.scan(one, (state, own), jnp.stack(keys).reshape(STEPS, 2))[1:]

    (first, first_own), (mine, theirs, twice) = jax.jit(both)(jax.random.key(3))
    for x, y in zip(first["obs"], first_own["obs"], strict=True):
        np.testing.assert_array_equal(x, y)
    over = np.asarray(theirs["over"])
    end = int(over.argmax()) + 1 if over.any() else STEPS
    assert end >= 10, "most of a hundred random steps are compared"
    assert not np.asarray(twice)[:end].any(), "an episode is terminated or truncated, not both"
    for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(x)[:end], np.asarray(y)[:end], rtol=1e-6, atol=1e-6)

    algorithm: Any = rljax.SelfPlayConfig if isinstance(env, rljax.Game) else rljax.PPOConfig
    config = algorithm(env=env_id, env_params=changes, num_envs=2, num_steps=4, num_minibatches=1, total_timesteps=64)
    agent = rljax.make_agent(config)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    after, metrics = jax.eval_shape(agent.step, state)
    kinds = [[(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (state, after)]
    assert kinds[0] == kinds[1]
    assert {x.shape for x in jax.tree.leaves(metrics)} == {()}


def test_a_time_limit_that_ends_an_episode_truncates_it() -> None:
    need("xland")
    env, params = rljax.make_env("xland:MiniGrid-Empty-6x6", max_steps=3)
    _, state = env.reset_env(jax.random.key(0), params)
    ends = []
    for _ in range(3):
        _, state, _, terminated, _ = env.step_env(jax.random.key(1), state, jnp.int32(1), params)  # turns on the spot
        ends.append((bool(terminated), bool(env.is_truncated(state, params))))
    assert ends == [(False, False), (False, False), (False, True)]


def test_environments_of_navix_have_the_time_limit_that_navix_gives_them() -> None:
    need("navix")
    made = importlib.import_module("navix").make("Navix-Empty-8x8-v0")
    assert rljax.make_env("navix:Navix-Empty-8x8-v0")[0].env.max_steps == made.max_steps
    assert rljax.make_env("navix:Navix-Empty-8x8-v0", max_steps=0)[0].env.max_steps == made.max_steps
    assert constructor_arguments("navix:Navix-Empty-8x8-v0")["max_steps"] == made.max_steps  # which `rljax list` shows
    assert rljax.make_env("navix:Navix-Empty-8x8-v0", max_steps=7)[0].env.max_steps == 7


def test_the_time_limit_of_a_game_with_scripted_enemies_truncates_it() -> None:
    need("jaxmarl")
    env, params = rljax.make_env("jaxmarl:HeuristicEnemySMAX", scenario="3m", options={"max_steps": 3})
    _, state = env.reset_env(jax.random.key(0), params)
    ends = []
    for _ in range(3):
        stop = jnp.full(3, 4, jnp.int32)
        _, state, _, terminated, _ = env.step_env(jax.random.key(1), state, stop, params)
        ends.append((bool(terminated), bool(env.is_truncated(state, params))))
    assert ends == [(False, False), (False, False), (False, True)]


def test_games_of_jaxmarl_with_continuous_actions_have_no_masks_and_those_without_arrays_are_refused() -> None:
    need("jaxmarl")
    env, params = rljax.make_env("jaxmarl:jaxnav")
    assert check_contract(env, params) == []
    for name in ("storm", "storm_np"):
        with pytest.raises(rljax.ConfigError, match=rf"jaxmarl:{name}.*expected a dictionary with one array of observations"):
            rljax.make_env(f"jaxmarl:{name}")


def test_games_of_jaxmarl_that_cannot_be_made_are_not_listed() -> None:
    """They are refused for what they are, not as unknown."""
    need("jaxmarl")
    registered, listed = importlib.import_module("jaxmarl").registered_envs, suite_ids("jaxmarl")
    left_out = sorted(f"jaxmarl:{name}" for name in registered if f"jaxmarl:{name}" not in listed)
    assert {"jaxmarl:storm", "jaxmarl:MPE_simple_tag_v3", "jaxmarl:LearnedPolicyEnemySMAX"} < set(left_out)
    assert {"jaxmarl:MPE_simple_spread_v3", "jaxmarl:SMAX", "jaxmarl:hanabi"} < set(listed)
    for env_id in left_out:
        with pytest.raises(
            rljax.ConfigError, match=r"expected a dictionary|spaces of different kinds|required positional arguments"
        ):
            rljax.make_env(env_id)


class _Wood(NamedTuple):
    timestep: jax.Array
    achievements: jax.Array


class _Collects:
    """A world like Craftax's, whose player collects wood at the second step."""

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        return jnp.zeros(1), _Wood(jnp.int32(0), jnp.zeros(2, bool))

    def is_terminal(self, state: _Wood, params: Any) -> jax.Array:
        return state.timestep >= params.max_timesteps

    def step_env(self, key: jax.Array, state: _Wood, action: jax.Array, params: Any) -> Any:
        time = state.timestep + 1
        state = _Wood(time, state.achievements | (jnp.array([False, True]) & (time >= 2)))
        done = self.is_terminal(state, params)
        return jnp.zeros(1), state, 1.0, done, {"Achievements/collect_wood": state.achievements[1] * done * 100.0}


@struct.dataclass
class _Limit:
    max_timesteps: int = 9


@pytest.mark.parametrize("name", ["Craftax-Symbolic-v1", "Craftax-Classic-Symbolic-v1"])
def test_achievements_of_craftax_count_however_an_episode_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a world in its place, as the suite need not be installed."""
    kinds = enum.Enum("Achievement", [("EAT_COW", 0), ("COLLECT_WOOD", 1)])
    for module, entries in {
        "craftax.constants": {"Achievement": kinds},
        "craftax.renderer": {"make_craftax_pixel_renderer": None},
        "craftax_classic.constants": {"Achievement": kinds},
        "craftax_classic.renderer": {"make_craftax_pixel_renderer": None},
        "craftax_env": {"make_craftax_env_from_name": None},
    }.items():
        monkeypatch.setitem(sys.modules, f"craftax.{module}", types.SimpleNamespace(**entries))
    spec = importlib.util.find_spec("rljax.envs.adapters.craftax")
    assert spec is not None
    assert spec.origin is not None
    env = runpy.run_path(spec.origin)["CraftaxEnv"](_Collects(), f"craftax:{name}")
    _, state = env.reset_env(jax.random.key(0), _Limit())
    seen = []
    for _ in range(2):
        _, state, _, terminated, info = env.step_env(jax.random.key(0), state, jnp.int32(0), _Limit())
        assert not terminated
        seen.append({metric: float(x) for metric, x in info["metrics"].items()})
    assert seen == [{"Achievements/eat_cow": 0.0, "Achievements/collect_wood": x} for x in (0.0, 100.0)]


def test_objects_of_suites_are_taken() -> None:
    need("xland")
    made = importlib.import_module("xminigrid").make("MiniGrid-Unlock")[0]
    env, params = resolve_env(made)
    assert check_contract(env, params) == []
    assert env.action_space(params).n == 6


@pytest.mark.parametrize("wrapped", [False, True])
def test_objects_of_xland_whose_size_is_in_their_parameters_are_refused(wrapped: bool) -> None:
    need("xland")
    made = importlib.import_module("xminigrid").make("MiniGrid-Empty-16x16")[0]
    if wrapped:
        made = importlib.import_module("xminigrid.wrappers").DirectionObservationWrapper(made)
    instead = r"its parameters \(height, width\): give its id, such as env = 'xland:MiniGrid-Empty-5x5', or env_params with them$"
    with pytest.raises(rljax.ConfigError, match=instead):
        resolve_env(made)
    own = type("Own", (type(importlib.import_module("xminigrid").make("MiniGrid-Empty-16x16")[0]),), {})
    assert resolve_env(own())[0].name == "xland:Own"  # its class says all


def test_objects_of_jaxmarl_have_the_teams_of_their_ids() -> None:
    need("jaxmarl")
    made = importlib.import_module("jaxmarl").make("coin_game")
    assert resolve_env(made)[0].teams == resolve_env("jaxmarl:coin_game")[0].teams == (0, 1)


def test_maps_of_jaxmarl_are_given_by_their_names() -> None:
    need("jaxmarl")
    env, params = rljax.make_env("jaxmarl:overcooked", options={"layout": "asymm_advantages"})
    assert env.observation_space(params).shape == (5, 9, 26)
    with pytest.raises(rljax.ConfigError, match=r"layout = 'asym_advantages': did you mean 'asymm_advantages'\?$"):
        rljax.make_env("jaxmarl:overcooked", options={"layout": "asym_advantages"})
    with pytest.raises(rljax.ConfigError, match=r"scenario = '3x': did you mean '3m'\?$"):
        rljax.make_env("jaxmarl:HeuristicEnemySMAX", scenario="3x")


def test_arguments_that_games_of_jaxmarl_would_not_read_are_refused() -> None:
    need("jaxmarl")
    name = "jaxmarl:MPE_simple_spread_v3"
    with pytest.raises(rljax.ConfigError, match=r"v3': has no argument 'scenario': "):
        rljax.make_env(name, scenario="3m")
    with pytest.raises(rljax.ConfigError, match=r"has no argument 'num_agent': did you mean 'num_agents'\?$"):
        rljax.make_env(name, options={"num_agent": 4})
    assert rljax.make_env(name, options={"num_agents": 4, "num_landmarks": 4})[0].num_players == 4
    assert rljax.make_env("jaxmarl:switch_riddle")[0].num_players == 3  # its spaces have names of their own


def test_a_limit_of_navix_is_no_negative_number() -> None:
    need("navix")
    with pytest.raises(rljax.ConfigError, match=r"max_steps = -3: expected a whole number >= 0; 0: the limit of navix.make$"):
        rljax.make_env("navix:Navix-Empty-5x5-v0", max_steps=-3)
    with pytest.raises(rljax.ConfigError, match=r"env = 'navix:nosuch': rljax list navix lists what there is$"):
        rljax.make_env("navix:nosuch")


def test_a_shaped_reward_of_jaxmarl_is_a_component() -> None:
    need("jaxmarl")
    env, params = rljax.make_env("jaxmarl:overcooked")
    theirs = importlib.import_module("jaxmarl").make("overcooked")
    key = jax.random.key(0)

    def step(state: Any, key: jax.Array) -> Any:
        actions = jax.random.randint(key, (2,), 0, env.action_space(params).n)
        raw, given = jax.random.key_data(key), {"agent_0": actions[0], "agent_1": actions[1]}
        expected = theirs.step_env(raw, state.env_state, given)
        _, after, reward, _, info = env.step_env(key, state, actions, params)
        return after, (reward, info["reward_components"], expected[2]["agent_0"], expected[4]["shaped_reward"])

    state = env.reset_env(key, params)[1]
    _, (reward, parts, won, shaped) = jax.jit(lambda state: jax.lax.scan(step, state, jax.random.split(key, 2_000)))(state)
    np.testing.assert_array_equal(reward, parts["reward"])
    np.testing.assert_array_equal(reward[:, 0], won)
    np.testing.assert_array_equal(parts["shaped_reward"], np.stack([shaped["agent_0"], shaped["agent_1"]], 1))
    assert (np.asarray(parts["shaped_reward"]) > 0).any(0).all(), "both put onions into a pot"


def test_wrappers_of_jaxmarl_and_games_that_override_step_are_refused() -> None:
    need("jaxmarl")
    made = importlib.import_module("jaxmarl").make("MPE_simple_spread_v3")
    wrapper = importlib.import_module("jaxmarl.wrappers.baselines").JaxMARLWrapper
    with pytest.raises(
        rljax.ConfigError, match=r"^env: Own is a wrapper of JaxMARL, whose step rljax never calls: give the game"
    ):
        resolve_env(type("Own", (wrapper,), {})(made))
    with pytest.raises(rljax.ConfigError, match=r"^env: Own defines step, which rljax never calls: override step_env$"):
        resolve_env(type("Own", (type(made),), {"step": lambda self, *arguments: 0})())
    assert resolve_env(type("Own", (type(made),), {"step_env": type(made).step_env})())[0].name == "jaxmarl:Own"


def test_objects_that_reset_themselves_are_refused() -> None:
    need("brax")
    made = importlib.import_module("brax.envs").create("inverted_pendulum", episode_length=3)
    with pytest.raises(rljax.ConfigError, match="env: AutoResetWrapper begins or ends episodes itself: give the environment"):
        resolve_env(made)


@pytest.mark.parametrize("name", ["Snake-v1", "SearchAndRescue-v0"])
def test_a_time_limit_of_jumanji_truncates(name: str) -> None:
    need("jumanji")
    env, params = rljax.make_env(f"jumanji:{name}", time_limit=2)
    _, state = env.reset_env(jax.random.key(0), params)
    ends = []
    for _ in range(2):
        mask = env.action_mask(state, params)
        action = env.action_space(params).sample(jax.random.key(0)) if mask is None else jnp.argmax(mask)
        _, state, _, terminated, _ = env.step_env(jax.random.key(1), state, action, params)
        ends.append((bool(terminated), bool(env.is_truncated(state, params))))
    assert ends == [(False, False), (False, True)]


def test_arguments_that_a_configuration_can_give() -> None:
    def build(
        size: int = 3, limit: int | None = None, generator: list[int] | None = None, name: str = "x", must: int = ...
    ) -> None:  # type: ignore[assignment]
        del size, limit, generator, name, must

    assert plain_arguments(build) == {"size": 3, "limit": None, "name": "x"}
    for odd in (Callable[[str], None], "no expression", "Missing | None", 3):
        build.__annotations__["generator"] = odd
        assert plain_arguments(build)["size"] == 3


def test_objects_of_pgx_are_taken() -> None:
    pgx = importlib.import_module("pgx")
    assert resolve_env(pgx.make("2048"))[0].name == resolve_env("pgx:2048")[0].name
    assert isinstance(resolve_env(pgx.make("tic_tac_toe"))[0], rljax.Game)
    own = importlib.import_module("pgx.go").Go(size=5, komi=0.5)
    env, params = resolve_env(own)
    assert env.game is own  # and no game of pgx's that has its name
    assert (env.name, env.action_space(params).n) == ("pgx:go_5x5", 26)
    assert rljax.load_config("self_play", env=own).env is own


@pytest.mark.slow
def test_environments_of_pgx_for_one_player_are_environments() -> None:
    env, params = rljax.make_env("pgx:2048")
    assert not isinstance(env, rljax.Game)
    assert check_contract(env, params) == []
    obs, state = env.reset_env(jax.random.key(0), params)
    _, state, reward, terminated, _ = env.step_env(jax.random.key(1), state, jnp.argmax(env.action_mask(state, params)), params)
    assert (obs.shape, obs.dtype) == ((4, 4, 31), jnp.float32)
    assert (reward.shape, bool(terminated)) == ((), False)


def test_a_suite_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jumanji", None)
    monkeypatch.delitem(sys.modules, "rljax.envs.adapters.jumanji", raising=False)
    with pytest.raises(rljax.ConfigError, match=r"jumanji is not installed: pip install 'rljax-jit\[jumanji\]'"):
        rljax.make_env("jumanji:Snake-v1")


def test_what_a_suite_says_as_it_is_imported_is_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def import_module(_: str) -> Any:
        print("importing")
        return types.SimpleNamespace(ids=lambda: ["a"])

    monkeypatch.setattr("importlib.import_module", import_module)
    monkeypatch.delitem(sys.modules, "rljax.envs.adapters.jaxmarl", raising=False)  # another test may have imported it
    assert suite_ids("jaxmarl") == ["jaxmarl:a"]
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "importing\n")


@pytest.mark.parametrize("env_id", ["gymnasium:{}:CartPole-v1", "{}:CartPole"])
def test_what_a_users_own_module_says_as_it_is_imported_is_no_result(
    env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need("gymnasium")
    name = f"talks_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("from rljax.envs.cartpole import CartPole\nprint('importing')\n")
    monkeypatch.syspath_prepend(tmp_path)
    factory_of(env_id.format(name))
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "importing\n")


def test_threads_that_import_suites_leave_standard_output_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, both = threading.Event(), threading.Event()

    def import_module(name: str) -> Any:
        if name.endswith("jaxmarl"):
            begun.set()
            both.wait(0.5)  # in vain, as only one imports at a time
        else:
            both.set()
            first.join()
        return types.SimpleNamespace(ids=list)

    before = sys.stdout
    monkeypatch.setattr("importlib.import_module", import_module)
    for suite in ("jaxmarl", "navix"):
        monkeypatch.delitem(sys.modules, f"rljax.envs.adapters.{suite}", raising=False)
    first, second = (threading.Thread(target=suite_ids, args=(suite,)) for suite in ("jaxmarl", "navix"))
    first.start()
    assert begun.wait(10)
    second.start()
    second.join()
    assert sys.stdout is before


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("xland:MiniGrid-Emty-6x6", r"did you mean 'xland:MiniGrid-Empty-6x6'\?$"),
        ("xland:", "': rljax list xland lists what there is$"),
        ("jumanji:snake-v1", r"did you mean 'jumanji:Snake-v1'\?$"),
    ],
)
def test_an_unknown_name_of_a_suite_is_one_line(env_id: str, words: str) -> None:
    need(env_id.partition(":")[0])
    with pytest.raises(rljax.ConfigError, match=words):
        rljax.make_env(env_id)


def test_every_suite_has_ids_and_an_extra() -> None:
    need("xland")
    assert "xland:MiniGrid-Empty-6x6" in suite_ids("xland")
    extras = importlib.import_module("importlib.metadata").metadata("rljax-jit").get_all("Provides-Extra")
    assert set(SUITES) <= set(extras)
