"""DreamerV3 (Hafner et al., 2025) and R2-Dreamer.

- `config`: the configuration; `memory`: what a run of it keeps on the device
- `networks`: world model, actor and critic; `representation`: losses instead of reconstruction
- `replay`: sequences out of the buffer and back; `laprop`: the optimiser
- `losses`: all that is minimised
- `dreamer`: collect, update, and the agent made of both
- `openloop`: open-loop predictions and their errors
"""

from rljax.algos.dreamer.config import DreamerConfig
from rljax.algos.dreamer.dreamer import (
    CollectNoise,
    DreamerNoise,
    DreamerParts,
    DreamerState,
    PolicyCarry,
    UpdateNoise,
    dreamer_collect,
    dreamer_init,
    dreamer_noise,
    dreamer_parts,
    dreamer_update,
    loss_noise,
    make_dreamer,
)

__all__ = [
    "CollectNoise",
    "DreamerConfig",
    "DreamerNoise",
    "DreamerParts",
    "DreamerState",
    "PolicyCarry",
    "UpdateNoise",
    "dreamer_collect",
    "dreamer_init",
    "dreamer_noise",
    "dreamer_parts",
    "dreamer_update",
    "loss_noise",
    "make_dreamer",
]
