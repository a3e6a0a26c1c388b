"""rljax: reinforcement learning whose whole training run, environments included, is one compiled JAX program.

config = rljax.PPOConfig(env="CartPole-v1")
result = jax.jit(rljax.make_train(config))(jax.random.key(0))
"""

from typing import Any

import lazy_loader

from rljax.lazy import LOCK, modules_when_asked
from rljax.moved import install as install_moved
from rljax.version import __version__ as __version__

install_moved()
modules_when_asked()

# Names are imported when they are first asked for (https://scientific-python.org/specs/spec-0001); `__init__.pyi` lists them.
_find, _, _names = lazy_loader.attach_stub(__name__, __file__)
# `import *` brings no packages: `nn` is often another one.
__all__ = sorted({*_names} - {"algos", "collect", "core", "envs", "league", "nn", "planning", "run", "wrappers"})


def __getattr__(name: str) -> Any:
    if name not in _names:
        raise AttributeError(f"module 'rljax' has no attribute {name!r}")
    with LOCK:
        globals()[name] = _find(name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_names})
