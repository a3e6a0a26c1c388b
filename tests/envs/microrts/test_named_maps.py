"""Maps by name and by path, in games."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.core.errors import ConfigError
from rljax.envs import make_env
from rljax.envs.microrts.java.install import map_files, microrts_folder
from rljax.envs.microrts.named_maps import find_map
from rljax.envs.microrts.rules.maps import MAPS
from rljax.run.files.folder import env_files_of
from rljax.run.microrts.parity import differences, joint_conflicts, record
from tests.envs.microrts.rules.test_map_files import MAP
from tests.envs.play import QUICK

REFUSED = {"base4x5", "melee4x4Mixed2", *(f"base{n}MaxResources{s}" for n, s in (("OneWorker", "4x4"), ("OneWorker", "8x8")))} | {
    f"baseTwoWorkersMaxResources{s}" for s in ("4x4", "6x6", "8x8")
}
"""Maps of the Java engine that lack a player, whose units it cannot read itself, or with 230 resources in one cell."""


def put_beside_the_engine(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setenv("RLJAX_MICRORTS", str(folder))
    (folder / "maps" / "3x4").mkdir(parents=True)
    for name in names:
        (folder / "maps" / "3x4" / f"{name}.xml").write_text(MAP)


def test_a_map_is_found_by_its_name_or_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_beside_the_engine(tmp_path, monkeypatch, "wallInTheMiddle", "basesWorkers8x8")
    assert find_map("wallInTheMiddle").walls == ((1, 1), (1, 2))
    assert find_map(str(tmp_path / "maps" / "3x4" / "wallInTheMiddle.xml")) == find_map("wallInTheMiddle")
    assert find_map("basesWorkers8x8") is MAPS["basesWorkers8x8"]


def test_an_unknown_name_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLJAX_MICRORTS", str(tmp_path / "none"))
    with pytest.raises(ConfigError) as error:
        find_map("wallInTheMidle")
    assert str(error.value) == (
        "MicroRTS: unknown map 'wallInTheMidle': expected one of: basesWorkers16x16, basesWorkers16x16A, basesWorkers8x8, "
        "melee4x4light2 (or that of a map of the Java engine once that is there, or a path that ends in .xml)"
    )
    put_beside_the_engine(tmp_path, monkeypatch, "wallInTheMiddle")
    with pytest.raises(ConfigError, match="did you mean 'wallInTheMiddle'"):
        find_map("wallInTheMidle")


def test_a_run_notices_another_map_of_the_same_name(tmp_path: Path) -> None:
    def digest(text: str, env_id: str = "MicroRTS-v0") -> str:
        (tmp_path / "own.xml").write_text(text)
        return env_files_of(rljax.PPOConfig(env=env_id, env_params={"map_name": str(tmp_path / "own.xml")}))

    assert digest(MAP) == digest(MAP.replace("\n", " ")) == digest(MAP, "MicroRTSBots-v0")
    assert len({digest(MAP), digest(MAP.replace("0110", "0100")), digest(MAP.replace('resources="7"', 'resources="8"'))}) == 3
    assert len(digest(MAP)) == 64
    assert env_files_of(rljax.PPOConfig(env="MicroRTS-v0")) == ""


@pytest.mark.slow
def test_a_map_of_ones_own_is_played(tmp_path: Path) -> None:
    path = tmp_path / "own.xml"
    path.write_text(MAP)
    env: Any
    env, params = make_env("MicroRTS-v0", map_name=str(path), actions="cells")
    step, mask_of = jax.jit(env.step_env), jax.jit(env.action_mask)
    rng = np.random.default_rng(0)
    obs, state = env.reset_env(jax.random.key(0), params)
    assert obs.shape[:3] == (2, 3, 4)
    seen = set()
    for number in range(150):
        mask = np.asarray(mask_of(state, params))
        action = np.argmax(np.where(mask, rng.random(mask.shape), -1.0).reshape(2, 12, -1), axis=-1)
        _, state, _, over, _ = step(jax.random.key(number), state, action, params)
        unit = np.asarray(state.unit)
        assert (unit[1, 1:3] == -1).all()  # nothing enters a wall
        seen |= {(int(row), int(column)) for row, column in np.argwhere(unit >= 0)}
        if over:
            _, state = env.reset_env(jax.random.key(number), params)
    assert len(seen) == 10  # and everything else is reached


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_maps_of_the_java_engine_play_as_there(java_engine: Any) -> None:
    if not (microrts_folder() / "maps").is_dir():
        pytest.skip("no maps are beside the engine")
    positions = 0
    for name in sorted(set(map_files(microrts_folder())) - REFUSED):
        if max(find_map(name).shape) > 32:  # Java takes seconds for each order on larger maps
            continue
        for bots in (False, True):
            found = record(java_engine, name, 100, 1, bots)
            wrong, illegal = differences(found, name, QUICK)
            assert not (wrong & ~joint_conflicts(found)).any(), name
            assert not illegal.any(), name
            positions += len(wrong)
    print(f"\n{positions} positions")
    assert positions > 10_000
