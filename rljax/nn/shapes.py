"""Find the shapes of a network's outputs without computing them; a network that does not fit raises an error of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from flax.errors import FlaxError, InvalidRngError

from rljax.core.errors import ConfigError


def network_shapes(
    network: nn.Module, init: Callable[..., tuple[Any, Any]], apply: Callable[..., Any], *arguments: Any
) -> tuple[Any, Any]:
    """Return the shapes of a network's outputs and variables.

    Args:
        network: the network, which an error names.
        init: `(key, *arguments) -> (outputs, variables)`, such as `network.init_with_output`.
        apply: `(variables, *arguments) -> outputs`, such as `network.apply`.
        arguments: trees of arrays or of their shapes.

    Raises:
        ConfigError: the network cannot be applied, draws random numbers, or has variables other than parameters.
    """
    name = type(network).__name__
    try:
        outputs, variables = jax.eval_shape(init, jax.random.key(0), *arguments)
    except ConfigError:
        raise
    except (TypeError, ValueError, AttributeError, FlaxError) as error:
        raise ConfigError(f"network = {name}: cannot be applied to observations of this environment: {error}") from error
    if set(variables) - {"params"}:
        raise ConfigError(f"network = {name}: expected parameters only, but it has variables of {sorted(variables)}")
    try:
        jax.eval_shape(apply, variables, *arguments)
    except InvalidRngError as error:
        raise ConfigError(
            f"network = {name}: expected a function of observations alone, but it draws numbers: {error}"
        ) from error
    return outputs, variables
