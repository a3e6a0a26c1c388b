"""Cycles of the Java engine of MicroRTS beside those of the engine in JAX: what differs is noticed."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from rljax.run.microrts.parity import differences, joint_conflicts
from tests.envs.microrts.oracle import GOLDEN, load
from tests.envs.play import QUICK

COUNT = 30


@pytest.mark.slow
def test_a_state_and_a_legal_order_that_differ_are_found() -> None:
    cycles = jax.tree.map(lambda x: x[:COUNT], load(GOLDEN / "melee4x4light2-random.npz"))
    joint = joint_conflicts(cycles)
    assert not any(np.any(found & ~joint) for found in differences(cycles, "melee4x4light2", QUICK))
    apart = np.flatnonzero(~joint)[:3]
    hp, move, born = (np.array(x) for x in (cycles.after.hp, cycles.legal.move, cycles.after.born))
    hp[apart[0], 0, 0] += 1
    move[apart[1], 0, 0, 0] ^= True
    born[apart[2]] *= -1  # the youngest unit is the oldest now
    changed = cycles._replace(after=cycles.after.replace(hp=hp, born=born), legal=cycles.legal.replace(move=move))
    wrong, illegal = differences(changed, "melee4x4light2", QUICK)
    assert np.flatnonzero(wrong & ~joint).tolist() == sorted([apart[0], apart[2]])
    assert np.flatnonzero(illegal).tolist() == [apart[1]]
