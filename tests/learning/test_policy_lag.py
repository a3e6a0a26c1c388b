"""V-trace must be what makes old data useful: the same run with and without it, its actors 8 iterations behind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rljax
from tests.learning.test_presets import SEEDS, trained


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_correction_is_what_makes_eight_iterations_of_lag_harmless(figure: Callable[[str], None]) -> None:
    """Of 80 seeds 79 are solved with the correction, and 14 without it (`rljax reproduce policy_lag`, and three more keys)."""
    config = rljax.load_config("cartpole_impala", policy_lag=8, total_timesteps=200_000, eval_every=None)
    corrected, _ = trained(config)
    uncorrected, _ = trained(config.replace(off_policy_correction=False))
    for name, returns in (("V-trace", corrected), ("no correction", uncorrected)):
        solved = int((returns >= 475.0).sum())
        figure(f"| lag 8, {name} | {config.total_timesteps:,} | {solved} of {SEEDS} | {returns.mean():.1f} |")
    assert (corrected >= 475.0).mean() >= 0.8, np.sort(corrected)
    assert (uncorrected >= 475.0).mean() <= 0.6, np.sort(uncorrected)
    assert corrected.mean() >= uncorrected.mean() + 150.0
