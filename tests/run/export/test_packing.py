"""Packed agents act as those of the run do, hold nothing else, and cannot be trained on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import rljax
from rljax.cli.main import main
from rljax.core.places import LOCK_FILE
from rljax.run.export.packing import NEEDED, preset_of
from rljax.run.files.cards import CARD_FILE, read_card
from rljax.run.files.checkpoint import named_arrays
from rljax.run.files.folder import read_info
from rljax.run.files.sealed import seal
from rljax.run.view.card import card_lines
from tests.run.export.kinds import player
from tests.run.tiny_runs import TINY, assert_refused
from tests.run.tiny_teacher import ready

pytestmark = pytest.mark.timeout(120)


def pack(folder: Path, kind: str) -> Path:
    """The agent of a kind, packed; the run is beside it."""
    rljax.save(folder / "run", *player(kind))
    rljax.pack(folder / "run", folder / "packed", episodes=7)
    return folder / "packed"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("original"), "masked")


@pytest.fixture
def packed(original: Path, tmp_path: Path) -> Path:
    """A packed agent that a test may change, and its run beside it."""
    shutil.copytree(original.parent, tmp_path, dirs_exist_ok=True, symlinks=True)
    return tmp_path / "packed"


def assert_acts_the_same(kind: str, folder: Path) -> None:
    (agent, state), (loaded, packed_state) = player(kind), rljax.load(folder)
    assert loaded.config == agent.config
    play = jax.jit(lambda state: rljax.evaluate(agent, state, jax.random.key(3), 4, deterministic=False))
    np.testing.assert_array_equal(play(state), play(packed_state))
    left_out = read_info(folder).left_out
    assert {"opt_state", "env_state", "obs", "key", "eval_key"} <= set(left_out)
    normalizer = [] if getattr(state, "obs_statistics", None) is None else ["obs_statistics"]
    searched = agent.policy_and_value is not None and getattr(state, "reward_statistics", None) is not None
    assert not {*NEEDED, *normalizer, *["reward_statistics"] * searched} & set(left_out)
    before = named_arrays(state)
    for name, x in named_arrays(packed_state).items():
        np.testing.assert_array_equal(x, np.zeros_like(x) if name.split("/")[0] in left_out else before[name])


def test_a_packed_agent_acts_as_the_one_of_the_run(original: Path) -> None:
    assert_acts_the_same("masked", original)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gru", "sac", "self_play", "league", "alphazero"])
def test_agents_of_all_kinds_are_packed(kind: str, tmp_path: Path) -> None:
    assert_acts_the_same(kind, pack(tmp_path, kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bc", pytest.param("distill", marks=pytest.mark.long)])
def test_the_folders_that_an_agent_learned_from_are_not_named(kind: str, tmp_path: Path) -> None:
    agent = rljax.make_agent(ready(TINY[kind]))
    state = agent.init(jax.random.key(0))
    rljax.save(tmp_path / "run", agent, state)
    rljax.pack(tmp_path / "run", tmp_path / "packed", episodes=2)
    learned_from = str(getattr(agent.config, "dataset", None) or agent.config.teachers[0])
    assert learned_from in (tmp_path / "run" / "config.toml").read_text()
    assert not any(learned_from.encode() in path.read_bytes() for path in (tmp_path / "packed").rglob("*") if path.is_file())
    loaded, packed_state = rljax.load(tmp_path / "packed")
    play = jax.jit(lambda state: rljax.evaluate(agent, state, jax.random.key(3), 2))
    np.testing.assert_array_equal(play(state), jax.jit(lambda s: rljax.evaluate(loaded, s, jax.random.key(3), 2))(packed_state))


def test_only_what_acts_is_in_the_folder_and_the_card_names_all_of_it(original: Path) -> None:
    folder = original
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    card = read_card(folder)
    assert there == {CARD_FILE, *card.files}
    assert {"config.toml", "run.json", "checkpoints/step_0/meta.json"} < there
    assert LOCK_FILE not in there
    arrays = json.loads((folder / "checkpoints/step_0/meta.json").read_text())["arrays"]
    assert {name.split("/")[0] for name in arrays} == {"params", "iteration", "obs_statistics"}
    assert not any(path.is_symlink() for path in folder.rglob("*"))


def test_the_score_is_that_of_the_episodes_that_the_card_names(original: Path) -> None:
    card = read_card(original)
    agent, state = rljax.load(original)
    returns = np.asarray(rljax.evaluate(agent, state, jax.random.key(card.eval_seed), card.episodes))
    assert (card.mean, card.std) == pytest.approx((returns.mean(), returns.std()))
    assert (card.algorithm, card.env, card.preset, card.step, card.episodes) == ("ppo", "MaskedBandit-v0", None, 0, 7)
    assert card.eval_seed != agent.config.seed


@pytest.mark.slow
def test_the_best_seed_of_several_is_packed_alone(tmp_path: Path) -> None:
    agent, state = player("masked")
    states = jax.tree.map(lambda x: jax.numpy.stack([x, x, x]), state)
    states = states.replace(
        params=jax.tree.map(lambda x: x * jax.numpy.arange(1.0, 4.0).reshape(3, *[1] * (x.ndim - 1)), states.params)
    )
    returns = {"episode/return": np.array([[0.1], [0.3], [0.2]], np.float32)}
    states = states.replace(iteration=jax.numpy.ones(3, jax.numpy.int32))
    rljax.save(tmp_path / "run", agent.config.replace(seed=40), states, metrics=returns)
    card = rljax.pack(tmp_path / "run", tmp_path / "best", episodes=2)
    assert (card.seed, card.seeds) == (41, 3)
    assert card.lines()["seed"] == "41, the best of 3"
    loaded, best = rljax.load(tmp_path / "best")
    assert loaded.config.seed == 41
    for a, b in zip(jax.tree.leaves(best.params), jax.tree.leaves(states.params), strict=True):
        np.testing.assert_array_equal(a, b[1])
    assert rljax.pack(tmp_path / "run", tmp_path / "last", seed_index=2, episodes=2).seed == 42


def test_presets_are_told_whatever_their_seed_and_budget(original: Path) -> None:
    config = rljax.load_config("gridworld_ppo", seed=5, total_timesteps=50_000)
    assert preset_of(config) == "gridworld_ppo"
    assert preset_of(config.replace(gamma=0.5)) is None
    card = read_card(original)._replace(preset="gridworld_ppo", budget=100_000)
    assert card._replace(step=50_000).lines()["preset"] == "gridworld_ppo, 50% of its steps"
    assert card._replace(step=99_840).lines()["preset"] == "gridworld_ppo"


def test_commands_show_and_play_a_packed_agent(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(packed.parent)
    main(["pack", "run", "--episodes", "7"])
    out = capsys.readouterr().out
    assert out.startswith("agents/run\n")
    assert "over 7 episodes" in out
    assert "checksums verified" in out
    main(["show", "agents/run"])
    out = capsys.readouterr().out
    assert "packed at 0 steps" in out
    assert "over 7 episodes" in out
    assert "resume" not in out
    main(["eval", "agents/run", "--episodes", "2", "--checkpoint", "best"])
    assert "over 2 episodes" in capsys.readouterr().out


def test_training_on_is_refused_in_one_line(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = packed
    before = sorted(folder.rglob("*"))
    for how in (["--resume"], ["--fork"]):
        assert_refused(["train", *how, str(folder)], "a packed agent, which cannot be trained on", capsys)
    for how in ({"resume": folder}, {"fork": folder, "run_dir": tmp_path / "fork"}):
        with pytest.raises(rljax.ConfigError, match="cannot be trained on"):
            rljax.fit(player("masked")[0].config, **how)
    with pytest.raises(rljax.ConfigError, match="cannot be trained on"):
        rljax.pack(folder, tmp_path / "again")
    (folder / CARD_FILE).unlink()
    with pytest.raises(rljax.ConfigError, match="cannot be trained on"):
        rljax.fit(resume=folder)
    assert sorted(folder.rglob("*")) == [path for path in before if path.name != CARD_FILE]
    assert not (tmp_path / "fork").exists()


def test_nothing_is_packed_over_what_is_there(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("keep")
    assert_refused(["pack", str(tmp_path / "run"), "--out", str(tmp_path / "there")], "exists already", capsys)
    assert_refused(["pack", str(tmp_path / "none")], "no run there", capsys)
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "name", ["config.toml", "run.json", "checkpoints/step_0/meta.json", "checkpoints/step_0/state/_METADATA"]
)
def test_a_file_that_is_not_the_cards_is_refused_in_one_line(name: str, packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = packed
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content.replace(b"0", b"1", 1))
    assert (folder / name).read_bytes() != content
    assert_refused(["eval", str(folder)], f"{name}: refused, it is not the file that card.json names", capsys)
    (folder / name).unlink()
    assert_refused(["show", str(folder)], "no run there" if name == "config.toml" else f"{name}: cannot be read", capsys)
    (folder / name).write_bytes(content)
    assert rljax.load_run(folder).step == 0


def test_a_damaged_card_is_refused(packed: Path) -> None:
    folder = packed
    file = folder / CARD_FILE
    table = json.loads(file.read_text())
    file.write_text(json.dumps({**table, "mean": 1e9}))
    with pytest.raises(rljax.ConfigError, match="its checksum does not match"):
        rljax.load(folder)
    del table["checksum"]
    for outside in ("../run/config.toml", "/etc/passwd", "a//b", "C:\\a", "..", "a\0b", "\ud800", "a" * 301):
        file.write_text(seal({**table, "files": {outside: "0" * 64}}))
        with pytest.raises(rljax.ConfigError, match="expected a table of SHA-256, by paths in the folder"):
            rljax.load(folder)
    for strange in ("\x9b31m", "\x7f", "\ud800", "\n", ""):
        file.write_text(seal({**table, "env": strange}))
        with pytest.raises(rljax.ConfigError, match="expected a line of text"):
            rljax.load(folder)


def test_a_card_cannot_change_the_direction_of_writing(packed: Path) -> None:
    table = json.loads((packed / CARD_FILE).read_text())
    del table["checksum"]
    (packed / CARD_FILE).write_text(seal({**table, "env": "a\u202eb"}))
    assert "ppo on a\\u202eb, 0 steps" in card_lines(packed)[0]
