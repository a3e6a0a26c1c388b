"""Opponent models: windows against a plain list, files, the memory of a policy, divergence by beta, a linear probe on z, and what
a policy does with z."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.opponents import opponent_windows, train_opponent_model
from rljax.algos.ppo import ppo_parts
from rljax.cli.main import main
from rljax.collect.demos import Dataset, Window
from rljax.core.errors import ConfigError
from rljax.envs.habit_rps import SIGNS
from rljax.nn.opponents import OpponentModel, load_opponent_model, observed_part
from rljax.run.reproduce.playing.opponents import SHOWN, habit_returns, habits, probe, without_z


def recorded(path: Path, episodes: int = 24) -> Dataset:
    """Record games of a player that moves at random against the habits in turn."""
    arguments: Any = {"env": "HabitRPS-v0", "env_params": {"num_rounds": 5}, "against": list(SIGNS)}
    rljax.demonstrations("random", path, num_episodes=episodes, **arguments)
    return rljax.open_dataset(path, held_out=0.2)


def tiny_model(path: Path, observed: Any = SHOWN) -> str:
    """Return the file of a model that has hardly been trained."""
    sizes: Any = {"window": 3, "latent": 2, "hidden": (8,), "num_streams": 4, "num_steps": 8, "num_iterations": 2}
    model, metrics = train_opponent_model(recorded(path / "games"), jax.random.key(0), observed=observed, **sizes)
    assert metrics["train/loss"].shape == (2,)
    assert jnp.isfinite(metrics["eval/held_out_loss"])
    model.save(path / "model.json")
    return str(path / "model.json")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(tmp_path_factory.mktemp("opponents"))


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[], [0]])
def test_the_loss_on_games_set_apart_is_measured_where_there_are_any(numbers: list[int], tmp_path: Path) -> None:
    dataset = recorded(tmp_path / "games", 3)._replace(held_out=np.array(numbers, np.int64))
    sizes: Any = {"window": 3, "latent": 2, "hidden": (8,), "num_streams": 4, "num_steps": 8, "num_iterations": 1}
    _, metrics = train_opponent_model(dataset, jax.random.key(0), observed=SHOWN, **sizes)
    assert ("eval/held_out_loss" in metrics) == bool(numbers)


def padded(rows: list[list[float]], window: int) -> list[list[float]]:
    """Return the last rows of an episode as a window has them."""
    return ([[0.0] * len(rows[0])] * window + rows)[-window:]


def test_windows_of_a_dataset_have_the_last_observed_steps_of_the_episode() -> None:
    rng = np.random.default_rng(0)
    obs, begins = rng.normal(size=(9, 2, 4)).astype(np.float32), np.zeros((9, 2), bool)
    begins[[0, 4, 5], 0] = begins[[2, 7], 1] = True
    before = rng.normal(size=(2, 3, 3)).astype(np.float32)
    window = Window(obs, None, None, None, None, None, begins, None)
    windows, after = opponent_windows(window, jnp.asarray(before), (1, 3))
    for stream in range(2):
        rows = before[stream].tolist()
        for time in range(9):
            rows = ([] if begins[time, stream] else rows) + [[*obs[time, stream, 1:3], 1.0]]
            np.testing.assert_allclose(windows[time, stream], padded(rows, 3), rtol=1e-6)
        np.testing.assert_allclose(after[stream], padded(rows, 3), rtol=1e-6)


def test_parts_of_an_observation_by_key_and_by_number() -> None:
    obs = {"me": jnp.ones((2, 3)), "you": jnp.arange(8.0).reshape(2, 2, 2)}
    np.testing.assert_array_equal(observed_part(obs, ("you",)), [[0, 1, 2, 3], [4, 5, 6, 7]])
    np.testing.assert_array_equal(observed_part(obs, (2, 5)), [[1, 0, 1], [1, 4, 5]])
    assert observed_part(obs, None).shape == (2, 7)
    with pytest.raises(ConfigError, match=r"observed = \['them'\]: the observation has the keys \['me', 'you'\]"):
        observed_part(obs, ("them",))
    for wrong in ((3, 3), (2, 8)):
        with pytest.raises(ConfigError, match=r"expected first < end, from 0 to 7, the numbers of an observation"):
            observed_part(obs, wrong)


@pytest.mark.slow
def test_a_model_is_written_and_read_and_damage_is_one_line(tiny: str, tmp_path: Path) -> None:
    model = load_opponent_model(tiny)
    assert (model.window, model.observed, model.row, model.network.latent) == (3, SHOWN, 4, 2)
    model.save(tmp_path / "again.json")
    text = Path(tiny).read_text()
    assert (tmp_path / "again.json").read_text() == text
    with pytest.raises(ConfigError, match=r"again.json: exists, expected the name of a new file"):
        model.save(tmp_path / "again.json")
    with pytest.raises(ConfigError, match=r"no opponent model there"):
        load_opponent_model(tmp_path / "none.json")
    for change in (text[:-20], text.replace('"window": 3', '"window": 2'), "{}", "[]"):
        (tmp_path / "bad.json").write_text(change)
        with pytest.raises(ConfigError, match=r"bad.json is damaged or no opponent model"):
            load_opponent_model(tmp_path / "bad.json")


@pytest.mark.slow
def test_what_does_not_fit_is_one_line(tiny: str, tmp_path: Path) -> None:
    dataset = recorded(tmp_path / "games", 3)
    with pytest.raises(ConfigError, match=r"window = 0, expected an integer of at least 1"):
        train_opponent_model(dataset, jax.random.key(0), window=0)
    with pytest.raises(ConfigError, match=r"num_minibatches = 7: must divide num_streams \* num_steps = 4096"):
        train_opponent_model(dataset, jax.random.key(0), num_minibatches=7)
    for observed in ((), (1.5, 2), (1, 2, 3), ("you", 1)):
        with pytest.raises(ConfigError, match=r"expected keys of a dictionary, or \(first, end\) of the flat observation"):
            train_opponent_model(dataset, jax.random.key(0), observed=observed)
    with pytest.raises(ConfigError, match=r"observed = \['me'\]: the observation is no dictionary"):
        train_opponent_model(dataset, jax.random.key(0), observed=("me",))
    with pytest.raises(ConfigError, match=r"beta = -1.0: expected a number >= 0"):
        train_opponent_model(dataset, jax.random.key(0), beta=-1.0)
    with pytest.raises(ConfigError, match=r"x.json: cannot be written"):
        load_opponent_model(tiny).save(tmp_path / "nowhere" / "x.json")
    broken = load_opponent_model(tiny)
    broken.params = jax.tree.map(lambda x: x * jnp.nan, broken.params)
    with pytest.raises(ConfigError, match=r"its parameters are not finite"):
        broken.save(tmp_path / "nan.json")
    network: dict[str, Any] = {"opponent_model": tiny}
    with pytest.raises(ConfigError, match=r"normalize_observations = true: the opponent model was trained on"):
        rljax.PPOConfig(env="CartPole-v1", network=network, normalize_observations=True)
    with pytest.raises(ConfigError, match=r"network.opponent_model: observed = \[3, 6\]: expected"):
        rljax.make_agent(rljax.PPOConfig(env="CartPole-v1", network=network))
    for changes, line in (
        ({"encoder": "cells"}, "network.opponent_model: encoder = 'cells' sees one image"),
        ({"opponent_model": 3}, "network.opponent_model = 3: expected the file of an opponent model"),
        ({"opponent_model": "none.json"}, "none.json: no opponent model there"),
    ):
        with pytest.raises(ConfigError, match=line):
            rljax.make_agent(rljax.PPOConfig(env="CartPole-v1", network=network | changes))
    with pytest.raises(ConfigError, match=r"network.opponent_model: unknown key"):
        rljax.make_agent(rljax.DQNConfig(env="CartPole-v1", network=network))
    whole = tiny_model(tmp_path / "whole", observed=None)
    with pytest.raises(ConfigError, match=r"the model sees 7 numbers of an observation, here are 4: it was made for another"):
        rljax.make_agent(rljax.PPOConfig(env="CartPole-v1", network={"opponent_model": whole}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    [
        pytest.param({}, id="mlp"),
        pytest.param({"type": "gru", "size": 8}, id="gru", marks=pytest.mark.long),
        pytest.param({"encoder": "dict"}, id="dict", marks=pytest.mark.slow),
    ],
)
def test_a_policy_remembers_the_window_and_no_gradient_changes_the_model(tiny: str, network: dict[str, Any]) -> None:
    config = rljax.SelfPlayConfig(
        env="HabitRPS-v0", env_params={"num_rounds": 5}, num_envs=4, num_steps=8, num_minibatches=2, total_timesteps=64,
        network={"hidden": [8], "opponent_model": tiny, **network},
    )  # fmt: skip
    agent = rljax.make_agent(config)
    state = agent.init(jax.random.key(0))
    after, _ = jax.jit(agent.step)(state)
    model = load_opponent_model(tiny)
    before, now = (s.params["params"]["network"] for s in (state, after))
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[0], y), now["opponent_model"], model.params)  # of one learner
    changed = [bool(jnp.any(x != y)) for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(now), strict=True)]
    assert any(changed)
    carry, rows = None, []
    for time in range(5):
        obs = jax.random.normal(jax.random.key(time), (7,))
        rows.append([*np.asarray(obs[slice(*SHOWN)]), 1.0])
        _, carry = agent.act(after, obs, carry, jax.random.key(0), True)
        np.testing.assert_allclose(carry.window, padded(rows, 3), rtol=1e-6)


@pytest.mark.slow
def test_a_run_acts_without_the_file_and_trains_with_no_other_model(tiny: str, tmp_path: Path) -> None:
    """The folder of a run may be moved, or the file be written over by a model of the same sizes."""
    file, run = tmp_path / "model.json", tmp_path / "run"
    shutil.copy(tiny, file)
    config = rljax.SelfPlayConfig(
        env="HabitRPS-v0", num_envs=4, num_steps=8, num_minibatches=2, total_timesteps=64,
        network={"hidden": [8], "opponent_model": str(file)},
    )  # fmt: skip
    saved = rljax.fit(config, run_dir=run).state.params
    other = load_opponent_model(tiny)
    other.params = jax.tree.map(lambda x: x + 1.0, other.params)
    other.save(tmp_path / "other.json")
    another = config.replace(network={"hidden": [8], "opponent_model": str(tmp_path / "other.json")})
    for begin in (lambda: rljax.begin_from(another, run), lambda: rljax.fit(another.replace(total_timesteps=128), fork=run)):
        with pytest.raises(ConfigError, match=r"other.json: .*run.* has another model, .*model.json"):
            begin()
    (tmp_path / "other.json").replace(file)
    with pytest.raises(ConfigError, match=r"model.json is another model than the one of this configuration"):
        rljax.fit(config, resume=run, total_timesteps=128)
    file.unlink()
    with pytest.raises(ConfigError, match=r"model.json is gone; a run acts without it, but does not train"):
        rljax.fit(config, run_dir=tmp_path / "new")
    loaded = rljax.load_run(run)
    jax.tree.map(np.testing.assert_array_equal, loaded.state.params, saved)
    assert loaded.config == config
    agent = rljax.make_agent(loaded.config)
    assert agent.act(loaded.state, jnp.zeros((2, 7)), None, jax.random.key(0), True)[0].shape == (2,)


def test_the_network_sees_the_mean_of_the_posterior(tiny: str) -> None:
    """A linear policy with known weights, against the encoder called on the windows alone."""
    model = load_opponent_model(tiny)
    parts = ppo_parts(habits({"hidden": [], "opponent_model": tiny}))
    obs = jax.random.normal(jax.random.key(0), (6, 2, 7))
    params = parts.policy.init(jax.random.key(1), obs[0])
    zeros = jax.tree.map(jnp.zeros_like, params["params"]["network"]["network"])
    kernel = zeros["policy_head"]["kernel"].at[7:].set(jnp.array([[1.0, 0, 0], [0, 1.0, 0]]))  # the observation, then z
    zeros["policy_head"]["kernel"] = kernel
    params["params"]["network"]["network"] = zeros
    carry: Any = None
    rows: list[list[list[float]]] = [[], []]
    for time in range(6):
        outputs, _, carry = parts.policy.apply(params, obs[time], carry)
        for game in range(2):
            rows[game].append([*np.asarray(obs[time, game, slice(*SHOWN)]), 1.0])
        windows = jnp.asarray([np.ravel(padded(r, 3)) for r in rows])
        z = model.network.apply(model.params, windows, method="embedding")
        np.testing.assert_allclose(outputs[:, :2], z, atol=1e-6)


@pytest.mark.slow
def test_the_command_makes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "games")
    out = str(tmp_path / "model.json")
    arguments = ["opponents", str(tmp_path / "games"), "--out", out, "--observed", "3:6", "--window", "3", "--iterations", "2"]
    main(arguments)
    assert f"{out}: loss " in " ".join(capsys.readouterr().out.split())  # long lines are wrapped
    assert load_opponent_model(out).observed == SHOWN
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert f"{out} exists" in " ".join(capsys.readouterr().err.split())


@pytest.mark.long
def test_a_probe_names_the_opponent_and_a_policy_wins_more_with_z_than_without_or_with_anothers(tmp_path: Path) -> None:
    rljax.demonstrations("random", tmp_path / "games", num_episodes=3000, env="HabitRPS-v0", against=list(SIGNS))
    dataset = rljax.open_dataset(tmp_path / "games", held_out=0.1)
    kl: dict[float, float] = {}
    models: dict[float, OpponentModel] = {}
    for beta in (1.0, 4.0):
        models[beta], metrics = train_opponent_model(dataset, jax.random.key(0), observed=SHOWN, window=20, beta=beta)
        kl[beta] = float(metrics["train/kl"][-1])
        assert metrics["train/loss"][-1] < metrics["train/loss"][0]
    assert kl[1.0] > 3 * kl[4.0]
    models[1.0].save(tmp_path / "model.json")
    assert probe(models[1.0], dataset) > 0.8  # 1 / 3 by chance
    config = habits({"opponent_model": str(tmp_path / "model.json")})
    state = jax.jit(rljax.make_train(config))(jax.random.key(2)).state
    found = habit_returns(config, state, jax.random.key(3))
    # Who remembers only the last sign wins 3 of 20; who knows the habit from the first round, 8.
    assert found["z"] > 4.2
    assert found["z"] > found["z = 0"] + 2.0
    assert found["z"] > found["z of another game"] + 2.0
    assert without_z(state).params["params"]["network"]["network"] is state.params["params"]["network"]["network"]
