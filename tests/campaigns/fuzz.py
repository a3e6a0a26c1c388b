"""Random and absurd configurations, TOML texts and command lines: each must work or be refused in one line.

    python -m tests.campaigns.fuzz --tries 10000        over ten seeds; its facts are in results/campaigns.json
    python -m tests.campaigns.fuzz --seed 3 --only 17   one case again, with its traceback

Three kinds of cases, all drawn from a seed:

configuration   fields of a random algorithm get random values. Either a ConfigError, or `make_agent` works and so does tracing
                (`jax.eval_shape`) `init` and `step`.
toml            the text of a preset, torn and mixed, is read as a file. Either a ConfigError, or `make_agent` works.
command         `rljax` with random arguments, in a folder with three small runs. What would train, play or draw ends where it
                begins. Else an exit status that is not 0 and one line, on standard error.

A case fails with anything else: another exception, a message of several lines or of more than 2,500 characters, 60 seconds
without an end.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime
import decimal
import fractions
import io
import math
import os
import random
import re
import resource
import sys
import tempfile
import time
import traceback
import typing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from rljax.cli.main import main as rljax_main
from rljax.core.config import ALGORITHMS
from rljax.core.config_files import dump_config, preset_names
from tests.campaigns.campaign import RECORD, Campaign, Hangs, hangs_after, keep_compiled, record

FULL_SIZE = 10_000
"""Cases of the whole campaign."""

SECONDS = 60
"""A case that computes for longer hangs: of the processor's time, so that a busy machine makes no failures."""

LINE = 2500
"""Characters of a message at most."""

MEMORY = 12 * 2**30
"""Bytes of address space that a case may take beyond what the process has at the start."""

KINDS = ("configuration", "toml", "command")
SHARES = (0.5, 0.25, 0.25)


class Outcome(NamedTuple):
    """`result` is "works", "refused" or "failed"; `detail` the message, or the last lines of a traceback."""

    kind: str
    result: str
    detail: str
    case: str
    seconds: float


class Begins(Exception):
    """Where a command would begin to train, play or draw."""


class _Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class _Text(str):
    """A str all the same."""


def _deep(depth: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if kind == "table" else [value]
    return value


PLAIN: list[Callable[[], Any]] = [
    *(
        lambda x=x: x
        for x in (None, True, False, -1, 0, 1, 2, 3, 7, 64, 1000, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 10**12, 10**18)
    ),
    *(
        lambda x=x: x
        for x in (-(10**18), 10**400, 0.5, 1.5, -0.0, 1e-320, 1e-8, 1e38, 1e39, 1e300, math.nan, math.inf, -math.inf)
    ),
    *(
        lambda x=x: x
        for x in ("", "none", "null", "auto", "1e5", "x" * 5000, "ünï\u202e", "\x1b[31mred", "a\nb", "a b", "[1]", "-1")
    ),
    *(lambda x=x: x for x in ([], [1], [1, 1, 1], [math.nan], ["a"], ["a", "a"], [[1]], [0.5, 0.5], [-1], [2**40], [True])),
    lambda: {},
    lambda: {"type": "mlp"},
    lambda: {"": 1},
    lambda: {"a": {"b": [1, {"c": 2}]}},
    lambda: {"x" * 5000: 1},
    lambda: [1] * 3000,
    lambda: _deep(40, "table"),
    lambda: _deep(40, "list"),
    lambda: datetime.date(2020, 1, 1),
]
"""Values that a TOML file can hold."""

STRANGE: list[Callable[[], Any]] = [
    lambda: _deep(2000, "table"),
    lambda: _deep(2000, "list"),
    lambda: 10**5000,
    lambda: (),
    lambda: {1, 2},
    lambda: {1: 2},
    lambda: {"a": 1, 2: 3},
    lambda: b"bytes",
    object,
    _Unprintable,
    lambda: float,
    lambda: len,
    lambda: range(3),
    lambda: (x for x in [1]),
    lambda: Path("."),
    lambda: complex(1, 1),
    lambda: decimal.Decimal("1.5"),
    lambda: fractions.Fraction(1, 2),
    lambda: _Text("relu"),
    lambda: np.int64(3),
    lambda: np.uint8(200),
    lambda: np.float32(0.1),
    lambda: np.float64(1e300),
    lambda: np.bool_(True),
    lambda: np.array(1),
    lambda: np.array([1, 2]),
    lambda: np.zeros((2, 2)),
    lambda: np.array("x"),
    lambda: np.array(["a", "b"]),
    lambda: np.array([], np.float32),
    lambda: np.array([None, object()]),
    lambda: np.array(1 + 1j),
    lambda: np.datetime64("2020-01-01"),
    lambda: jnp.ones(()),
    lambda: jnp.asarray(3),
    lambda: jnp.array(True),
    lambda: jnp.zeros(2),
    lambda: jnp.zeros((2, 3)),
    lambda: jnp.array(jnp.nan),
    lambda: jax.random.key(0),
    lambda: jax.ShapeDtypeStruct((), jnp.float32),
]
"""Values that only Python has."""

NETWORK_KEYS = (
    *(
        "type",
        "hidden",
        "head_hidden",
        "activation",
        "layer_norm",
        "shared",
        "size",
        "blocks",
        "depth",
        "layers",
        "heads",
        "width",
    ),
    *("pointer", "channels", "kernels", "strides", "initializer", "goal", "memory", "window", "embedding", "critic", "encoder"),
)
NETWORK_TYPES = ("mlp", "cnn", "gru", "lstm", "mamba", "transformer", "attention", "deepset", "film", "entities")
# fmt: off
ENV_KEYS = (
    "size", "gravity", "max_steps_in_episode", "length", "capacity", "num_kinds", "pixels", "x_limit", "rows", "noise",
    "self",
)
# fmt: on

# fmt: off
ENVS = (
    "CartPole-v1", "Pendulum-v1", "Acrobot-v1", "GridWorld-v0", "TicTacToe-v0", "ConnectFour-v0", "KuhnPoker-v0",
    "TargetPick-v0", "Composite-v0", "HiddenBit-v0", "TMaze-v0", "Command-v0", "SparseGridWorld-v0", "Catch-bsuite",
    "BiasedRPS-v0", "pgx:tic_tac_toe", "pgx:nope", "gymnax:CartPole-v1", "gymnax:", "Nope-v0", "cartpole", "os:system",
    "object:Thing",
)
# fmt: on

TINY: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "network": {"hidden": [4]}},
    "impala": {"num_envs": 2, "num_steps": 4, "network": {"hidden": [4]}},
    "pqn": {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "network": {"hidden": [4]}},
    "dqn": {"num_envs": 2, "num_steps": 4, "buffer_size": 64, "batch_size": 4, "learning_starts": 8, "network": {"hidden": [4]}},
    "sac": {"num_envs": 2, "num_steps": 4, "buffer_size": 64, "batch_size": 4, "learning_starts": 8, "network": {"hidden": [4]}},
    "dreamer": {"size": "debug", "num_envs": 2, "batch_size": 2, "batch_length": 4, "buffer_size": 200, "learning_starts": 20},
    "self_play": {"num_envs": 16, "num_steps": 9, "network": {"hidden": [4]}},
    "league": {"num_envs": 32, "num_steps": 9, "num_slots": 2, "pool_size": 8, "network": {"hidden": [4]}},
    "alphazero": {"num_envs": 4, "num_steps": 4, "num_simulations": 4, "network": {"hidden": [4]}},
}
"""Small programs trace fast."""

TRACED: set[Any] = set()
"""Structures of configurations that were traced: those that differ in numbers only are one program."""

DRAWN = (*("ppo", "impala", "pqn", "dqn", "sac", "self_play") * 3, "league", "alphazero", "dreamer")
"""How often an algorithm is drawn: those that trace fast more often."""


def configuration(rng: random.Random) -> tuple[str, Callable[[], None]]:
    """A configuration with one to four random values."""
    drawn = [*DRAWN, *(set(ALGORITHMS) - set(DRAWN))]
    config_class = ALGORITHMS[rng.choice(drawn)]
    values = dict(TINY.get(config_class.algorithm, {}))
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    hints = typing.get_type_hints(config_class)
    for _ in range(rng.choice((1, 2, 3, 4, 5))):
        name = rng.choice(list(fields)) if rng.random() < 0.97 else rng.choice(("self", "cls", "lr", "", "class", "x" * 3000))
        values[name] = _value(rng, name, hints.get(name), fields.get(name), PLAIN + STRANGE)
    if rng.random() < 0.02:
        values["num_devices"] = rng.choice((2, 7))

    def run() -> None:
        config = config_class(**values)
        dump_config(config)
        agent = rljax.make_agent(config)
        structure = jax.tree.structure(config)
        if structure not in TRACED:
            jax.eval_shape(lambda key: agent.step(agent.init(key)), jax.random.key(0))
            TRACED.add(structure)

    return f"{config_class.__name__}(**{_printed(values)})", run


def _value(rng: random.Random, name: str, hint: Any, field: Any, pool: list[Callable[[], Any]]) -> Any:
    """Of a field: a value that it may well have, or any from the pool."""
    any_of = lambda: rng.choice(pool)()  # noqa: E731
    if name == "env" and rng.random() < 0.8:
        return rng.choice(ENVS)
    if name == "env_params" and rng.random() < 0.8:
        return {rng.choice(ENV_KEYS): any_of() for _ in range(rng.choice((1, 2)))}
    if name == "network" and rng.random() < 0.9:
        table = {rng.choice(NETWORK_KEYS): any_of() for _ in range(rng.choice((0, 1, 2)))}
        return {"hidden": [4], **({"type": rng.choice(NETWORK_TYPES)} if rng.random() < 0.5 else {}), **table}
    if name == "intrinsic" and rng.random() < 0.8:
        kind = rng.choice(("count", "rnd", "entropy_reduction", "none", any_of()))
        return {"type": kind, rng.choice(("bins", "resolution", "hidden", "features", "learning_rate", "size")): any_of()}
    if rng.random() < 0.65 or field is None:
        return any_of()
    metadata, text = field.metadata, str(hint)
    if metadata.get("choices"):
        return rng.choice((*metadata["choices"], "x"))
    if "bool" in text:
        return rng.random() < 0.5
    if "int" in text:
        return rng.choice((1, 2, 4, 8, 16, 32, 100))
    if "float" in text and "tuple" not in text:
        return rng.choice((0.0, 1e-3, 0.5, 0.9, 1.0, 2.0, np.float32(0.25)))
    return any_of()


def _printed(values: dict[str, Any]) -> str:
    parts = []
    for name, value in values.items():
        try:
            parts.append(f"{name!r}: {value!r}")
        except Exception:
            parts.append(f"{name!r}: <{type(value).__name__}>")
    return "{" + ", ".join(part if len(part) < 300 else part[:297] + "..." for part in parts) + "}"


# fmt: off
PIECES = (
    "[", "]", "{", "}", "=", ".", '"', "'", "#", "\n", "\\", ",", "[[x]]", "nan", "-inf", "1e999", "0x", "1_0", "'''", '"""',
    "\t", "\x00", "é", "2020-01-01", "true", "env", "seed = 1\n", "self = 1\n", "algorithm = 1\n", "9" * 5000, "[" * 2000,
)
# fmt: on


def toml(rng: random.Random) -> tuple[str, Callable[[], None]]:
    """A file with a preset's text, torn; or with a random table."""
    if rng.random() < 0.3:
        depth = rng.choice((3, 40, 2000, 20_000))
        text = rng.choice((
            'algorithm = "ppo"\nnetwork = ' + "[" * depth + "]" * depth,
            'algorithm = "ppo"\nnetwork = ' + "{a=" * depth + "1" + "}" * depth,
            'algorithm = "ppo"\n[network.' + ".".join("a" * min(depth, 2000)) + "]\nb = 1\n",
            'algorithm = "ppo"\nseed = ' + "1" * depth,
            f'algorithm = "{"p" * depth}"\n',
            "algorithm = [\n" + "1,\n" * depth + "]",
            f'algorithm = "{rng.choice(list(ALGORITHMS))}"\n'
            + "".join(f"{rng.choice(('seed', 'num_envs', 'gamma', 'env', 'network'))} = {rng.choice(PIECES)}\n" for _ in "abc"),
        ))  # fmt: skip
    else:
        text = dump_config(rljax.load_config(rng.choice(preset_names())))
        for _ in range(rng.choice((1, 1, 2, 5))):
            at, cut = rng.randrange(len(text)), rng.choice((0, 1, 1, 2, 30))
            piece = rng.choice(PIECES) if rng.random() < 0.7 else chr(rng.choice((9, 32, 48, 65, 255, 0x1F600)))
            if rng.random() < 0.3:  # another number
                at, cut, piece = rng.choice([i for i, c in enumerate(text) if c.isdigit()]), 1, rng.choice("0123456789")
            text = text[:at] + piece + text[at + cut :]
    data = text.encode("utf-8", "replace")
    if rng.random() < 0.1:
        at = rng.randrange(len(data))
        data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fuzz.toml"
            path.write_bytes(data)
            rljax.make_agent(rljax.load_config(path))

    return repr(data if len(data) < 3000 else data[:2000] + b" ... " + data[-500:]), run


# fmt: off
WORDS = (
    "cartpole_ppo", "tictactoe_selfplay", "ppo", "dqn", "a", "b", "nowhere", "a/checkpoints/latest", "a/checkpoints/best",
    "none", "a/checkpoints/step_64", "x" * 300, "x" * 5000, "", ".", "..", "/", "/dev/null", "/proc/self/mem", "ünï",
    "\x1b[31m", "a\nb", "file.toml", "folder.toml", "0", "1", "-1", "3", "1e18", "1000000000000000000", "9" * 5000, "nan",
    "inf", "-inf", "0.5", "1e-320", "[1]", "[" * 3000, "{ a = 1 }", "{", "0:1", "1e-5:1e-2:log", "1:0", "nan:nan",
    "0:1:log:2", "true", "false", "best", "latest", "grid", "sobol", "random", "tensorboard", "agent.gif", "out.png",
    "out.txt", "=", "--", "-h-", "eval/return", "openloop",
)
# fmt: on
# fmt: off
FLAGS = (
    "--seed", "--seeds", "--run-dir", "--resume", "--fork", "--log", "--max-minutes", "--checkpoint-every",
    "--checkpoint-seconds", "--keep", "--num-processes", "--process-id", "--search", "--samples", "--max-runs",
    "--batch-size", "--episodes", "--parquet", "--trials", "--pruner", "--storage", "--checkpoint", "--seed-index",
    "--sample", "--out", "--max-steps", "--fps", "--include", "--games", "--openings", "--system", "--simulations", "--seat",
    "--kind", "--metric", "--repeats", "--json", "--learning-rate", "--gamma", "--env", "--network.hidden", "--network",
    "--network.", "--.a", "--a..b", "--total-timesteps", "--num-envs", "--self", "--time-limit", "---", "--=",
    "--learning-rat", "--episode", "-x", "--version", "--budget", "--first-seed",
)
# fmt: on
# fmt: off
COMMANDS = (
    "train", "sweep", "tune", "eval", "show", "plot", "record", "tournament", "play", "export", "list", "bench", "reproduce",
)
# fmt: on


def command(rng: random.Random) -> tuple[str, Callable[[], None]]:
    """A command line, run in this process."""
    name = rng.choice(COMMANDS) if rng.random() < 0.95 else rng.choice(WORDS)
    arguments = [name]
    if rng.random() < 0.8:
        arguments.append(
            rng.choice(("cartpole_ppo", "ppo", "b", *WORDS) if name in ("train", "sweep", "tune") else ("a", "b", "c", *WORDS))
        )
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        arguments.append(rng.choice(FLAGS))
        if rng.random() < 0.9:
            arguments.append(rng.choice(WORDS))
    # A coordinator would be waited for, and what is made must not be in the way of the next case.
    if name in ("train", "sweep", "tune") and "--run-dir" not in arguments:
        arguments += ["--run-dir", f"made-{rng.randrange(10**9)}"]

    def run() -> None:
        errors, output = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
                rljax_main(arguments)
        except SystemExit as stop:
            said = errors.getvalue()
            if not stop.code:
                return
            if stop.code not in (1, 2) or not said.startswith("rljax: ") or "Traceback" in said:
                raise AssertionError(f"status {stop.code}, standard error {said[-1500:]!r}") from None
            lines = [line for line in said.splitlines() if not line.startswith("rljax: warning: ")]
            if len(lines) != 1:
                raise AssertionError(f"{len(lines)} lines: {said[-1500:]!r}") from None
            raise rljax.ConfigError(lines[0]) from None

    return f"rljax {arguments!r}", run


BEGINNINGS = (
    "rljax.fit",
    "rljax.run.search.sweep.run_sweep",
    "rljax.run.search.tune.Programs",
    "rljax.run.view.record.record",
    "rljax.run.view.tournament.tournament",
    "rljax.run.view.play.play",
    "rljax.run.export.policy.export_policy",
    "rljax.run.view.plot.plot",
    "rljax.cli.train._report",
    "rljax.cli.measure.reproduce",
)
"""What trains, plays or draws."""


@contextlib.contextmanager
def workplace(trained: bool = True) -> Iterator[None]:
    """A folder with three small runs, where commands end as they begin to work; without the runs, unless `trained`."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.ExitStack() as stack:
        if trained:
            _train()
        Path("folder.toml").mkdir()
        Path("file.toml").write_text('algorithm = "ppo"\nenv = "CartPole-v1"\n')
        for name in rljax.__all__:
            getattr(rljax, name)  # what is imported late would otherwise be kept as the mock
        for name in BEGINNINGS:
            stack.enter_context(mock.patch(name, side_effect=Begins))
        suites = dict.fromkeys(("ppo", "dqn"), mock.Mock(side_effect=Begins))
        stack.enter_context(mock.patch("rljax.run.bench.suites.SUITES", suites))
        yield


def _train() -> None:
    small = {"total_timesteps": 64, "num_envs": 4, "num_steps": 16, "network": {"hidden": [4]}}
    rljax.fit(rljax.PPOConfig(**small, num_minibatches=2), run_dir="a")
    rljax.fit(rljax.PPOConfig(**small, num_minibatches=2), run_dir="b", seeds=2)
    game = rljax.SelfPlayConfig(num_envs=4, num_steps=9, total_timesteps=36, num_minibatches=1, network={"hidden": [4]})
    rljax.fit(game, run_dir="c")


MAKERS = {"configuration": configuration, "toml": toml, "command": command}


def case(seed: int, index: int) -> tuple[str, str, Callable[[], None]]:
    """`(kind, description, run)` of case `index` of a seed; it depends on nothing else."""
    rng = random.Random(f"{seed}/{index}")
    kind = rng.choices(KINDS, SHARES)[0]
    return kind, *MAKERS[kind](rng)


def outcome(seed: int, index: int) -> Outcome:
    """Run a case."""
    kind, described, run = case(seed, index)
    started = time.perf_counter()
    try:
        with hangs_after(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run()
        result, detail = "works", ""
    except Begins:
        result, detail = "works", "begins"
    except rljax.ConfigError as error:
        detail = str(error)
        result = "refused" if detail and "\n" not in detail and len(detail) <= LINE else "failed"
    except Hangs:
        result, detail = "failed", f"longer than {SECONDS} s\n" + "".join(traceback.format_exc()[-2500:])
    except Exception:
        result, detail = "failed", traceback.format_exc()[-2500:]
    return Outcome(kind, result, detail, described, time.perf_counter() - started)


def cases(seed: int, count: int, told: Callable[[int, Outcome], None] = lambda *_: None, trained: bool = True) -> list[Outcome]:
    """The first `count` cases of a seed."""
    outcomes = []
    with workplace(trained):
        for index in range(count):
            outcomes.append(outcome(seed, index))
            told(index, outcomes[-1])
            if index % 200 == 199:
                jax.clear_caches()  # traces of so many programs
    return outcomes


def fingerprint(detail: str) -> str:
    """What failures of one cause have in common."""
    files = re.findall(r'File "[^"]*?/((?:rljax|envs)/[^"]*)", line (\d+)', detail)
    last = detail.strip().splitlines()[-1][:120] if detail.strip() else ""
    return f"{':'.join(files[-1]) if files else '-'} {last}"


def noted(whole: Campaign, seed: int, index: int, found: Outcome) -> bool:
    """Count a case; whether it failed as none before it has."""
    whole.tries += 1
    whole.counts[f"{found.kind}: {found.result}"] += 1
    whole.slowest = max(whole.slowest, found.seconds)
    if found.result != "failed":
        return False
    cause = fingerprint(found.detail)
    causes = whole.more.setdefault("causes", {})
    causes[cause] = causes.get(cause, 0) + 1
    whole.failures.append(f"fuzz --seed {seed} --only {index}: {found.kind}: {cause}")
    return bool(causes[cause] == 1)


def run(tries: int, first_seed: int, seeds: int, path: Path) -> Campaign:
    """The campaign, as many cases of each seed; recorded after every seed: one that is stopped leaves those that it finished."""
    whole = Campaign("fuzz", first_seed, FULL_SIZE, ["--seeds", str(seeds)])
    for seed in range(first_seed, first_seed + seeds):

        def told(index: int, found: Outcome, seed: int = seed) -> None:
            if noted(whole, seed, index, found):
                print(f"seed {seed} case {index}: {found.kind} {found.case[:600]}\n{found.detail}\n", flush=True)

        cases(seed, tries // seeds, told)
        whole.options = ["--seeds", str(seed + 1 - first_seed)]
        whole.drawn = seed + 1 - first_seed
        whole.more["most_memory_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        record(whole, path, {})
        print(f"seed {seed}: {whole.tries} cases so far, {dict(whole.counts)}", flush=True)
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=FULL_SIZE, help="cases in all")
    parser.add_argument("--seeds", type=int, default=10, help="seeds that they are drawn from")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--only", type=int, help="this case of the first seed alone")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    keep_compiled()
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limit))
    if options.only is not None:
        with workplace():
            found = outcome(options.seed, options.only)
        print(f"{found.kind}: {found.case}\n{found.result} after {found.seconds:.2f} s: {found.detail}")
        return
    path = options.record.resolve()  # cases run in folders of their own
    whole = run(options.tries, options.seed, options.seeds, path)
    for cause, times in collections.Counter(whole.more.get("causes", {})).most_common():
        print(f"{times:5} {cause}")
    print(f"{len(whole.failures)} of {whole.tries} failed; {path}")
    sys.exit(1 if whole.failures else 0)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
