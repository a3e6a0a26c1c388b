"""Picture of a Dreamer run's open-loop predictions: replayed sequences, observed for a few rows, then predicted."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.algos.dreamer.config import DreamerConfig
from rljax.algos.dreamer.dreamer import DreamerParts, dreamer_parts
from rljax.algos.dreamer.networks import is_image
from rljax.algos.dreamer.openloop import CONTEXT, OpenLoop, open_loop, shuffled_actions, squashed_parts
from rljax.algos.dreamer.replay import Replayed, replayed_normalized
from rljax.collect.replay import sample_windows
from rljax.core.errors import ConfigError
from rljax.nn.latent.decoders import Parts
from rljax.run.files.folder import load_run, read_config, split_path
from rljax.run.files.outputs import atomic_file, output_path
from rljax.run.view.lines import format_value
from rljax.run.view.plot import COLORS, METADATA, STYLE, SUFFIXES

GROUPS, GROUP = 4, 16
"""Number of groups of sequences, and sequences per group, for mean errors. All images at once could need too much memory."""

HORIZON, HORIZON_OF_IMAGES = 45, 15
"""Largest number of predicted rows, for vectors and for images."""

DRAWN, SIGNALS = 3, 8
"""Number of sequences to draw, and largest number of signals."""

GAP = 3
"""Number of pixels between frames."""


class OpenLoopPlot(NamedTuple):
    """A plot that was written.

    Attributes:
        path: file of the plot.
        error: mean squared error of the predictions h steps ahead, f64 `[H]`, over the sequences whose episode lasts so long;
            NaN without any.
        copy_last_error: the same error if the last observation of the context is repeated, f64 `[H]`.
        shuffled_error: the same error of predictions from shuffled actions, f64 `[H]`.
        counts: number of these sequences, i64 `[H]`.
    """

    path: Path
    error: np.ndarray
    copy_last_error: np.ndarray
    shuffled_error: np.ndarray
    counts: np.ndarray


class _Sequence(NamedTuple):
    """Sequence to draw: truth and prediction `[T, ...]`, NaN where unknown; vectors are in the environment's scale."""

    truth: Parts
    prediction: Parts


def plot_openloop(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    checkpoint: str | int = "latest",
    seed_index: int | str = "best",
    **overrides: Any,
) -> OpenLoopPlot:
    """Draw open-loop predictions for sequences of a run's replay buffer into a PNG, SVG or PDF file, which is replaced.

    The model observes the first rows, the context, and predicts all others from the actions alone. The sequences are the same in
    each call. Those with the longest episodes are drawn; the errors are means over all sequences.

    Args:
        run: a run's folder, or one of its checkpoints.
        out: file to write; its suffix gives the format.
        checkpoint: "latest", "best" or a number of steps.
        seed_index: index of the seed in a run of several seeds, or "best".
        overrides: fields of the configuration to replace (see `load_run`).

    Raises:
        ConfigError: there is no run, it is not one of Dreamer with a decoder, its buffer has no whole sequence yet, or `out` is
            not allowed.
    """
    path = output_path(out, SUFFIXES)
    folder, _ = split_path(run)
    config = read_config(folder, **overrides)
    if not isinstance(config, DreamerConfig):
        raise ConfigError(f"{folder}: a run of {config.algorithm}; only runs of dreamer have a world model to draw")
    if config.representation != "decoder":
        raise ConfigError(
            f"{folder}: representation = {config.representation!r}: only 'decoder' predicts observations that can be drawn"
        )
    loaded = load_run(run, checkpoint=checkpoint, seed_index=seed_index, **overrides)
    rows = int(loaded.state.replay.size)
    if rows < config.window:
        raise ConfigError(
            f"{folder}: its buffer has {rows} rows after {loaded.step:,} steps, but a sequence needs batch_length + 1 = "
            f"{config.window} rows: train it for longer"
        )
    parts = dreamer_parts(config)
    context = min(CONTEXT, config.batch_length // 2)
    ahead = HORIZON_OF_IMAGES if any(map(is_image, jax.tree.leaves(parts.obs))) else HORIZON
    batch, result, shuffled = _predict(parts, loaded.state, context, min(ahead, config.batch_length - context))
    errors, counts = _mean_errors(result, shuffled)
    title = f"{config.algorithm.upper()} on {format_value(config.env)} after {loaded.step:,} steps"
    _draw(path, parts, _sequences(batch, result, context), errors, counts, context, title)
    return OpenLoopPlot(path, *errors, counts)


def _predict(parts: DreamerParts, state: Any, context: int, horizon: int) -> tuple[Replayed, OpenLoop, np.ndarray]:
    """Return rows `[T, B, ...]`, their predictions, and the error with shuffled actions `[H, B]`, on the host."""

    @jax.jit
    def predict(state: Any, key: jax.Array) -> Any:
        sample_key, key, shuffle_key = jax.random.split(key, 3)
        places = sample_windows(state.replay, jax.random.bits(sample_key, (GROUP,)), context + horizon + 1)
        batch = replayed_normalized(parts.networks.rssm, state, places, context + horizon)
        foresee = partial(open_loop, parts, state.params, batch, context, key)
        rows = batch._replace(latent=jax.tree.map(lambda x: x[None], batch.latent))
        return rows, foresee(), foresee(shuffled_actions(batch, context, shuffle_key)).error

    keys = jax.random.split(jax.random.key(0), GROUPS)
    groups = [jax.tree.map(np.asarray, predict(state, key)) for key in keys]
    return jax.tree.map(lambda *x: np.concatenate(x, axis=1), *groups)


def _mean_errors(result: OpenLoop, shuffled: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Return the three mean errors `[H]` over the valid sequences of each step, and the number of these sequences `[H]`."""
    counts = result.valid.sum(axis=1)

    def mean(error: Any) -> np.ndarray:
        total = np.where(result.valid, error, 0.0).sum(axis=1, dtype=np.float64)
        return np.where(counts > 0, total / np.maximum(counts, 1), np.nan)

    return (mean(result.error), mean(result.copy_last_error), mean(shuffled)), np.asarray(counts)


def _sequences(batch: Replayed, result: OpenLoop, context: int) -> list[_Sequence]:
    """Return the sequences to draw: those that belong to one episode for longest, in context and horizon."""
    one_episode = ~batch.is_first[1:context].any(axis=0)
    order = np.argsort(-(result.valid.sum(axis=0) + one_episode), kind="stable")
    truth = jax.tree.map(np.asarray, squashed_parts(batch.obs))

    def of(parts: Any, i: int) -> Parts:
        """Return all T rows of sequence i; NaN where unknown."""
        ended = ~result.valid[:, i]

        def rows(x: np.ndarray) -> Any:
            whole = np.full((len(batch.reward), *x.shape[2:]), np.nan)
            whole[len(whole) - len(x) :] = x[:, i]
            whole[context:][ended] = np.nan
            return whole

        vector = None if parts.vector is None else rows(np.sign(parts.vector) * np.expm1(np.abs(parts.vector)))
        return Parts(vector, tuple(rows(image) for image in parts.images))

    return [_Sequence(of(truth, i), of(result.prediction, i)) for i in order[:DRAWN]]


def _draw(
    path: Path,
    parts: DreamerParts,
    sequences: list[_Sequence],
    errors: tuple[np.ndarray, ...],
    counts: np.ndarray,
    context: int,
    title: str,
) -> None:
    """Draw frames, then signals, then the error of each step."""
    import matplotlib
    from matplotlib.figure import Figure

    signals, images = _part_names(parts.obs)
    drawn = min(len(signals), SIGNALS)
    length = len(jax.tree.leaves(sequences[0].truth)[0])
    strips = [_strip(s, i, context) for i in range(len(images)) for s in sequences]
    width = 7.5
    heights = [1.15 * width * x.shape[0] / x.shape[1] + 0.15 for x in strips]
    panels = [sum(heights)] * bool(strips) + [0.8 * drawn + 0.4] * bool(drawn) + [2.3]
    with matplotlib.rc_context(STYLE | {"axes.labelsize": 9}):
        figure = Figure(figsize=(width, sum(panels) + 0.5), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        below = list(figure.subfigures(len(panels), 1, height_ratios=panels, squeeze=False)[:, 0])
        if strips:
            _draw_strips(below.pop(0), strips, heights, images, context, length)
        if drawn:
            _draw_signals(below.pop(0), sequences, signals[:drawn], context)
        _draw_errors(below.pop(0), errors, counts)
        more = f"the first {drawn} of {len(signals)} signals; " if len(signals) > drawn else ""
        figure.supxlabel(
            f"{more}{context} rows of context are observed, the others predicted from actions alone; errors are means over up to "
            f"{counts.max()} replayed sequences",
            fontsize=7,
            color="0.35",
        )
        suffix = path.suffix.lower()
        with atomic_file(path) as aside:
            figure.savefig(aside, format=suffix[1:], dpi=300, metadata=METADATA[suffix])


def _part_names(obs: Any) -> tuple[list[str], list[str]]:
    """Return the names of all numbers of the vectors and of all images, in the order of `Parts`."""
    signals, images = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(obs):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if is_image(leaf):
            images.append(name)
        else:
            signals += [f"{name or 'obs'}{list(index) if index else ''}" for index in np.ndindex(leaf.shape)]
    return signals, images


def _strip(sequence: _Sequence, image: int, context: int) -> np.ndarray:
    """Return a picture of a sequence, f64 `[height, width, 3]`: true frames, predicted ones and their difference, else white."""
    truth, prediction = (_colors(parts.images[image]) for parts in (sequence.truth, sequence.prediction))
    difference = np.repeat(1.0 - np.abs(truth - prediction).mean(axis=-1, keepdims=True), 3, axis=-1)
    rows = np.stack([truth, prediction, difference])
    # Observed pictures have a blue border.
    frames = np.pad(rows, ((0, 0), (0, 0), (GAP, GAP), (GAP, GAP), (0, 0)), constant_values=np.nan)
    blue = np.array([int(COLORS[0][i : i + 2], 16) / 255 for i in (1, 3, 5)])
    for t in range(context):
        inside = np.zeros(frames.shape[2:4], bool)
        inside[1:-1, 1:-1] = True
        inside[GAP:-GAP, GAP:-GAP] = False
        frames[0, t][inside] = blue
    return np.nan_to_num(np.concatenate(np.concatenate(list(frames), axis=1), axis=1), nan=1.0)


def _colors(images: Any) -> np.ndarray:
    """Return the RGB values of images `[T, H, W, C]`; for stacked frames, those of the last channel."""
    return images if images.shape[-1] == 3 else np.repeat(images[..., -1:], 3, axis=-1)


def _draw_strips(
    figure: Any, strips: list[np.ndarray], heights: list[float], names: list[str], context: int, length: int
) -> None:
    axes = figure.subplots(len(strips), 1, gridspec_kw={"height_ratios": heights}, squeeze=False)[:, 0]
    for i, (ax, strip) in enumerate(zip(axes, strips, strict=True)):
        height, width = strip.shape[0] / 3, strip.shape[1] / length
        ax.imshow(strip, interpolation="nearest")
        ax.set_yticks([height * (row + 0.5) for row in range(3)], ["true", "predicted", "error"])
        ax.set_xticks(
            [width * (t + 0.5) for t in range(length)], [str(t - context + 1) if t >= context else "" for t in range(length)]
        )
        ax.tick_params(length=0, labelsize=7)
        ax.spines[:].set_visible(False)
        ax.text(width * context / 2, height * 2, "context", ha="center", va="center", fontsize=8, color=COLORS[0])
        if len(names) > 1:
            ax.set_title(names[i // DRAWN], loc="left", fontsize=8)
    axes[-1].set_xlabel("steps ahead")


def _draw_signals(figure: Any, sequences: list[_Sequence], names: list[str], context: int) -> None:
    axes = figure.subplots(len(names), len(sequences), sharex=True, sharey="row", squeeze=False)
    for column, sequence in enumerate(sequences):
        assert sequence.truth.vector is not None
        assert sequence.prediction.vector is not None
        ahead = np.arange(len(sequence.truth.vector)) - context + 1
        for row, name in enumerate(names):
            ax = axes[row, column]
            ax.axvspan(ahead[0] - 0.5, 0.5, color="0.92", linewidth=0, label="context")
            ax.plot(ahead, sequence.truth.vector[:, row], color="0.25", linewidth=1.5, label="true")
            ax.plot(ahead, sequence.prediction.vector[:, row], "--", color=COLORS[1], linewidth=1.5, label="predicted")
            ax.set_xlim(ahead[0] - 0.5, ahead[-1] + 0.5)
            ax.grid(color="0.9", linewidth=0.6)
            if column == 0:
                ax.set_ylabel(name, fontsize=8)
        axes[0, column].set_title(f"sequence {column + 1}", loc="left", fontsize=8)
        axes[-1, column].set_xlabel("steps ahead")
    figure.align_ylabels(axes[:, 0])
    figure.legend(*axes[0, 0].get_legend_handles_labels(), frameon=False, loc="outside upper right", ncols=3)


def _draw_errors(figure: Any, errors: tuple[np.ndarray, ...], counts: np.ndarray) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax = figure.subplots()
    ahead = np.arange(1, len(counts) + 1)
    labels = ("open loop", "last observation of the context", "open loop with shuffled actions")
    marker = "o" if len(ahead) <= 20 else None
    for error, label, color, dashes in zip(errors, labels, COLORS[1:], ("-", "--", ":"), strict=False):
        ax.plot(ahead, error, dashes, color=color, marker=marker, markersize=3, linewidth=1.5, label=label)
    if any((error > 0).any() for error in errors):
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlim(0.5, len(counts) + 0.5)
    ax.set_xlabel("steps ahead")
    ax.set_ylabel("mean squared error")
    ax.grid(color="0.9", linewidth=0.6)
    ax.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2)
