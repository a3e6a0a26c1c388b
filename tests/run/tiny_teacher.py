"""A run whose policy others learn from: made when it is first needed, since nothing that asks JAX may happen at import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

import rljax
from tests.run.tiny_data import FOLDER, tiny_dataset

TEACHER = str(FOLDER / "teacher")
"""Path of the run."""


def ready(config: Any) -> Any:
    """The configuration, whose teachers and dataset are there now."""
    if getattr(config, "dataset", None) is not None:
        tiny_dataset(config.env)
    if getattr(config, "teachers", ()) and not Path(TEACHER).exists():
        agent = rljax.make_agent(rljax.PPOConfig(network={"type": "gru", "hidden": [6], "size": 8}, normalize_observations=True))
        rljax.save(TEACHER, agent, jax.jit(agent.init)(jax.random.key(0)))
    return config
