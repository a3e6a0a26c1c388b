"""Maps of microRTS's XML files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rljax.core.errors import ConfigError
from rljax.envs.microrts.java.install import microrts_folder
from rljax.envs.microrts.rules.map_files import read_map
from rljax.envs.microrts.rules.maps import MAPS, GameMap, StartingUnit
from rljax.envs.microrts.rules.units import BASE, HEAVY, HP, RESOURCE, WORKER

MAP = """<rts.PhysicalGameState width="4" height="3">
  <terrain>0000
           0110
           0000</terrain>
  <players>
    <rts.Player ID="1" resources="7"></rts.Player>
    <rts.Player ID="0" resources="5"></rts.Player>
  </players>
  <units>
    <rts.units.Unit type="Resource" ID="4" player="-1" x="0" y="2" resources="20" hitpoints="1" ></rts.units.Unit>
    <rts.units.Unit type="Base" ID="5" player="0" x="1" y="0" resources="0" hitpoints="10" ></rts.units.Unit>
    <rts.units.Unit type="Worker" ID="6" player="0" x="3" y="0" resources="1" hitpoints="1" ></rts.units.Unit>
    <rts.units.Unit type="Heavy" ID="7" player="1" x="3" y="2" resources="0" hitpoints="4" ></rts.units.Unit>
  </units>
</rts.PhysicalGameState>
"""


def read(folder: Path, text: str) -> GameMap:
    path = folder / "own.xml"
    path.write_text(text, encoding="utf-8")
    return read_map(path)


def test_a_file_gives_cells_walls_resources_and_units(tmp_path: Path) -> None:
    found = read(tmp_path, MAP)
    assert found == GameMap(
        "own",
        (3, 4),
        (5, 7),
        (
            StartingUnit(RESOURCE, -1, 2, 0, 20, 1),
            StartingUnit(BASE, 0, 0, 1, 0, 10),
            StartingUnit(WORKER, 0, 0, 3, 1, 1),
            StartingUnit(HEAVY, 1, 2, 3, 0, 4),
        ),
        ((1, 1), (1, 2)),
    )
    start = found.start()
    assert start.hp[2, 3] == 4 < HP[HEAVY]
    assert start.carried[2, 0] == 20
    assert start.resources.tolist() == [5, 7]
    assert [start.born[unit.row, unit.column] for unit in found.units] == [-4, -3, -2, -1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rts.PhysicalGameState", "svg", "is no map of microRTS: expected rts.PhysicalGameState, got 'svg'"),
        ("</units>", "", "is no XML"),
        ('width="4"', 'width="200"', "the map: width = '200', expected a whole number from 1 to 128"),
        ('height="3"', 'height="three"', "the map: height = 'three', expected a whole number from 1 to 128"),
        ("0110", "011", "terrain: expected 12 digits 0 (free) and 1 (wall) for 4 x 3 cells"),
        ("0110", "01A0", "terrain: expected 12 digits"),
        ('ID="1" resources="7"', 'ID="0" resources="7"', "players: expected two, with the IDs 0 and 1"),
        ('resources="7"', 'resources="-1"', "a player: resources = '-1', expected a whole number from 0 to 10000"),
        ('"Heavy"', '"Heavi"', "unit type 'Heavi': did you mean 'Heavy'?"),
        ('x="3" y="2"', 'x="4" y="2"', "Heavy: x = '4', expected a whole number from 0 to 3"),
        ('x="3" y="2"', 'x="3" y="0"', "the Heavy at x = 3, y = 0: another unit is there, too"),
        ('x="3" y="2"', 'x="2" y="1"', "the Heavy at x = 2, y = 1: a wall is there, too"),
        ('player="-1"', 'player="1"', "the Resource at x = 0, y = 2: player = 1, expected -1"),
        ('"Base" ID="5" player="0"', '"Base" ID="5" player="-1"', "the Base at x = 1, y = 0: player = -1, expected 0 or 1"),
        (
            'resources="20"',
            'resources="128"',
            "the Resource at x = 0, y = 2: resources = '128', expected a whole number from 0 to 127",
        ),
        (
            '"5" player="0" x="1" y="0" resources="0"',
            '"5" player="0" x="1" y="0" resources="1"',
            "the Base at x = 1, y = 0: resources = '1', expected 0",
        ),
        ('resources="7"', 'resources="\u0665"', "a player: resources = '\u0665', expected a whole number"),
        ('<rts.Player ID="1"', '<rts.Player ID="0" resources="1"></rts.Player><rts.Player ID="1"', "players: expected two"),
        ("<rts.Phys", '<?xml version="1.0" encoding="nonsense-9"?><rts.Phys', "is no XML: "),
        ('hitpoints="4"', 'hitpoints="9"', "the Heavy at x = 3, y = 2: hitpoints = '9', expected a whole number from 1 to 8"),
        ('player="1"', 'player="0"', "units: player 1 has none, expected at least one of each player"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_the_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MAP
    with pytest.raises(ConfigError) as error:
        read(tmp_path, MAP.replace(old, new))
    assert str(error.value).startswith(f"{tmp_path / 'own.xml'}: {message}")
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.xml': cannot read the map: No such file"):
        read_map(tmp_path / "none.xml")
    with pytest.raises(ConfigError, match=r"own\.xml: has more than 1,000,000 bytes"):
        read(tmp_path, MAP + " " * 1_000_000)
    with pytest.raises(ConfigError, match="it is no file"):
        read_map(tmp_path)
    with pytest.raises(ConfigError, match="cannot read the map: No such file"):
        read_map(Path("a\0.xml"))


def test_maps_of_rljax_are_those_of_the_files_of_the_java_engine() -> None:
    folder = microrts_folder() / "maps"
    if not folder.is_dir():
        pytest.skip("the Java engine of microRTS is not here")
    for name, known in MAPS.items():
        found = read_map(next(folder.glob(f"**/{name}.xml")))
        assert found.wall_cells().tolist() == known.wall_cells().tolist()
        for here, there in zip(vars(found.start()).values(), vars(known.start()).values(), strict=True):
            np.testing.assert_array_equal(here, there)
