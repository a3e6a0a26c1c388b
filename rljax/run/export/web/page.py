"""Export a policy as a static web page: the policy as an ONNX file, onnxruntime-web, and the environment in JavaScript.

The page's own code is in `static/`: plain ES modules, copied as they are. `policy.json` tells them what to load and what the
environment's parameters are. Each environment there mirrors the one in Python; the tests compare them step by step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rljax.collect.environments import USUAL_STEPS, changed_steps
from rljax.core.agent import Agent, check_state
from rljax.core.config import Config
from rljax.core.errors import ConfigError
from rljax.core.games.game import Game
from rljax.core.places import as_path
from rljax.envs import resolve_env
from rljax.envs.cartpole import CartPole
from rljax.envs.connect_four import ConnectFour
from rljax.envs.gridworld import GridWorld
from rljax.envs.microrts.against_bots import MicroRTSBots
from rljax.envs.microrts.game import MicroRTS
from rljax.envs.pendulum import Pendulum
from rljax.envs.tic_tac_toe import TicTacToe
from rljax.run.export.metadata import onnx_inputs, plain
from rljax.run.export.onnx import onnx_or_reason
from rljax.run.export.policy import ExportReport, check_free, write_whole
from rljax.run.export.signature import Signature, leaf_names, read_signature, search_note, to_export
from rljax.run.export.steps import read_step, with_probs
from rljax.run.export.web.microrts import describe_microrts
from rljax.run.export.web.runtime import fetch_runtime

STATIC = Path(__file__).with_name("static")

_ALONE, _IN_TURN = {"play": "watch.js"}, {"play": "versus.js"}
_MICRORTS = {
    "environment": "microrts.js", "play": "battle.js", "person": "commands.js",
    "rules": "microrts_rules.js", "bots": "microrts_bots.js", "picture": "microrts_picture.js",
}  # fmt: skip

MODULES: dict[type, dict[str, str]] = {
    CartPole: {"environment": "cartpole.js", **_ALONE},
    Pendulum: {"environment": "pendulum.js", **_ALONE},
    GridWorld: {"environment": "gridworld.js", **_ALONE},
    TicTacToe: {"environment": "tictactoe.js", **_IN_TURN},
    ConnectFour: {"environment": "connect_four.js", **_IN_TURN},
    MicroRTS: _MICRORTS,
    MicroRTSBots: _MICRORTS,
}
"""The environments that have a page, and the modules that only some pages have: the environment, what plays it, and theirs."""

ALWAYS = ("index.html", "style.css", "page.js", "policy.js", "drawing.js")


def export_web(
    agent: Agent,
    state: Any,
    out: str | os.PathLike[str],
    *,
    step: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ExportReport:
    """Write a static web page that plays the policy of `state` to a new folder `out`, which appears whole or not at all.

    The page loads nothing from elsewhere. It shows CartPole, Pendulum and GridWorld, and plays TicTacToe, ConnectFour and
    MicroRTS against a person. A browser opens it through a web server only, such as `python -m http.server`.

    Args:
        agent: agent from `make_agent`.
        state: the agent's state, unbatched.
        out: path of a folder to create, or of an empty one.
        step: number of environment steps of training, which the page tells.
        say: called with a line of text before onnxruntime-web is fetched, which is done once.

    Raises:
        ConfigError: there is something at `out` already (nothing is touched), it cannot be written, the environment has no page,
            or the policy cannot be converted to ONNX.
        RljaxError: onnxruntime-web could not be fetched.
    """
    folder = Path(os.path.abspath(as_path(out, "out")))
    check_free(folder)
    agent = to_export(agent)
    page = describe_page(agent.config)
    signature = read_signature(agent)
    check_state(agent, state)
    _check_observation(signature, agent.config)
    policy = with_probs(read_step(agent, state, signature, deterministic=True), state)
    model, reason = onnx_or_reason(policy, state)
    if model is None:
        raise ConfigError(f"the policy cannot be exported as a page, which needs ONNX: {reason}")
    trained = {"algorithm": agent.config.algorithm.replace("_", "-"), "step": step, "note": search_note(agent.config)}
    description = plain({**page, **trained, "inputs": onnx_inputs(policy), "sha256": hashlib.sha256(model).hexdigest()})
    contents = {name: (STATIC / name).read_bytes() for name in (*ALWAYS, *page["modules"].values())}
    contents["policy.json"] = (json.dumps(description, indent=2, allow_nan=False) + "\n").encode()
    contents["policy.onnx"] = model
    contents |= fetch_runtime(say)
    write_whole(folder, contents)
    return ExportReport(folder, {name: len(content) for name, content in contents.items()}, {})


def describe_page(config: Config) -> dict[str, Any]:
    """Return what `policy.json` says of the environment: its name, modules, parameters, and the limit of an episode's steps.

    Raises:
        ConfigError: names the environments that have one, or the field that makes another environment of it.
    """
    env, params = resolve_env(config.env, config.env_params)
    if type(env) not in MODULES:
        names = ", ".join(kind().name for kind in MODULES)
        raise ConfigError(f"environment {env.name}: there is no page for it; there are pages for {names}")
    for name in USUAL_STEPS:
        if changed_steps(config, name) is not None:
            raise ConfigError(f"{name} = {getattr(config, name)}: a page plays {env.name} without it")
    for name, value in dataclasses.asdict(params).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"env_params.{name} = {value}: a page plays {env.name} with finite numbers only")
    versus = isinstance(env, (Game, MicroRTSBots))
    limits = [limit for limit in (getattr(params, "max_steps_in_episode", None), config.time_limit) if limit is not None]
    return {
        "environment": env.name,
        "modules": MODULES[type(env)],
        "params": dataclasses.asdict(params),
        "size": getattr(env, "size", None),
        "microrts": describe_microrts(env) if isinstance(env, (MicroRTS, MicroRTSBots)) else None,
        # A person's game is played to its end.
        "max_steps": None if versus else min(limits, default=None),
    }


def _check_observation(signature: Signature, config: Config) -> None:
    """Refuse a policy that sees something else than the page shows it: the observation, and whose it is in a game."""
    env, params = resolve_env(config.env, config.env_params)
    obs = signature.obs
    own = obs.get("obs") if isinstance(obs, dict) else obs
    expected = math.prod(env.observation_space(params).shape)
    if own is None or math.prod(own.shape) != expected or not set(leaf_names("obs", obs)) <= {"obs", "obs.obs", "obs.group"}:
        raise ConfigError(f"environment {env.name}: a page gives the policy its observation, and this policy sees something else")
