"""What tests read in traced programs."""

from __future__ import annotations

from typing import Any


def num_carried(scan: Any) -> int:
    """Return how many arrays a step of a scan (an equation of a jaxpr) hands to the next; versions of JAX name it differently.

    Such an array has its own shape outside the loop, too; one that the loop stacks has an axis more.
    """
    after = scan.params["jaxpr"].out_avals
    return sum(out.aval.shape == one.shape for out, one in zip(scan.outvars, after, strict=True))
