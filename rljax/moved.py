"""Modules that have moved: their old paths lead to them, with a warning."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

MOVED = {
    "rljax.core.environment": "rljax.core.environments.environment",
    "rljax.core.spaces": "rljax.core.environments.spaces",
    "rljax.core.wrappers": "rljax.core.environments.wrappers",
    "rljax.core.step_wrappers": "rljax.core.environments.step_wrappers",
    "rljax.core.observation_wrappers": "rljax.core.environments.observation_wrappers",
    "rljax.core.game": "rljax.core.games.game",
    "rljax.core.game_wrappers": "rljax.core.games.game_wrappers",
    "rljax.core.chance": "rljax.core.games.chance",
    "rljax.core.versus": "rljax.core.games.versus",
    "rljax.nn.layers": "rljax.nn.modules.layers",
    "rljax.nn.initializers": "rljax.nn.modules.initializers",
    "rljax.nn.classes": "rljax.nn.modules.classes",
    "rljax.nn.transforms": "rljax.nn.modules.transforms",
    "rljax.nn.attention": "rljax.nn.modules.attention",
    "rljax.nn.recurrent": "rljax.nn.modules.recurrent",
    "rljax.nn.images": "rljax.nn.modules.images",
    "rljax.nn.actions": "rljax.nn.outputs.actions",
    "rljax.nn.choices": "rljax.nn.outputs.choices",
    "rljax.nn.composite": "rljax.nn.outputs.composite",
    "rljax.nn.distributions": "rljax.nn.outputs.distributions",
    "rljax.nn.heads": "rljax.nn.outputs.heads",
    "rljax.nn.pointed": "rljax.nn.outputs.pointed",
    "rljax.nn.rssm": "rljax.nn.latent.rssm",
    "rljax.nn.decoders": "rljax.nn.latent.decoders",
    "rljax.nn.vae": "rljax.nn.latent.vae",
    "rljax.envs.microrts.engine": "rljax.envs.microrts.rules.engine",
    "rljax.envs.microrts.bits": "rljax.envs.microrts.rules.bits",
    "rljax.envs.microrts.layout": "rljax.envs.microrts.rules.layout",
    "rljax.envs.microrts.state": "rljax.envs.microrts.rules.state",
    "rljax.envs.microrts.units": "rljax.envs.microrts.rules.units",
    "rljax.envs.microrts.waits": "rljax.envs.microrts.rules.waits",
    "rljax.envs.microrts.maps": "rljax.envs.microrts.rules.maps",
    "rljax.envs.microrts.bots": "rljax.envs.microrts.scripted.bots",
    "rljax.envs.microrts.paths": "rljax.envs.microrts.scripted.paths",
    "rljax.envs.microrts.players": "rljax.envs.microrts.scripted.players",
    "rljax.algos.game_policy": "rljax.algos.common.game_policy",
    "rljax.algos.off_policy": "rljax.algos.common.off_policy",
    "rljax.algos.optimizer": "rljax.algos.common.optimizer",
    "rljax.algos.policy": "rljax.algos.common.policy",
    "rljax.algos.q_learning": "rljax.algos.common.q_learning",
    "rljax.algos.soft_policy": "rljax.algos.common.soft_policy",
    "rljax.algos.state": "rljax.algos.common.state",
    "rljax.algos.training": "rljax.algos.common.training",
    "rljax.algos.value_heads": "rljax.algos.common.value_heads",
    "rljax.algos.dreamer_config": "rljax.algos.dreamer.config",
    "rljax.algos.laprop": "rljax.algos.dreamer.laprop",
    "rljax.algos.dreamer_losses": "rljax.algos.dreamer.losses",
    "rljax.algos.dreamer_memory": "rljax.algos.dreamer.memory",
    "rljax.algos.dreamer_networks": "rljax.algos.dreamer.networks",
    "rljax.algos.dreamer_openloop": "rljax.algos.dreamer.openloop",
    "rljax.algos.dreamer_replay": "rljax.algos.dreamer.replay",
    "rljax.algos.representation": "rljax.algos.dreamer.representation",
    "rljax.collect.matches": "rljax.collect.games.matches",
    "rljax.run.reproduce.games": "rljax.run.reproduce.playing.games",
    "rljax.run.reproduce.game_features": "rljax.run.reproduce.playing.game_features",
    "rljax.run.reproduce.imitation": "rljax.run.reproduce.playing.imitation",
    "rljax.run.reproduce.melee": "rljax.run.reproduce.playing.melee",
    "rljax.run.reproduce.microrts": "rljax.run.reproduce.playing.microrts",
    "rljax.run.reproduce.opponents": "rljax.run.reproduce.playing.opponents",
    "rljax.run.reproduce.perfect": "rljax.run.reproduce.playing.perfect",
    "rljax.run.reproduce.scouting": "rljax.run.reproduce.playing.scouting",
    "rljax.run.reproduce.solver": "rljax.run.reproduce.playing.solver",
    "rljax.nn.read_heads": "rljax.nn.outputs.heads",
    "rljax.run.places": "rljax.core.places",
    "rljax.run.files.places": "rljax.core.places",
    "rljax.run.microrts.install": "rljax.envs.microrts.java.install",
    "rljax.run.microrts.java": "rljax.envs.microrts.java.engine",
    "rljax.run.microrts.positions": "rljax.envs.microrts.java.positions",
    "rljax.run.microrts.states": "rljax.envs.microrts.java.states",
    "rljax.run.bench_devices": "rljax.run.bench.devices",
    "rljax.run.bench_dreamer": "rljax.run.bench.dreamer",
    "rljax.run.bench_league": "rljax.run.bench.league",
    "rljax.run.bench_sweep": "rljax.run.bench.sweep",
    "rljax.run.timing": "rljax.run.bench.timing",
    "rljax.run.checkpoint": "rljax.run.files.checkpoint",
    "rljax.run.folder": "rljax.run.files.folder",
    "rljax.run.outputs": "rljax.run.files.outputs",
    "rljax.run.records": "rljax.run.files.records",
    "rljax.run.saved": "rljax.run.files.saved",
    "rljax.run.scores": "rljax.run.files.scores",
    "rljax.run.sealed": "rljax.run.files.sealed",
    "rljax.run.population": "rljax.run.search.population",
    "rljax.run.space": "rljax.run.search.space",
    "rljax.run.storage": "rljax.run.search.storage",
    "rljax.run.sweep": "rljax.run.search.sweep",
    "rljax.run.sweep_plot": "rljax.run.search.sweep_plot",
    "rljax.run.tune": "rljax.run.search.tune",
    "rljax.run.contests": "rljax.run.view.contests",
    "rljax.run.curves": "rljax.run.view.curves",
    "rljax.run.layout": "rljax.run.view.layout",
    "rljax.run.lines": "rljax.run.view.lines",
    "rljax.run.openloop": "rljax.run.view.openloop",
    "rljax.run.play": "rljax.run.view.play",
    "rljax.run.plot": "rljax.run.view.plot",
    "rljax.run.record": "rljax.run.view.record",
    "rljax.run.show": "rljax.run.view.show",
    "rljax.run.tournament": "rljax.run.view.tournament",
}
"""The new path of each."""


RENAMED = {
    "rljax.algos.common.policy": {
        "batch_major": "rljax.collect.streams:batch_major",
        "episode_starts": "rljax.collect.streams:episode_starts",
    },
    "rljax.collect.games": {
        "seen_advantages": "rljax.collect.games.turns:turn_advantages",
        "view_advantages": "rljax.collect.games.turns:turn_advantages",
    },
    "rljax.collect.games.rollout": {
        "TurnAdvantages": "rljax.collect.games.turns:TurnAdvantages",
        "turn_advantages": "rljax.collect.games.turns:turn_advantages",
        "view_advantages": "rljax.collect.games.turns:turn_advantages",
    },
    "rljax.collect.games.turns": {"view_advantages": "rljax.collect.games.turns:turn_advantages"},
    "rljax.core.config": {
        "MAX_INTEGER": "rljax.core.plain:MAX_INTEGER",
        "OBJECT_PREFIX": "rljax.core.plain:OBJECT_PREFIX",
        "MAX_DEPTH": "rljax.core.plain:MAX_DEPTH",
        "is_object": "rljax.core.plain:is_object",
        "class_name": "rljax.core.plain:class_name",
        "PHASES": "rljax.core.config_files:PHASES",
        "MAX_FILE_BYTES": "rljax.core.config_files:MAX_FILE_BYTES",
        "preset_names": "rljax.core.config_files:preset_names",
        "load_config": "rljax.core.config_files:load_config",
        "names_algorithm": "rljax.core.config_files:names_algorithm",
        "find_algorithm": "rljax.core.config_files:find_algorithm",
        "names_own": "rljax.core.config_files:names_own",
        "holds_phases": "rljax.core.config_files:holds_phases",
        "read_table": "rljax.core.config_files:read_table",
        "config_of": "rljax.core.config_files:config_of",
        "parse_toml": "rljax.core.config_files:parse_toml",
        "preset_text": "rljax.core.config_files:preset_text",
        "dump_config": "rljax.core.config_files:dump_config",
        "config_table": "rljax.core.config_files:config_table",
        "comparable_table": "rljax.core.config_files:comparable_table",
    },
    "rljax.envs.microrts.rules.maps": {"find_map": "rljax.envs.microrts.named_maps:find_map"},
}
"""Names that have moved to another module, or have another name there, by the module that had them."""


def moved_names(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that leads from the names it had to where they are now, with a warning."""

    def lookup(name: str) -> Any:
        if name not in RENAMED[module]:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, now = RENAMED[module][name].partition(":")
        warnings.warn(f"{module}.{name} is {place}.{now} now; the old name will go in a later version", DeprecationWarning, 2)
        return getattr(importlib.import_module(place), now)

    return lookup


class _Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module at its old path and hands out the one at the new path, so that there is only one of it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old, new = module.__name__, MOVED[module.__name__]
        warnings.warn(f"{old} is {new} now; the old path will go in a later version", DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(new)


def install() -> None:
    """Make the old paths importable; a second call changes nothing."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
