# %% [markdown]
# # A sweep on a cluster: parts as an array job
#
# A sweep of many runs is cut into parts, and each part is a job of its own. The jobs need nothing from each other but a folder
# that all of them see, so any queue will do; here it is an array job of Slurm. This script writes the file for `sbatch`, runs
# its tasks as processes on this machine, loses one on the way, and merges what there is.

# %%
import argparse
import csv
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import rljax

parser = argparse.ArgumentParser(description="A sweep in parts, as an array job of Slurm.")
parser.add_argument("--total-timesteps", type=int, default=20_000, help="budget of each run")
parser.add_argument("--out", default="cluster.png", help="the picture")
options, _ = parser.parse_known_args()

PARTS, SEEDS = 3, 6
RATES = (1e-4, 1e-3, 1e-2, 1e-1)
COLORS = ("#3b6ea5", "#4e9a68", "#e8b042")
folder = Path(tempfile.mkdtemp()) / "rates"

# %% [markdown]
# The file for `sbatch`. Lines with `#SBATCH` are for Slurm: how many tasks, and what each gets. The command is the same for all
# tasks but for `--part K/N`. A task that was stopped goes on where it was when it is started again, so it may be requeued.

# %%
job, rates = folder.with_suffix(".sbatch"), " ".join(map(str, RATES))
script = f"""\
    #!/bin/bash
    #SBATCH --job-name={folder.name}
    #SBATCH --array=1-{PARTS}
    #SBATCH --cpus-per-task=4
    #SBATCH --time=00:30:00
    #SBATCH --requeue
    exec {shlex.quote(sys.executable)} -m rljax sweep cartpole_ppo \\
      --learning-rate {rates} --seeds {SEEDS} --episodes 20 --total-timesteps {options.total_timesteps} \\
      --run-dir {shlex.quote(str(folder))} --part "$SLURM_ARRAY_TASK_ID/{PARTS}"
"""
job.write_text(textwrap.dedent(script))
print(job.read_text())

# %% [markdown]
# On a cluster: `sbatch rates.sbatch`. Here the same file runs once for each task, with the variable that Slurm would set. The
# last task is left out at first, as if its machine had been lost.


# %%
def start(task):
    """Start one task of the array on this machine."""
    env = {**os.environ, "SLURM_ARRAY_TASK_ID": str(task)}
    return subprocess.Popen(["bash", str(job)], env=env, stdout=subprocess.DEVNULL)


def run(tasks):
    """Run some tasks of the array, all at once, and wait for them."""
    processes = [start(task) for task in tasks]
    statuses = [process.wait() for process in processes]
    if any(statuses):
        raise SystemExit("a task has failed; what it says is above")


# %% [markdown]
# `merge_sweep` (or `rljax sweep --merge FOLDER`) makes one sweep of the parts that are there. Cells of which runs are missing
# are left out of the comparison. Once the lost task has run, the same call makes the whole.

# %%
print(f"{'merged':16} {'runs':>6} {'whole cells':>12} {'best rate':>10} {'its return':>11}")
for name, tasks in (("without the last", range(1, PARTS)), ("all parts", [PARTS])):
    run(tasks)
    merged = rljax.merge_sweep(folder)
    trained, whole = np.isfinite(merged.returns).sum(), np.isfinite(merged.means).sum()
    print(f"{name:16} {trained:6d} {whole:12d} {merged.best.learning_rate:10g} {merged.means[merged.best_cell]:11.1f}")

# %% [markdown]
# Each dot is a run, in the colour of the part that trained it; each part has a table of its runs, `part_K_of_N/results.csv`.
#
# Next: one run that is too large for a machine takes several processes of one job, and a single run may be rented by the hour:
# [many machines](../docs/guides/sweeps.md#on-many-machines), [launching](../docs/guides/launching.md). Where the values to try
# are not known beforehand, [tuning](../docs/guides/sweeps.md#tuning) shares one study among any number of jobs.

# %%
fig, ax = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
for part, color in enumerate(COLORS, 1):
    with (folder / f"part_{part}_of_{PARTS}" / "results.csv").open() as file:
        rows = [(int(row["cell"]), float(row["return"])) for row in csv.DictReader(file)]
    cells, returns = np.array(rows).T
    ax.plot(cells + 0.07 * (part - 2), returns, "o", color=color, alpha=0.8, markersize=5, label=f"part {part}")
places = np.arange(len(RATES))
ax.hlines(merged.means, places - 0.3, places + 0.3, color="black", label="mean of the merged sweep")
ax.set_xticks(places, [f"{rate:g}" for rate in RATES])
ax.set(
    xlabel="learning rate", ylabel="return of the final policy", title=f"CartPole, {merged.returns.size} runs in {PARTS} parts"
)
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
fig.savefig(options.out, dpi=150)
