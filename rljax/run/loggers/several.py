"""The loggers by their names, and several of them as one. One that fails is dropped with a warning."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rljax.collect.minibatches import unraveler
from rljax.core.errors import ConfigError, RljaxWarning, did_you_mean, how_to_install, reason_of, shown
from rljax.run.loggers.aim import Aim
from rljax.run.loggers.mlflow import MLflow
from rljax.run.loggers.parts import Logger, RunStart
from rljax.run.loggers.tensorboard import TensorBoard
from rljax.run.loggers.wandb import WandB

LOGGERS: dict[str, tuple[Callable[[], Logger], str]] = {
    "tensorboard": (TensorBoard, "tensorboardX"),
    "wandb": (WandB, "wandb"),
    "mlflow": (MLflow, "mlflow"),
    "aim": (Aim, "aim"),
}
"""Logger and the module it needs, by its name in `--log`, which is also the name of the extra of rljax."""

METHODS = ("start", "log", "close")
"""Methods that every logger has."""


def make_logger(logger: str | Logger) -> Logger:
    """Return the logger of a name; return the user's own logger as it is.

    Raises:
        ConfigError: the name is unknown, the library is not installed, or the object is no logger.
    """
    if isinstance(logger, type):
        raise ConfigError(f"loggers: {logger.__name__} is a class, expected an object made from it: {logger.__name__}()")
    if not isinstance(logger, str):
        missing = [name for name in METHODS if not callable(getattr(logger, name, None))]
        if missing:
            raise ConfigError(
                f"loggers: {shown(logger)} has no method {missing[0]}, expected an object with {', '.join(METHODS)}, "
                f"or a name: {', '.join(LOGGERS)}"
            )
        return logger
    if logger not in LOGGERS:
        raise ConfigError(f"log = {shown(logger)}: {did_you_mean(logger, LOGGERS)}")
    make, module = LOGGERS[logger]
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"log = {logger!r}: {module} is not installed: {how_to_install(logger)}")
    return make()


class Loggers:
    """Several loggers as one. A logger that raises an error is dropped with a warning, and training continues."""

    def __init__(self, loggers: str | Logger | Iterable[str | Logger]):
        alone = isinstance(loggers, str) or not isinstance(loggers, Iterable)
        given = cast("Iterable[str | Logger]", [loggers] if alone else loggers)
        self.loggers = [make_logger(logger) for logger in given]

    @property
    def want_histograms(self) -> bool:
        return any(hasattr(logger, "histograms") for logger in self.loggers)

    def start(self, run: RunStart) -> None:
        self._each(lambda logger: logger.start(run))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda logger: logger.log(step, metrics))

    def flush(self) -> None:
        self._each(lambda logger: logger.flush() if hasattr(logger, "flush") else None)

    def histograms(self, step: int, state: Any) -> None:
        @functools.cache
        def trees() -> dict[str, Any]:
            found = {"parameters": state.params, "gradients": recent_gradients(state)}
            return {kind: jax.device_get(tree) for kind, tree in found.items() if tree is not None}

        # Within the call, so that what fails there ends the logger and not the training.
        self._each(lambda logger: logger.histograms(step, trees()) if hasattr(logger, "histograms") else None)

    def close(self, failed: bool = False) -> None:
        if failed:
            self._each(lambda logger: logger.failed() if hasattr(logger, "failed") else None)
        loggers, self.loggers = self.loggers, []
        for logger in loggers:
            self._try(logger, lambda logger: logger.close())

    def _each(self, call: Callable[[Any], None]) -> None:
        for logger in list(self.loggers):
            if not self._try(logger, call):
                self.loggers.remove(logger)
                with contextlib.suppress(Exception):
                    logger.close()

    def _try(self, logger: Any, call: Callable[[Any], None]) -> bool:
        try:
            call(logger)
        except Exception as error:
            reason = reason_of(error)
            warnings.warn(
                f"logger {type(logger).__name__} failed and is switched off; training continues: {reason}",
                RljaxWarning,
                stacklevel=2,
            )
            return False
        return True


def recent_gradients(state: Any) -> Any:
    """Return Adam's first moment on the host, in the structure of the parameters; None for an optimiser without one.

    Of several optimisers, those in a dict with the names of the parameters have their moments under these names; otherwise each
    moment is under its path in the optimiser's state.
    """
    return _moments(getattr(state, "opt_state", None), state.params)


def _moments(opt_state: Any, params: Any) -> Any:
    if isinstance(opt_state, Mapping) and isinstance(params, Mapping) and opt_state.keys() == params.keys():
        return {name: _moments(opt_state[name], params[name]) for name in params}
    # The moment is a field of Adam's state. Without the filter, a part of the network that is named "mu" would be found, too.
    found = optax.tree.get_all_with_path(opt_state, "mu", lambda path, _: not isinstance(path[-1], jax.tree_util.DictKey))
    if len(found) == 1:
        return _like(params, jax.device_get(found[0][1]))
    paths = [jax.tree_util.keystr(path[:-1], simple=True, separator="/") for path, _ in found]
    return {path: jax.device_get(moment) for path, (_, moment) in zip(paths, found, strict=True)} or None


def _like(params: Any, moment: Any) -> Any:
    """Return a flat vector in the structure of the parameters, and any other moment as it is.

    A vector has the leading axes of the parameters: of seeds, and of the learners of a game.
    """
    shapes = jax.tree.map(np.shape, params)
    if not isinstance(moment, np.ndarray) or moment.shape == shapes or moment.size != sum(map(np.size, jax.tree.leaves(params))):
        return moment
    leading = moment.ndim - 1
    unravel = unraveler(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[leading:], moment.dtype), params))
    for _ in range(leading):
        unravel = jax.vmap(unravel)
    return unravel(jnp.asarray(moment))
