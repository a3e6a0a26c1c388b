"""Maps by name: those of rljax, those beside the Java engine once it is there, and XML files of one's own."""

from __future__ import annotations

from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.envs.microrts.java.install import map_file, map_files, microrts_folder
from rljax.envs.microrts.rules.map_files import read_map
from rljax.envs.microrts.rules.maps import MAPS, GameMap


def find_map(name: str) -> GameMap:
    """Return the map of this name.

    Args:
        name: a name in `MAPS`, that of a map of the Java engine (once `rljax tournament` has fetched it), or the path of a file
            `.xml` in microRTS's format.

    Raises:
        ConfigError: there is no such map; the closest match is named. Or its file describes no map that the game can hold.
    """
    folder = microrts_folder()
    if isinstance(name, str):
        if name in MAPS:
            return MAPS[name]
        if (path := map_file(name, folder)) is not None:
            return read_map(path)
    files = map_files(folder)
    known = did_you_mean(str(name), sorted({*MAPS, *files}))
    if not known.startswith("did you mean"):
        known = did_you_mean(str(name), MAPS)  # those of the Java engine are too many for a line
    others = "that of a map of the Java engine" + ("" if files else " once that is there")
    raise ConfigError(f"MicroRTS: unknown map {shown(name)}: {known} (or {others}, or a path that ends in .xml)")
