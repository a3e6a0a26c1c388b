"""The commands and their options: each class is a command, each field a flag of it, each docstring its help."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import tyro

from rljax.cli.parsing import Bounds

OptionalConfig = Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[CONFIG]")]
OptionalName = Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[NAME]")]
Repo = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="REPO")]
Runs = Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN ...")]


@dataclasses.dataclass
class Train:
    """Train an agent. Every field of the configuration is a flag: --total-timesteps 1e6, --seed 3 (see `rljax list ppo`)."""

    config: OptionalConfig = None
    """Name of a preset or an algorithm (see `rljax list`), or path of a TOML file, also one of several phases; not with --resume
    or --fork."""
    run_dir: str | None = None
    """Folder to create for the run; if not given, runs/NAME, with a number appended where that exists."""
    seeds: int | None = None
    """Number of seeds to train in one program: --seed, --seed + 1, ..."""
    resume: str | None = None
    """Folder of a run to continue from its latest checkpoint. Only --total-timesteps may be changed."""
    fork: str | None = None
    """Checkpoint, or folder of a run, to start a new run from. Any field may be changed."""
    init_from: str | None = None
    """Checkpoint, or folder of a run of any algorithm, with whose policy the new run begins, at step 0."""
    or_resume: bool = False
    """Resume the run in --run-dir if it is there already and has this configuration, so that a script can be started again."""
    sync: str | None = None
    """Place for a copy of the run after each checkpoint: s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, or a folder. With --or-resume, a
    run that is only there goes on, too."""
    log: tuple[str, ...] = ()
    """Loggers to use besides metrics.jsonl, separated by spaces or commas: tensorboard, wandb, mlflow, aim."""
    max_minutes: float | None = None
    """Number of minutes after which to save and stop."""
    checkpoint_every: float | None = None
    """Whole number of environment steps between checkpoints (1e5 is fine)."""
    checkpoint_seconds: float | None = 60.0
    """Number of seconds between checkpoints; none saves only at the end and where other options say so."""
    keep: int | None = 3
    """Number of latest checkpoints to keep besides the best one; none keeps all."""
    coordinator: str | None = None
    """Address of process 0 (address:port) in a run of several processes or machines; the same for all of them. With auto, it and
    the two below are found: under Slurm, Open MPI, Kubernetes, on TPU pods."""
    num_processes: int | None = None
    """Number of processes of the run; --num-devices counts the devices of all processes together."""
    process_id: int | None = None
    """Index of this process, from 0; process 0 writes the files and prints."""


@dataclasses.dataclass
class Sweep:
    """Train every combination of the given values of fields, each with several seeds, in as few programs as possible.

    Example: rljax sweep cartpole_ppo --seeds 8 --learning-rate 1e-4 3e-4 1e-3 --ent-coef 0 0.01

    A field with a single value is set to it in all runs."""

    config: OptionalConfig = None
    """Name of a preset or an algorithm (see `rljax list`), or path of a TOML file; not with --resume."""
    seeds: int = 1
    """Number of seeds for each combination: --seed, --seed + 1, ..."""
    search: Literal["grid", "random", "sobol"] = "grid"
    """Search method. random and sobol draw points; there a field may be a range, low:high or low:high:log."""
    samples: Annotated[int | None, Bounds(1, 1_000_000)] = None
    """Number of points that a random or sobol search tries."""
    run_dir: str | None = None
    """Folder to create for results.csv, best.toml and sweep.png; if not given, sweeps/NAME, with a number where that exists."""
    resume: str | None = None
    """Folder of a sweep to continue: train the runs that are not in its results.csv yet."""
    part: str | None = None
    """Train part K of N only (K/N), as one of several jobs; needs --run-dir, the same for all. Started again, it goes on."""
    merge: str | None = None
    """Folder of a sweep in parts: put their results into one table there."""
    max_runs: Annotated[int, Bounds(1, 1_000_000)] = 4096
    """Refuse a sweep of more runs than this."""
    batch_size: Annotated[int | None, Bounds(1, 1_000_000)] = None
    """Largest number of runs in one program; if not given, as many as fit in memory, at most 64 on a CPU."""
    episodes: Annotated[int, Bounds(1, 1_000_000)] = 100
    """Number of episodes to play with the final policy of each run, to rank the runs."""
    parquet: bool = False
    """Write results.parquet as well."""


@dataclasses.dataclass
class Tune:
    """Search for better hyperparameters with Optuna, training a batch of trials at a time in one program.

    Give each field a range (low:high or low:high:log) or a list: --learning-rate 1e-5:1e-2:log --ent-coef 0 0.01. Without any
    such field, the usual ones are searched over wide ranges."""

    config: OptionalConfig = None
    """Name of a preset or an algorithm (see `rljax list`), or path of a TOML file; not with --resume."""
    trials: Annotated[int, Bounds(1, 1_000_000)] = 64
    """Number of trials in the study, including those run by other processes."""
    batch_size: Annotated[int, Bounds(1, 1_000_000)] = 16
    """Number of trials to train at once."""
    seeds: int = 1
    """Number of seeds per trial; a trial's value is the mean over its seeds."""
    episodes: Annotated[int, Bounds(1, 1_000_000)] = 100
    """Number of episodes to play with the final policy of each seed."""
    pruner: Literal["percentile", "median", "halving", "none"] = "percentile"
    """Trials to stop at each tenth: the worst quarter (percentile), the worse half (median), by successive halving, or none."""
    storage: str | None = None
    """Optuna URL (sqlite:///study.db) or path of a journal file; if not given, study.journal in the folder."""
    run_dir: str | None = None
    """Folder to create for trials.csv, best.toml and tune.png; if not given, tunes/NAME, with a number where that exists."""
    resume: str | None = None
    """Folder of a study to continue, also while another process works on it."""


@dataclasses.dataclass
class Saved:
    """Options of every command that loads a trained agent."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of the run or of a packed agent, one of its checkpoints, or zoo:NAME or hub:USER/REPO."""
    checkpoint: str = "latest"
    """Checkpoint to load: latest, best or a number of steps."""
    seed_index: str = "best"
    """Seed to load from a run of several seeds: its index, from 0, or best, the one with the highest rating or evaluation
    (without either, training return) in that checkpoint."""


@dataclasses.dataclass
class Played(Saved):
    """Options of every command that plays episodes with a trained agent."""

    seed: Annotated[int, Bounds(0, 2**32 - 1)] = 0
    """Seed of the episodes' random numbers."""
    sample: Annotated[bool | None, tyro.conf.arg(metavar="| --no-sample")] = None
    """Sample actions instead of taking the most probable one; without --no-sample, always on where the best policy is random, as
    in poker."""


@dataclasses.dataclass
class Eval(Played):
    """Play whole episodes with a trained agent and print its returns."""

    episodes: Annotated[int, Bounds(1, 1_000_000)] = 100
    """Number of episodes to play."""


@dataclasses.dataclass
class Record(Played):
    """Record an agent playing, as a GIF or an MP4."""

    out: str = "agent.gif"
    """File to write: .gif or .mp4."""
    episodes: Annotated[int, Bounds(1, 1000)] = 1
    """Number of episodes to record, one after the other."""
    max_steps: Annotated[int, Bounds(1, 1_000_000)] = 1000
    """Cut an episode off after this many steps; in games these are the moves of all players."""
    fps: Annotated[int | None, Bounds(1, 1000)] = None
    """Frames per second; if not given, 30, or 1 for games in which players take turns. Short episodes are seen better with --fps
    5."""
    against: str | None = None
    """Opponent in a game: a run's folder, random, mcts, a scripted player of the game (workerrush, java:coac), or self; if not
    given, the one that rljax eval takes."""


@dataclasses.dataclass
class Export(Saved):
    """Write the policy as files that run without rljax: with jax.export, as ONNX, with NumPy alone, or as a web page."""

    out: str | None = None
    """Folder to create for jax.export and ONNX; if not given, policy, or none with --numpy, --web or --safetensors."""
    numpy: str | None = None
    """Folder to create for a policy in plain NumPy: a Python file and its weights."""
    web: str | None = None
    """Folder to create for a web page that plays the agent, or lets you play against it; for some environments."""
    safetensors: str | None = None
    """File to write with the weights: .safetensors."""


@dataclasses.dataclass
class Zoo:
    """List the trained agents that come with rljax, or show the card of one. zoo:NAME takes the place of a run's folder.

    Example: rljax play zoo:connect_four_selfplay"""

    name: OptionalName = None
    """Name of an agent."""


@dataclasses.dataclass
class Pack(Saved):
    """Write a trained agent to a folder with only what it needs to act, and a card with its score and checksums."""

    out: str | None = None
    """Folder to create; if not given, agents/NAME."""
    episodes: Annotated[int, Bounds(1, 1_000_000)] = 100
    """Number of episodes by which to score it; training did not see their seed."""


@dataclasses.dataclass(kw_only=True)  # an option without a default comes after inherited ones
class Push(Saved):
    """Write a trained agent to a repository of the Hugging Face Hub, as rljax pack does to a folder."""

    repo: Repo
    """Repository, USER/REPO; it is created if it is not there."""
    private: bool = False
    """Create a private repository."""
    episodes: Annotated[int, Bounds(1, 1_000_000)] = 100
    """Number of episodes by which to score the agent of a run."""


@dataclasses.dataclass
class Pull:
    """Fetch a packed agent from a repository of the Hugging Face Hub. hub:USER/REPO takes the place of a run's folder, too."""

    repo: Repo
    """Repository, USER/REPO."""
    out: str | None = None
    """Folder to create; if not given, agents/REPO."""


@dataclasses.dataclass
class Demo:
    """Record whole episodes of a player as a dataset to learn from, or describe a dataset.

    Example: rljax demo workerrush --env MicroRTS-v0 --against randombiased --episodes 500 --out rushes"""

    player: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PLAYER")]
    """Folder of a run, one of its checkpoints, or a player that needs no training: random, mcts, a scripted player of the game
    (workerrush), or a bot of MicroRTS' Java engine (java:coac). minari:ID imports a dataset of Minari. The folder of a dataset
    alone describes it."""
    out: str | None = None
    """Folder to create for the dataset."""
    episodes: Annotated[int, Bounds(1, 100_000_000)] = 100
    """Number of episodes, or of games, to record."""
    env: str | None = None
    """Environment or game of a player that needs no training; a run is recorded in its own. For Minari, the name to give it."""
    env_params: str = ""
    """Parameters of that environment, as a table: '{map_name = "basesWorkers8x8"}'."""
    against: str = "self"
    """Opponents in a game, separated by commas, who take turns: runs, random, mcts, scripted players; self records all seats.
    A Java bot that is recorded plays only Java bots (java:workerrush)."""
    seat: int | None = None
    """Team that the player takes against opponents; if not given, each in turn."""
    sample: tyro.conf.FlagCreatePairsOff[bool] = False
    """Sample actions from policies instead of taking the most probable one; always on where the best policy is random."""
    simulations: Annotated[int, Bounds(0, 100_000)] = 0
    """Number of positions that agents search before each move of a game; 0 plays their policies without search."""
    openings: Annotated[int, Bounds(0, 1000)] = 0
    """Number of random moves, not recorded, before each game: without any, deterministic players repeat one game."""
    seed: Annotated[int, Bounds(0, 2**32 - 1)] = 0
    """Seed of the episodes' random numbers."""
    num_envs: Annotated[int | None, Bounds(1, 1_000_000)] = None
    """Number of episodes to play at once; if not given, at most 256 (16 of Java bots)."""
    max_steps: Annotated[int, Bounds(1, 100_000_000)] = 27_000
    """Cut an episode after this many steps."""
    resume: bool = False
    """Continue a recording that was stopped; give the same options as before."""


@dataclasses.dataclass
class Opponents:
    """Train a model of opponents on recorded games: a policy with network.opponent_model = FILE sees its latent factors.

    Example: rljax opponents games --observed 3:6 --window 20 --out model.json (rljax demo records the games)"""

    dataset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATASET")]
    """Folder of a dataset (see rljax demo): games as the recorded player saw them."""
    out: str
    """File to create for the model."""
    observed: str = ""
    """Part of an observation that shows the opponent: keys of a dictionary, separated by commas, or a range of the flat
    observation (3:6, the fourth to the sixth number). If not given, the whole observation."""
    window: Annotated[int, Bounds(1, 1000)] = 16
    """Number of last steps that the model sees."""
    latent: Annotated[int, Bounds(1, 1024)] = 4
    """Number of latent factors, which the policy sees."""
    beta: Annotated[float, Bounds(0, 1e6)] = 1.0
    """Weight of the divergence from the prior; a higher one lets fewer factors carry information."""
    iterations: Annotated[int, Bounds(1, 10_000_000)] = 100
    """Number of iterations: each reads 64 steps of 64 streams of episodes, and takes 16 gradient steps."""
    learning_rate: Annotated[float, Bounds(0, 1e6)] = 1e-3
    """Step size of Adam."""
    held_out: Annotated[float, Bounds(0, 0.9)] = 0.1
    """Share of the games that are set apart, on which the loss is measured."""
    seed: Annotated[int, Bounds(0, 2**32 - 1)] = 0
    """Seed of the random numbers."""


@dataclasses.dataclass
class Tournament:
    """Let agents of one game play each other; print ratings with 95 % intervals and draw a heat map of the results."""

    runs: Runs
    """Folders of runs, checkpoints, or zoo:NAME or hub:USER/REPO."""
    include: str = ""
    """Players that need no training, separated by commas: random (rated 1000), mcts (100 simulations per move), scripted players
    of the game; for MicroRTS the bots of its Java engine (coac, workerrush, ...), those that search with milliseconds if wanted
    (droplet:10)."""
    games: Annotated[int, Bounds(1, 1_000_000)] = 100
    """Number of games per pairing, taking turns at the seats. Repeated games count once, unless game or players are random."""
    openings: Annotated[int | None, Bounds(0, 1000)] = None
    """Number of random moves at the start of each game; each opening is played from both seats.
    If not given, the game's own number, but none with --sample or where chance makes games differ."""
    system: Literal["auto", "round-robin", "swiss"] = "auto"
    """Pairing system; auto is swiss for more than 50 pairings, else round-robin."""
    out: str = "tournament.png"
    """File of the heat map: .png, .svg or .pdf."""
    seed: Annotated[int, Bounds(0, 2**32 - 1)] = 0
    """Seed of the games' random numbers."""
    sample: tyro.conf.FlagCreatePairsOff[bool] = False
    """Sample actions instead of taking the most probable one; always on where the best policy is random, as in poker."""
    simulations: Annotated[int, Bounds(0, 100_000)] = 0
    """Number of positions that the runs' agents search before each move; 0 plays the policy without search."""


@dataclasses.dataclass
class Play(Saved):
    """Play a game against a trained agent in the terminal."""

    seat: int = 0
    """Your seat, from 0; the agent takes all others."""
    seed: Annotated[int, Bounds(0, 2**32 - 1)] = 0
    """Seed of the game's random numbers."""
    sample: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let the agent sample its actions; always on where the best policy is random, as in poker."""
    simulations: Annotated[int, Bounds(0, 100_000)] = 0
    """Number of positions that the agent searches before each move; 0 plays the policy without search."""


@dataclasses.dataclass
class Plot:
    """Draw learning curves, a world model's predictions, or the results of a league.

    A curve is the interquartile mean over seeds with a 95 % bootstrap interval, drawn where all of its seeds have values. Runs
    that differ only in their seed are one curve."""

    runs: Runs
    """Folders of runs."""
    kind: Literal["curves", "openloop", "payoffs"] = "curves"
    """Plot to draw. openloop: true and predicted observations of a Dreamer run; payoffs: results between a league's players."""
    out: str | None = None
    """File to write: .png, .svg or .pdf; if not given, KIND.png."""
    metric: str | None = None
    """Metric to draw as curves; if not given, eval/return where all runs have it, else episode/return."""


@dataclasses.dataclass
class Log:
    """Send runs that are there already to loggers: records, configuration, learning curves, pictures and videos.

    Pictures and videos (.png, .gif, .mp4) are those in the run's folder. Sent again, a run is not doubled.

    Example: rljax log runs/* --log tensorboard,mlflow"""

    runs: Runs
    """Folders of runs, also of several phases."""
    log: tuple[str, ...] = ()
    """Loggers to send them to, separated by spaces or commas, at least one of tensorboard, wandb, mlflow, aim."""
    record: bool = False
    """Record an episode of the latest agent first, as RUN/agent.gif."""


@dataclasses.dataclass
class Show:
    """Print a run's configuration, latest and best returns, checkpoints and the learning curve as text."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of the run or of a packed agent, or zoo:NAME or hub:USER/REPO."""


@dataclasses.dataclass
class List:
    """List presets, environments and algorithms, or describe one of them.

    With a name, print the fields of that algorithm, the text of that preset, or a description of that environment."""

    name: OptionalName = None
    """Name of an algorithm, a preset or an environment."""


@dataclasses.dataclass
class Bench:
    """Measure speed on this machine: compile time and run time apart, in turn with a peer. Without a peer there is no ratio. The
    load average is noted, with a warning if other processes were busy."""

    suite: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[SUITE]")] = "ppo"
    """Benchmark to run: ppo, recurrent, dqn, dreamer, league, microrts, launches, simulators, sweep, devices, processes, fit."""
    repeats: Annotated[int, Bounds(1, 1000)] = 5
    """Number of interleaved repeats; medians are reported."""
    json: str | None = None
    """File to write the tables to, as JSON."""


@dataclasses.dataclass
class Compile:
    """Compile a run for a device that need not be there, and print whether it fits, what it starts and what bounds it. Every
    field of the configuration is a flag.

    Example: rljax compile cartpole_ppo --target v5e-16 --num-devices 16 --num-envs 1024"""

    config: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CONFIG")]
    """Name of a preset or an algorithm (see `rljax list`), or path of a TOML file."""
    target: str
    """Device or devices: v5e-1, v5e-16, v5p-64, v6e-8, a100, h100, h200, h200-8; TPUs by their names in Google Cloud."""
    seeds: Annotated[int | None, Bounds(1, 1_000_000)] = None
    """Number of seeds in one program."""
    save: str | None = None
    """File to write the compiled program to, NAME.xla."""
    json: str | None = None
    """File to write the numbers to, as JSON."""


@dataclasses.dataclass
class Launch:
    """Train on a rented machine, or on a cluster, through SkyPilot. Every field of the configuration is a flag.

    Example: rljax launch cartpole_ppo --accelerators H100:1 --max-price 3 --dry-run

    The task file is written first and can be read, changed and launched with `sky launch`, too."""

    config: OptionalConfig = None
    """Name of a preset or an algorithm (see `rljax list`), or path of a TOML file, also one of several phases. It is not given
    with --status, --fetch or --stop."""
    accelerators: str | None = None
    """Accelerators of the machine, NAME:COUNT, by SkyPilot's names: H100:1, A100-80GB:8, tpu-v5e-8."""
    max_price: float | None = None
    """Highest price of the machine, in dollars an hour."""
    cloud: str | None = None
    """Cloud, region or cluster: runpod, aws/us-east-1, kubernetes, slurm/NAME; if not given, the cheapest one."""
    spot: bool = False
    """Take a machine that costs less and may be taken away at any time; the run then goes on on another one. Needs --sync."""
    sync: str | None = None
    """Place for a copy of the run after each checkpoint, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER, which outlives the machine."""
    seeds: Annotated[int | None, Bounds(1, 1_000_000)] = None
    """Number of seeds to train in one program."""
    workdir: str | None = None
    """Folder to copy to the machine, in which the run starts: own environments, and datasets and runs that it learns from."""
    install: str | None = None
    """Wheel of rljax, or address that pip installs it from; if not given, this version from the package index. In an address,
    '${NAME}' is a variable of the environment, such as a token: its value is not written into the task file."""
    run_dir: str | None = None
    """Folder to create for the task file and for the run that is fetched; if not given, launches/NAME, with a number where that
    exists."""
    dry_run: bool = False
    """Write the task file and show offers, but rent nothing."""
    status: str | None = None
    """Folder of a launch of which to print the state."""
    fetch: str | None = None
    """Folder of a launch whose run to copy here, into FOLDER/run, while it trains or afterwards."""
    stop: str | None = None
    """Folder of a launch to fetch and to end: the machine is given back."""


@dataclasses.dataclass
class Reproduce:
    """Measure a published figure again and write its record, results/NAME.json; without a name, list the experiments."""

    name: OptionalName = None
    """Name of an experiment."""
    seeds: Annotated[int | None, Bounds(1, 1_000_000)] = None
    """Number of seeds; if not given, as many as were published."""
    first_seed: Annotated[int, Bounds(0, 2**32 - 1)] = 5000
    """First of the seeds; the presets were tuned on others."""
    budget: float = 1.0
    """Fraction of each configuration's steps to train: 0.1 for a quick look."""
    out: str = "results"
    """Folder for the record."""
    run_dir: str | None = None
    """Folder to keep the trained runs in. If the experiment is started again with it, complete runs are only read, and one that
    was stopped goes on."""
    merge: tuple[str, ...] | None = None
    """Folders with records of the experiment that were measured apart, each with other seeds: measure nothing, and put them into
    one record, which replaces that in --out."""


Command = (
    Train | Sweep | Tune | Eval | Show | Plot | Record | Log | Demo | Opponents | Tournament | Play | Export
    | Zoo | Pack | Push | Pull | Annotated[List, tyro.conf.subcommand("list")] | Bench | Compile | Launch | Reproduce
)  # fmt: skip
