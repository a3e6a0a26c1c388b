"""Memory that a Dreamer run needs, computed from its configuration before anything is compiled."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from rljax.algos.dreamer.config import DreamerConfig
from rljax.algos.dreamer.laprop import laprop
from rljax.algos.dreamer.networks import PROTOTYPES, TARGETS, TWO_HOT, Networks, init_networks, is_image
from rljax.algos.dreamer.replay import DreamerRow
from rljax.core.errors import ConfigError
from rljax.core.memory import device_memory, readable_bytes, tree_bytes


def dreamer_memory(config: DreamerConfig, networks: Networks, row: DreamerRow) -> dict[str, int]:
    """Bytes of a run's parts.

    Returns:
        `buffer`; `latents`, which are part of it; `parameters`, with those of the optimiser and of all moving averages; and
        `activations`, an estimate of what one update, or the collection of rows, has at most at one time.
    """
    params = jax.eval_shape(lambda: init_networks(networks, jax.random.key(0), row.obs))
    copies = [params["critic"], *(params[name] for name in TARGETS if "obs_projection" in params)]
    steps = config.buffer_rows * config.num_envs
    return {
        "buffer": steps * tree_bytes(row),
        "latents": steps * tree_bytes((row.deter, row.stoch)),
        "parameters": tree_bytes((params, jax.eval_shape(laprop().init, params), copies)),
        "activations": activation_bytes(config, networks, row, tree_bytes(params), config.batch_size),
    }


def activation_bytes(config: DreamerConfig, networks: Networks, row: DreamerRow, params: int, batch_size: int) -> int:
    """An estimate of the temporary arrays of an iteration, in bytes.

    Fitted to `memory_analysis()` of compiled iterations on the CPU (XLA of jax 0.10): how often each array is there when most
    are. Of images it counts the windows of convolutions, which hold four times a stage's input, and what comes out (see
    `rljax.nn.modules.images`).

    Args:
        config: configuration of the run.
        networks: the modules.
        row: shapes of one step.
        params: bytes of the parameters.
        batch_size: B.
    """
    rssm, size = networks.rssm, jnp.dtype(networks.rssm.dtype or jnp.float32).itemsize
    replayed, stoch = batch_size * config.batch_length, rssm.groups * rssm.classes
    imagined = replayed * (config.horizon + 1)
    # DreamerPro encodes and observes what was replayed, and two views of it.
    passes = 3 if config.representation == "dreamerpro" else 1
    # Of an imagined state the features and their parts, the layers of four heads, and logits of two-hot numbers; of a replayed
    # one also what the gradient of the scan needs of each of its steps.
    per_imagined = size * (2 * (rssm.deter + stoch) + 26 * rssm.hidden) + 4 * 6 * TWO_HOT.num_bins
    per_replayed = passes * size * (27 * rssm.deter + 32 * rssm.hidden) + 4 * (15 * stoch + 5 * TWO_HOT.num_bins)
    if config.representation == "dreamerpro":
        per_replayed += 4 * 8 * PROTOTYPES  # scores of both views
    shapes = [x.shape for x in jax.tree.leaves(row.obs) if is_image(x)]
    encoded = [count for shape in shapes for count in _windows(networks, shape)[0]]
    decoded = [count for shape in shapes if networks.decoder is not None for count in _windows(networks, shape)[1]]
    # The gradient of the largest is there beside all of them; a tenth more is what goes in and comes out.
    per_replayed += int(1.1 * size * (passes * sum(encoded) + sum(decoded) + max([0, *encoded, *decoded])))
    every, _, _ = config.schedule
    update = imagined * per_imagined + replayed * per_replayed + 3 * params
    collect = config.num_envs * (every * tree_bytes(row) + size * sum(encoded))
    return max(update, collect)


def _windows(networks: Networks, shape: tuple[int, int, int]) -> tuple[list[int], list[int]]:
    """Numbers that the convolution of each stage has at a time, of encoder and decoder, for one image `(H, W, C)`."""
    encoder, (height, width, channels) = networks.encoder, shape
    depths = (channels, *(encoder.depth * multiplier for multiplier in encoder.multipliers))
    # What halves the sides in the encoder doubles them in the decoder, before it convolves.
    stages = [((height >> i) * (width >> i), outer, inner) for i, (outer, inner) in enumerate(itertools.pairwise(depths))]
    encoded = [pixels * (4 * outer + 2 * inner) for pixels, outer, inner in stages]
    decoded = [pixels * (4 * inner + 2 * outer) for pixels, outer, inner in stages]
    return encoded, decoded


def check_dreamer_memory(config: DreamerConfig, networks: Networks, row: DreamerRow) -> dict[str, int]:
    """Return `dreamer_memory`, after checking that the device has as much.

    Raises:
        ConfigError: it has less; says what would fit.
    """
    needs, limit = dreamer_memory(config, networks, row), device_memory()
    total = needs["buffer"] + needs["parameters"] + needs["activations"]
    if limit is None or total <= limit:
        return needs
    why = f"as the run needs {memory_line(needs)}, and this device has {readable_bytes(limit)}"
    per_row = config.num_envs * tree_bytes(row)
    rows = (limit - needs["parameters"] - needs["activations"]) // per_row
    smallest = max(config.window, config.num_steps)
    if rows >= smallest:
        raise ConfigError(f"buffer_size = {config.buffer_size}: expected at most {rows * config.num_envs} here, {why}")
    params = tree_bytes(jax.eval_shape(lambda: init_networks(networks, jax.random.key(0), row.obs)))

    def fits(batch_size: int, buffer: int) -> bool:
        activations = activation_bytes(config, networks, row, params, batch_size)
        return needs["parameters"] + buffer + activations <= limit

    for buffer, also in ((needs["buffer"], ""), (smallest * per_row, " with a smaller buffer_size")):
        largest = bisect.bisect_left(range(1, config.batch_size), True, key=lambda n: not fits(n, buffer))
        if largest:
            raise ConfigError(f"batch_size = {config.batch_size}: expected at most {largest}{also} here, {why}")
    raise ConfigError(f"size = {config.size!r}: expected a smaller one here, {why}")


def memory_line(needs: Mapping[str, int]) -> str:
    """ "buffer 2.1 GB (latents 2.0 GB), parameters 10 MB, activations about 0.4 GB"."""
    shown = {name: readable_bytes(count) for name, count in needs.items()}
    return (
        f"buffer {shown['buffer']} (latents {shown['latents']}), parameters {shown['parameters']}, "
        f"activations about {shown['activations']}"
    )
