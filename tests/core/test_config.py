"""Configurations: a pytree of the numbers the maths uses, strict about values, and the same after a trip through TOML."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import ConfigError, PPOConfig, load_config, preset_names
from rljax.algorithms import MODULES
from rljax.core.config import ALGORITHMS, Config, algorithm
from rljax.core.config_files import comparable_table, dump_config
from rljax.core.errors import shown

LEAVES = {
    "gamma",
    "clip_rewards",
    "learning_rate",
    "adam_eps",
    "gae_lambda",
    "clip_eps",
    "vf_clip_eps",
    "dual_clip",
    "vf_coef",
    "ent_coef",
    "max_grad_norm",
    "target_kl",
    "intrinsic_coef",
    "intrinsic_gamma",
    "teacher_kl_final",
    "teacher_kl_share",
}


def one_line(error: pytest.ExceptionInfo[ConfigError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


# The pytree


def test_the_leaves_are_the_numbers_that_the_maths_uses() -> None:
    config = PPOConfig(clip_rewards=1.0, dual_clip=3.0, target_kl=0.1)
    leaves = {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in jax.tree.leaves_with_path(config)}
    assert set(leaves) == LEAVES
    assert all(leaf == getattr(config, name) for name, leaf in leaves.items())


def test_none_switches_a_leaf_off_and_is_part_of_the_structure() -> None:
    on, off = PPOConfig(target_kl=0.1), PPOConfig(target_kl=None)
    assert len(jax.tree.leaves(off)) == len(jax.tree.leaves(on)) - 1
    assert jax.tree.structure(on) != jax.tree.structure(off)


def test_tree_map_changes_leaves_and_keeps_the_rest() -> None:
    config = PPOConfig(env="Pendulum-v1", num_envs=8, network={"hidden": [32]})
    doubled = jax.tree.map(lambda x: 2 * x, config)
    assert isinstance(doubled, PPOConfig)
    assert (doubled.learning_rate, doubled.clip_eps) == (2 * config.learning_rate, 2 * config.clip_eps)
    assert (doubled.env, doubled.num_envs, doubled.network) == (config.env, 8, config.network)
    assert jax.tree.map(lambda x: x / 2, doubled) == config


def test_a_config_is_an_argument_of_jit_that_traces_once_for_all_its_numbers() -> None:
    traces = []

    @jax.jit
    def scaled(config: PPOConfig, x: jax.Array) -> jax.Array:
        traces.append(config.num_envs)
        return config.learning_rate * x * config.num_envs

    config = PPOConfig(learning_rate=0.5, num_envs=4)
    assert scaled(config, jnp.ones(())) == 2.0
    assert scaled(config.replace(learning_rate=0.25, gamma=0.5), jnp.ones(())) == 1.0
    assert traces == [4]
    assert scaled(config.replace(num_envs=8), jnp.ones(())) == 4.0
    assert traces == [4, 8]


def test_vmap_over_a_leaf_given_to_replace_or_as_a_batch_of_configs() -> None:
    rates = jnp.array([0.1, 0.2, 0.3])
    config = PPOConfig()
    by_replace = jax.vmap(lambda rate: config.replace(learning_rate=rate).learning_rate * 2)(rates)
    np.testing.assert_allclose(by_replace, 2 * rates)
    batch = config.replace(learning_rate=rates)
    axes = jax.tree.map(lambda leaf: 0 if jnp.ndim(leaf) else None, batch)
    by_batch = jax.vmap(lambda c: c.learning_rate * 2 + 0 * c.gamma, in_axes=(axes,))(batch)
    np.testing.assert_allclose(by_batch, 2 * rates)


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_every_leaf_takes_traced_and_batched_numbers(name: str) -> None:
    value = 3.0 if name == "dual_clip" else 0.5
    traced = jax.jit(lambda x: getattr(PPOConfig(**{name: x}), name) + 0.0)(value)
    assert traced == value
    assert getattr(PPOConfig(**{name: jnp.full(3, value)}), name).shape == (3,)
    assert getattr(PPOConfig(**{name: np.full(3, value)}), name).shape == (3,)


@pytest.mark.parametrize(
    ("name", "batch", "message"),
    [
        ("gamma", jnp.array([0.9, 1.5]), "gamma = 1.5: expected a number >= 0 and <= 1"),
        ("gamma", np.array([-0.1, 0.9]), "gamma = -0.1: expected a number >= 0 and <= 1"),
        ("gamma", np.array([0.9, math.nan]), "gamma = nan: expected a number >= 0 and <= 1"),
        ("learning_rate", jnp.array([[0.1], [math.inf]]), "learning_rate = inf: expected a number >= 0"),
        ("learning_rate", np.array([0.1, 1e40]), r"learning_rate = 1e\+40: expected a number >= 0 and <= 3.4028"),
        ("clip_eps", jnp.array([0, 1]), "clip_eps = 0: expected a number > 0"),
        ("head_gammas", (0.9, jnp.array([0.9, 1.5])), r"head_gammas\[1\] = 1.5: expected a number >= 0 and <= 1"),
    ],
)
def test_every_number_of_a_batch_is_checked(name: str, batch: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        PPOConfig(**{name: batch})
    one_line(error)


@pytest.mark.parametrize(
    ("config_class", "name", "value", "allowed"),
    [
        (rljax.SACConfig, "temperature", 1e-38, 'a number >= 1e-30 or "none"'),
        (rljax.SACConfig, "init_temperature", 1e-38, "a number >= 1e-30"),
        (rljax.SACConfig, "adam_eps", 1e-38, "a number >= 1e-30"),
        (rljax.PQNConfig, "adam_eps", 1e-38, "a number >= 1e-30"),
        (rljax.PQNConfig, "epsilon_steps", 1e-38, "a number >= 1e-30"),
        (rljax.DQNConfig, "epsilon_steps", 1e-38, "a number >= 1e-30"),
        (rljax.DQNConfig, "priority_alpha", 1e6, "a number >= 0 and <= 4"),
        (rljax.DreamerConfig, "agc", 1e-38, "a number >= 1e-30"),
    ],
)
def test_numbers_that_would_make_parameters_nan_are_refused(config_class: Any, name: str, value: float, allowed: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} = {re.escape(str(value))}: expected {re.escape(allowed)}"):
        config_class(**{name: value})


def test_what_fixes_shapes_cannot_be_traced() -> None:
    with pytest.raises(ConfigError, match=r"num_envs = .*expected a whole number > 0") as error:
        jax.jit(lambda n: PPOConfig(num_envs=n).gamma)(4)
    one_line(error)


# Values


def test_replace_changes_a_copy_and_validates_it() -> None:
    config = PPOConfig()
    before = dataclasses.asdict(config)
    changed = config.replace(num_envs=16, learning_rate=1e-3)
    assert (changed.num_envs, changed.learning_rate) == (16, 1e-3)
    assert dataclasses.asdict(config) == before
    with pytest.raises(ConfigError, match=r"snapshot_win_rate = 1.0: expected a number >= 0 and < 1$"):
        rljax.LeagueConfig(snapshot_win_rate=1.0)
    with pytest.raises(ConfigError, match=r"gamma = 1.5: expected a number >= 0 and <= 1"):
        config.replace(gamma=1.5)
    with pytest.raises(ConfigError, match="num_minibatches = 7: must divide"):
        config.replace(num_minibatches=7)
    with pytest.raises(ConfigError, match="unknown field 'learning_rte' of PPOConfig: did you mean 'learning_rate'") as error:
        config.replace(learning_rte=1.0)
    one_line(error)


def test_a_config_cannot_be_changed_and_does_not_share_the_callers_tables() -> None:
    config = PPOConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.gamma = 0.5  # type: ignore[misc]
    table: dict[str, Any] = {"hidden": [8]}
    config = PPOConfig(network=table)
    table["hidden"].append(9)
    table["shared"] = True
    assert dict(config.network) == {"hidden": (8,)}
    assert hash(config) == hash(PPOConfig(network={"hidden": [8]}))


WRONG = [
    ("num_envs", -1, "a whole number > 0"),
    ("num_envs", 0, "a whole number > 0"),
    ("num_envs", True, "a whole number > 0"),
    ("num_envs", 2.5, "a whole number > 0"),
    ("num_envs", "4", "a whole number > 0"),
    ("num_envs", None, "a whole number > 0"),
    ("num_envs", math.nan, "a whole number > 0"),
    ("num_envs", math.inf, "a whole number > 0"),
    ("num_envs", [4], "a whole number > 0"),
    ("num_envs", np.float32(math.inf), "a whole number > 0"),
    ("seed", -1, "a whole number >= 0 and <= 4294967295"),
    ("time_limit", 0, 'a whole number > 0 or "none"'),
    ("time_limit", "never", 'a whole number > 0 or "none"'),
    ("eval_every", True, 'a whole number > 0 or "none"'),
    ("gamma", 1.01, "a number >= 0 and <= 1"),
    ("gamma", -0.01, "a number >= 0 and <= 1"),
    ("gamma", math.nan, "a number >= 0 and <= 1"),
    ("gamma", None, "a number >= 0 and <= 1"),
    ("learning_rate", "1e-3", "a number >= 0"),
    ("learning_rate", False, "a number >= 0"),
    ("learning_rate", math.inf, "a number >= 0"),
    ("clip_eps", 0.0, "a number > 0"),
    ("adam_eps", 0, "a number >= 1e-30"),
    ("adam_eps", 1e-38, "a number >= 1e-30"),
    ("teacher_kl_share", 1e-38, "a number >= 1e-30 and <= 1"),
    ("dual_clip", 1.0, 'a number > 1 or "none"'),
    ("max_grad_norm", 0.0, 'a number > 0 or "none"'),
    ("target_kl", -0.1, 'a number > 0 or "none"'),
    ("clip_rewards", [1.0], 'a number > 0 or "none"'),
    ("anneal_lr", 1, "true or false"),
    ("anneal_lr", "true", "true or false"),
    ("normalize_observations", None, "true or false"),
    ("log_std", "params", "one of 'parameter', 'network'"),
    ("log_std", 3, "one of 'parameter', 'network'"),
    ("env_params", 3, "a table of key = value"),
    ("env_params", None, "a table of key = value"),
]


def test_a_function_in_place_of_a_number_is_told_where_schedules_are() -> None:
    with pytest.raises(
        ConfigError, match=r'^learning_rate = .*: expected a number >= 0; .* "A schedule of your own" in the guide '
    ):
        PPOConfig(learning_rate=lambda iteration: 1e-3)


@pytest.mark.parametrize(("name", "value", "allowed"), WRONG)
def test_a_bad_value_is_one_line_with_field_value_and_what_is_allowed(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as error:
        PPOConfig(**{name: value})
    assert one_line(error) == f"{name} = {value!r}: expected {allowed}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_envs", 10**400),
        ("gamma", 10**400),
        ("num_envs", np.ones((9, 9))),
        ("num_envs", jnp.ones((9, 9))),
        ("gamma", jax.random.key(0)),
        ("gamma", np.array(["a", "b"])),
        ("gamma", np.array([None, 1.0])),
        ("gamma", np.array(1 + 1j)),
        ("network", {"hidden": [10**5000]}),
        ("env_params", {"size": {1: 2}}),
    ],
    ids=["huge", "huge number", "numpy", "jax", "key", "texts", "objects", "complex", "huge in a table", "no name"],
)
def test_even_an_absurd_value_is_one_line(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}( =|:) ") as error:
        PPOConfig(**{name: value})
    one_line(error)


@pytest.mark.parametrize(
    ("name", "value", "canonical"),
    [
        ("total_timesteps", 1e5, 100_000),
        ("num_envs", 8.0, 8),
        ("num_envs", np.int64(8), 8),
        ("num_envs", np.float32(8), 8),
        ("gamma", 1, 1.0),
        ("gamma", np.float64(0.5), 0.5),
        ("learning_rate", 0, 0.0),
        ("target_kl", "none", None),
        ("time_limit", "none", None),
    ],
)
def test_values_become_their_canonical_type(name: str, value: Any, canonical: Any) -> None:
    stored = getattr(PPOConfig(**{name: value}), name)
    assert stored == canonical
    assert type(stored) is type(canonical)


def test_a_budget_below_one_iteration_and_minibatches_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"total_timesteps = 100: expected at least num_envs \* num_steps = 512") as error:
        PPOConfig(total_timesteps=100)
    one_line(error)
    with pytest.raises(ConfigError, match=r"num_minibatches = 3: must divide num_envs \* num_steps = 4 \* 128 = 512") as error:
        PPOConfig(num_minibatches=3)
    one_line(error)
    with pytest.raises(ConfigError, match=r"num_minibatches = 512: leaves one step in each, whose advantage") as error:
        PPOConfig(num_minibatches=512)
    one_line(error)
    assert PPOConfig(num_minibatches=512, normalize_advantages=False).num_minibatches == 512


def test_the_budget_is_floored_to_whole_iterations() -> None:
    config = PPOConfig(num_envs=4, num_steps=16, total_timesteps=1000)
    assert config.steps_per_iteration == 64
    assert config.num_iterations == 15
    assert config.replace(total_timesteps=64).num_iterations == 1


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_whole_numbers_fit_the_programs_that_count_with_them(algorithm: str) -> None:
    config_class = ALGORITHMS[algorithm]
    for field in dataclasses.fields(config_class):
        if field.type not in ("int", "int | None"):
            continue
        with pytest.raises(ConfigError, match=rf"{field.name} = 10{{60}}") as error:
            config_class(**{field.name: 10**60})
        allowed = re.search(r"<= (\d+)", one_line(error))
        assert allowed is not None
        assert int(allowed[1]) <= 2**53


def test_a_long_budget_is_allowed_and_its_iterations_are_counted_in_32_bits() -> None:
    assert PPOConfig(total_timesteps=10**12).num_iterations == 10**12 // 512
    with pytest.raises(ConfigError, match=r"total_timesteps = 2000000000000: expected fewer than 2\*\*31 iterations of 512"):
        PPOConfig(total_timesteps=2 * 10**12)
    with pytest.raises(ConfigError, match=r"num_steps = 65536: expected at most 2\*\*31 - 1 = num_envs \* num_steps"):
        PPOConfig(num_envs=65536, num_steps=65536, total_timesteps=10**12)
    with pytest.raises(ConfigError, match="target_update_every = 4000000000: expected a whole number > 0 and <= 2147483647"):
        rljax.DQNConfig(target_update_every=4_000_000_000)
    with pytest.raises(ConfigError, match="target_update_every = 2000000000: expected at most 1073741823 turns"):
        rljax.DQNConfig(target_update_every=2_000_000_000, updates_per_step=2)


def test_numbers_that_are_infinite_in_32_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"learning_rate = 1e\+39: expected a number >= 0 and <= 3.4028234"):
        PPOConfig(learning_rate=1e39)
    with pytest.raises(ConfigError, match="parameter gravity = 1e\\+39, expected a number of float32"):
        rljax.make_env("CartPole-v1", gravity=1e39)
    with pytest.raises(ConfigError, match="parameter max_steps_in_episode = 1000000000000, expected a number of int32"):
        rljax.make_env("CartPole-v1", max_steps_in_episode=10**12)


@pytest.mark.parametrize("name", ["self", "cls", "config_class", "preset_or_path", "values"])
def test_names_of_arguments_are_no_fields(tmp_path: Path, name: str) -> None:
    known = "" if name == "cls" else name
    with pytest.raises(ConfigError, match=f"unknown field '{known}"):
        PPOConfig(**{name: 3})
    with pytest.raises(ConfigError, match=f"unknown field '{known}"):
        PPOConfig().replace(**{name: 3})
    with pytest.raises(ConfigError, match=f"unknown field '{known}"):
        load_config(saved(tmp_path, f'algorithm = "ppo"\n{name} = 3\n'))
    with pytest.raises(ConfigError, match=f"unknown field '{known}"):
        load_config("cartpole_ppo", **{name: 3})


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"clip_rewards": np.array([1.0, 2.0])}, "clip_rewards"),
        ({"learning_rate": jnp.zeros(2)}, "learning_rate"),
        ({"head_gammas": (0.9, np.array([0.5, 0.6]))}, r"head_gammas\[1\]"),
    ],
)
def test_an_array_outside_vmap_is_one_line_and_inside_it_is_a_number(changes: dict[str, Any], name: str) -> None:
    heads = ("cue", "bit") if "head_gammas" in changes else ()
    config = PPOConfig(env="HiddenBit-v0", value_heads=heads, network={"hidden": [4]}, **changes)
    for make in (rljax.make_agent, rljax.make_train, rljax.fit):
        with pytest.raises(ConfigError, match=rf"^{name}: an agent has one value, got \(2,\); jax.vmap") as error:
            make(config)
        one_line(error)
    if "learning_rate" in changes:
        made = jax.eval_shape(
            jax.vmap(lambda c: rljax.make_agent(config.replace(learning_rate=c)).init(jax.random.key(0))), jnp.ones(2)
        )
        assert made.iteration.shape == (2,)


# TOML


def saved(folder: Path, text: str, name: str = "config.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "config",
    [
        PPOConfig(),
        PPOConfig(
            env="GridWorld-v0",
            env_params={"size": 7, "nested": {"list": [1, 2.5, "x"]}},
            network={"hidden": [32, 16], "activation": "relu", "shared": True},
            vf_clip_eps=None,
            max_grad_norm=None,
            target_kl=0.015,
            dual_clip=3.0,
            clip_rewards=1.0,
            eval_every=10_000,
            anneal_lr=False,
            learning_rate=3e-4,
        ),
    ],
)
def test_a_config_is_equal_after_a_trip_through_toml(tmp_path: Path, config: PPOConfig) -> None:
    loaded = load_config(saved(tmp_path, dump_config(config)))
    assert loaded == config
    assert hash(loaded) == hash(config)
    assert jax.tree.structure(loaded) == jax.tree.structure(config)
    assert dump_config(loaded) == dump_config(config)


def test_every_field_is_written_out() -> None:
    text = dump_config(PPOConfig(time_limit=None))
    assert text.startswith('algorithm = "ppo"\n')
    assert all(f"\n{f.name} = " in text or f"[{f.name}]" in text for f in dataclasses.fields(PPOConfig))
    assert 'time_limit = "none"' in text


def test_a_random_key_is_written_as_other_objects_are() -> None:
    text = dump_config(PPOConfig(env_params={"size": jax.random.key(0)}))
    assert "object:jax" in text


def test_an_encoder_in_its_older_form_is_the_same_configuration() -> None:
    """So runs from before, of which a preset has today's form, can be resumed."""
    today = load_config("breakout_pqn")
    assert today.network["encoder"] == "cnn"
    before = today.replace(network={k: x for k, x in today.network.items() if k != "encoder"} | {"type": "cnn"})
    assert before.network != today.network
    assert comparable_table(before) == comparable_table(today)
    assert comparable_table(before.replace(network={"type": "cnn"})) != comparable_table(today)


def test_f32_numbers_are_written_with_the_digits_they_have(tmp_path: Path) -> None:
    config = PPOConfig(learning_rate=jnp.float32(3e-4), gamma=jnp.float32(0.99))  # type: ignore[arg-type]
    text = dump_config(config)
    assert "learning_rate = 0.0003\n" in text
    assert "gamma = 0.99\n" in text
    loaded = load_config(saved(tmp_path, text))
    assert np.float32(loaded.learning_rate) == np.float32(3e-4)


def test_overrides_change_fields_of_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path, 'algorithm = "ppo"\nnum_envs = 16\ngamma = 0.9\ntarget_kl = 0.1\n')
    config = load_config(path, gamma=0.8, target_kl=None, network={"hidden": [8]})
    assert config == PPOConfig(num_envs=16, gamma=0.8, target_kl=None, network={"hidden": [8]})
    assert load_config(str(path)).gamma == 0.9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('algorithm = "ppo"\ngamma = \n', r"line 2, column 9"),
        ('algorithm = "ppo"\nnetwork = { hidden = [8 }\n', r"line 2, column"),
        ("gamma = 0.9\n", r"no 'algorithm' key, expected for example algorithm = \"ppo\""),
        ('algorithm = "pppo"\n', "algorithm = 'pppo': did you mean 'ppo'"),
        ("algorithm = 3\n", "algorithm = 3: expected one of: .*ppo"),
        ('algorithm = "ppo"\nlearning_rat = 0.1\n', "unknown field 'learning_rat' of PPOConfig: did you mean 'learning_rate'"),
        ('algorithm = "ppo"\n[learning_rate]\nx = 1\n', "learning_rate = .*: expected a number >= 0"),
        ('algorithm = "ppo"\nnum_envs = -4\n', "num_envs = -4: expected a whole number > 0"),
        ('algorithm = "ppo"\ngamma = nan\n', "gamma = nan: expected a number"),
    ],
)
def test_a_bad_file_is_one_line_that_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = saved(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as error:
        load_config(path)
    assert one_line(error).startswith(f"{path}: ")


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.toml: cannot read the configuration: No such file"):
        load_config(tmp_path / "missing.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a UTF-8 text file"):
        load_config(binary)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("network = " + "[" * 2000 + "]" * 2000, "nested too deep"),
        ("network = " + "{a=" * 2000 + "1" + "}" * 2000, "nested too deep"),
        ("[network." + ".".join("a" * 900) + "]", "network: tables and lists are nested more than 32 deep"),
        ("num_envs = " + "1" * 5000, "digits"),
        ('num_envs = "' + "1" * 5000 + '"', "num_envs = '1+...1+': expected a whole number > 0"),
        ("x" * 5000 + " = 1", "unknown field 'x+...x+' of PPOConfig"),
        ("env = [" + "1, " * 5000 + "]", r"env: \(1, 1, .*\.\.\..*1\) is neither"),
    ],
)
def test_absurd_files_are_one_short_line(tmp_path: Path, text: str, message: str) -> None:
    path = saved(tmp_path, f'algorithm = "ppo"\n{text}\n')
    with pytest.raises(ConfigError, match=message) as error:
        rljax.make_agent(load_config(path))
    assert len(one_line(error)) < len(str(path)) + 1000


def test_a_name_of_300_characters_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown preset 'x+\.\.\.x+'") as error:
        load_config("x" * 300)
    one_line(error)
    with pytest.raises(ConfigError, match="cannot read the configuration: File name too long"):
        load_config(tmp_path / ("x" * 300 + ".toml"))
    with pytest.raises(ConfigError, match="no run there"):
        rljax.load_run(tmp_path / ("x" * 300))
    with pytest.raises(ConfigError, match="cannot be made: File name too long"):
        rljax.fit(PPOConfig(total_timesteps=512), run_dir=tmp_path / ("x" * 300))


def test_a_file_that_is_no_configuration_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.toml").open("wb") as file:
        file.truncate(10**12)  # takes no space
    with pytest.raises(ConfigError, match="it has more than 1,000,000 bytes"):
        load_config(tmp_path / "huge.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot read the configuration: Is a directory"):
        load_config(tmp_path / "folder.toml")


def test_values_and_words_of_messages_are_shortened() -> None:
    assert shown("x" * 5000) == "'" + "x" * 56 + "..." + "x" * 19 + "'"
    assert shown(10**5000).startswith("<int")
    assert len(str(ConfigError("y" * 5000))) == 80
    assert len(str(ConfigError("y " * 5000))) == 2000
    assert str(ConfigError("a/" * 100)) == "a/" * 100


def test_the_name_of_an_algorithm_stands_for_its_defaults() -> None:
    for name, config_class in ALGORITHMS.items():
        if name not in preset_names():
            assert load_config(name) == config_class()
    assert load_config("ppo", env="Acrobot-v1", num_envs=2) == PPOConfig(env="Acrobot-v1", num_envs=2)
    with pytest.raises(ConfigError, match="unknown preset 'pp': did you mean 'ppo'"):
        load_config("pp")


def test_algorithms_are_imported_when_they_are_asked_for() -> None:
    code = """
import sys
from rljax.core import agent
from rljax.core.config import ALGORITHMS
from rljax.core.config_files import load_config
there = lambda: {name for name in sys.modules if name in ("rljax.algos.ppo", "rljax.algos.sac", "rljax.algos.dreamer")}
assert "dreamer" in ALGORITHMS and not there()
load_config("cartpole_ppo")
assert there() == {"rljax.algos.ppo"}
assert load_config("dreamer").algorithm == "dreamer"
assert there() == {"rljax.algos.ppo", "rljax.algos.dreamer"}
assert set(ALGORITHMS.values()) == set(agent._MAKERS)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_users_algorithm_may_take_the_place_of_one_of_rljax() -> None:
    code = """
import rljax
from rljax.core.config import ALGORITHMS, Config, algorithm
@algorithm("ppo")
class Mine(Config):
    pass
rljax.make_train, rljax.PPOConfig
assert ALGORITHMS["ppo"] is Mine and type(rljax.load_config("ppo")) is Mine
del ALGORITHMS["ppo"], ALGORITHMS["sac"]
assert "ppo" not in ALGORITHMS and "sac" not in set(ALGORITHMS)
try:
    rljax.load_config("cartpole_ppo")
except rljax.ConfigError as error:
    assert "algorithm = 'ppo': " in str(error), error
else:
    raise SystemExit("no error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_an_algorithm_without_steps_per_iteration_is_one_line() -> None:
    @algorithm("stepless")
    class Stepless(Config):
        pass

    del ALGORITHMS["stepless"]
    with pytest.raises(ConfigError, match=r"^Stepless defines no steps_per_iteration, the number of .*: expected a property"):
        _ = Stepless().num_iterations


def test_the_modules_of_algorithms_are_listed() -> None:
    found = {}
    for module in pkgutil.walk_packages(rljax.__path__, "rljax."):
        if re.match(r"rljax\.(algos|league|planning)\.", module.name):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and value.__dict__.get("algorithm"):
                    found[value.algorithm] = value
    assert found == dict(ALGORITHMS.items())
    assert all(found[name].__module__.startswith(module) for name, module in MODULES.items())


def test_a_bad_override_is_one_line(tmp_path: Path) -> None:
    path = saved(tmp_path, 'algorithm = "ppo"\n')
    with pytest.raises(ConfigError, match="unknown field 'gama' of PPOConfig: did you mean 'gamma'") as error:
        load_config(path, gama=0.9)
    one_line(error)
    with pytest.raises(ConfigError, match="gamma = 2: expected") as error:
        load_config(path, gamma=2)
    one_line(error)


def test_presets_are_loaded_by_name_and_an_unknown_one_names_the_closest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 'algorithm = "ppo"\nnum_envs = 32\n', "tiny_ppo.toml")
    saved(tmp_path, 'algorithm = "ppo"\n', "other.toml")
    saved(tmp_path, "not a preset", "notes.txt")
    monkeypatch.setattr(rljax.core.config.importlib.resources, "files", lambda _: tmp_path)
    assert preset_names() == ["other", "tiny_ppo"]
    assert load_config("tiny_ppo", gamma=0.9) == PPOConfig(num_envs=32, gamma=0.9)
    with pytest.raises(ConfigError, match=r"unknown preset 'tiny_pp': did you mean 'tiny_ppo'\?") as error:
        load_config("tiny_pp")
    one_line(error)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_that_ships_is_valid_and_round_trips(tmp_path: Path, name: str) -> None:
    config = load_config(name)
    assert load_config(saved(tmp_path, dump_config(config))) == config
    assert config.eval_every is not None  # so that there is a best checkpoint
