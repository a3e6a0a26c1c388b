"""Write the tables of README.md and docs/ from the records in this folder: `python results/tables.py`.

A table stands between `<!-- results: NAME -->` and `<!-- end -->`, and is made anew each time; nothing else of the file changes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PAGES = (FOLDER.parent / "README.md", *sorted((FOLDER.parent / "docs").rglob("*.md")))
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Record = dict[str, Any]
Row = list[str]


def record_of(name: str) -> Record | None:
    """A record that may be published, None where there is none.

    Raises:
        ValueError: it is of a part of the budget, or of another experiment.
    """
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return None
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    if record["name"] != name or record["budget"] != 1:
        raise ValueError(f"{path}: a record of {record['name']} with {record['budget']} of the budget")
    return record


def steps(record: Record, arm: str | None = None) -> str:
    configs = record["configs"]
    return f"{configs[arm or next(iter(configs))]['total_timesteps']:,}"


def minutes(record: Record) -> str:
    """Minutes of the run; unknown if it took several calls."""
    return "-" if "parts" in record or "kept" in record else f"{record['seconds']['run'] / 60:.0f}"


def span(summary: dict[str, float], digits: int) -> str:
    """Mean, and from the least to the most of the seeds."""
    # Rounded first, and 0 added, so that there is no -0.00.
    low, mean, high = (f"{round(summary[name], digits) + 0.0:.{digits}f}" for name in ("min", "mean", "max"))
    return mean if low == high else f"{mean} ({low} to {high})"


def percents(shares: list[float]) -> str:
    """Shares in whole percents."""
    return ", ".join(f"{100 * share:.0f}" for share in shares)


def solved(record: Record, name: str = "return") -> str:
    return f"{record['summary'][name]['solved']} of {len(record['seeds'])}"


def figures(record: Record, names: dict[str, str], digits: int) -> str:
    """Several measures in one cell."""
    return "; ".join(f"{label} {span(record['summary'][name], digits)}" for name, label in names.items())


# Rows of a preset


def learned(record: Record) -> list[Row]:
    found = record["summary"]["return"]
    cells = record["summary"].get("share of cells with an optimal move")
    how = f"{solved(record)} at {record['thresholds']['return']:g}"
    how += f"; {cells['solved']} optimal from every cell" if cells else ""
    held = record["summary"].get("least in the last fifth")
    how += f"; held by {held['solved']} in the last fifth" if held else ""
    digits = 3 if abs(record["thresholds"]["return"]) < 1 else 1
    return [[f"`{record['name']}`", steps(record), how, f"{found['mean']:.{digits}f}", f"{found['min']:.{digits}f}"]]


def dreamed(record: Record) -> list[Row]:
    found, digits = record["summary"]["return"], 3 if "gridworld" in record["name"] else 1
    at = record["facts"]["evaluated at"]
    curve = [[-1e9 if x is None else x for x in seed] for seed in record["raw"]["curve"]]
    worst = [min(column) for column in zip(*curve, strict=True)]
    ways = ", ".join(f"{value:.{digits}f} at {step:,}" for step, value in zip(at[-3:], worst[-3:], strict=True))
    how = f"{solved(record)} at {record['thresholds']['return']:g}" if record["thresholds"] else ""
    count = len(record["seeds"])
    return [[f"`{record['name']}`, {count} seeds", steps(record), how, span(found, digits), ways, minutes(record)]]


def first_reached(record: Record) -> list[Row]:
    rows = []
    for preset in record["configs"]:
        when, returns = record["summary"][f"{preset}: steps"], record["summary"][f"{preset}: return"]
        known, seeds = when.get("known", len(record["seeds"])), len(record["seeds"])
        compiling, running = record["facts"]["seconds of one seed"][preset]
        rows.append(
            [
                f"`{preset}`",
                f"{when['median']:,.0f}, {when['max']:,.0f}",
                f"{known} of {seeds}",
                f"{returns['solved']} of {seeds}",
                f"{returns['mean']:.1f}, {returns['min']:.1f}",
                f"{compiling:.1f}",
                f"{running:.2f}",
            ]
        )
    return rows


# Rows of a feature and its control


def feature(title: str, with_it: dict[str, str], without: dict[str, str], digits: int = 2) -> Callable[[Record], list[Row]]:
    def rows(record: Record) -> list[Row]:
        seeds = f"{title}, {len(record['seeds'])} seeds"
        return [[seeds, steps(record), figures(record, with_it, digits), figures(record, without, digits)]]

    return rows


def memory(record: Record) -> list[Row]:
    def row(title: str, arms: Sequence[str], control: str) -> Row:
        found = "; ".join(f"{arm.split(', ')[1]} {span(record['summary'][arm], 2)}" for arm in arms)
        return [title, steps(record, arms[0]), found, span(record["summary"][control], 2)]

    return [
        row("memory, T-maze", ["T-maze, gru", "T-maze, lstm", "T-maze, block_gru"], "T-maze, mlp"),
        row("memory, `memory_chain_ppo_gru` (gymnax)", ["memory chain, gru"], "memory chain, mlp"),
    ]


def composite(record: Record) -> list[Row]:
    best, alone = (record["facts"][name] for name in ("best return", "best return of independent heads"))
    heads, control = (span(record["summary"][name], 2) for name in ("autoregressive", "independent"))
    title = "auto-regressive heads, `composite_ppo`: sampled return"
    return [[title, steps(record), f"{heads}; the best is {best:.2f}", f"{control}; independent heads reach {alone:.2f} at best"]]


def exploration(record: Record) -> list[Row]:
    count, rnd, none = (solved(record, name) for name in ("count", "rnd", "none"))
    title = "bonus, `sparse_gridworld_ppo_count` and `_rnd`: seeds that find the goal"
    return [[title, steps(record), f"counts {count}; RND {rnd}", none]]


def curricula(record: Record) -> list[Row]:
    """Seeds at the end, and when the median seed first found the goal, of those that did."""

    def cell(name: str) -> str:
        first = record["summary"][f"{name}: steps"].get("median")
        found = solved(record, f"{name}: return")
        return found if first is None else f"{found}, first after {first:,.0f} steps (median)"

    rules = "; ".join(f"{name} {cell(name)}" for name in ("success", "uniform", "plr"))
    title = "curriculum of starts, `SparseGridWorld-v0`: seeds that find the goal from afar"
    return [[title, steps(record), rules, cell("none")]]


def scouting(record: Record) -> list[Row]:
    """A row for each case: where looks pay, where they tell nothing of use, and where they cost too much."""
    rows, summary, facts = [], record["summary"], record["facts"]
    for name in dict.fromkeys(measure.rpartition(": ")[0] for measure in summary):
        looks, returns = (span(summary[f"{name}: {what}"], 2) for what in ("looks", "return"))
        best = f"{facts[f'{name}: looks of the best play']:.2f}; {facts[f'{name}: best return']:.2f}"
        rows.append([name, steps(record, name), looks, returns, best])
    return rows


def randomization(record: Record) -> list[Row]:
    """A row for each length of the pole, with the returns of both arms."""
    summary = record["summary"]
    lengths = [name.removeprefix("plain: half length ") for name in summary if name.startswith("plain: ")]
    arms = ("plain", "randomized")
    return [
        [length, *(span(summary[f"{arm}: half length {length}"], 0) for arm in arms), steps(record, "plain")]
        for length in lengths
    ]


def opponent_models(record: Record) -> list[Row]:
    summary = record["summary"]
    one, four = (
        f"{span(summary[f'beta {beta}: share that a linear probe names'], 2)} at beta {beta} "
        f"({span(summary[f'beta {beta}: divergence in nats'], 2)} nats)"
        for beta in (1, 4)
    )
    instead = {f"return with {seen}": seen for seen in ("z = 0", "z of another game")}
    others = {f"return, {name}": name for name in ("without a model", "a GRU instead")}
    return [
        ["linear probe on z: share of games in which it names the opponent", "-", f"{one}; {four}", f"{1 / 3:.2f} by chance"],
        ["return of a policy that sees z", steps(record), span(summary["return with z"], 2),
         figures(record, instead | others, 2)],
    ]  # fmt: skip


def critics(record: Record) -> list[Row]:
    steps_of = lambda name: f"{record['summary'][f'{name}: steps']['median']:,.0f}"  # noqa: E731
    explained = lambda name: f"{record['summary'][f'{name}: explained variance']['median']:.2f}"  # noqa: E731
    told = "explains {} of the variance; return 7 after {} steps (medians)"
    return [
        [
            "privileged critic, `hidden_bit_ppo`",
            steps(record),
            *(told.format(explained(f"{name} critic"), steps_of(f"{name} critic")) for name in ("privileged", "public")),
        ],
        [
            "value heads, `hidden_bit_ppo_heads`, no privileged critic",
            steps(record),
            *(f"return 7 after {steps_of(name)} steps (median)" for name in ("two value heads", "one value head")),
        ],
    ]


def command(record: Record) -> list[Row]:
    own, others = (span(record["summary"][f"{who} command: {what}"], 3) for who, what in
                   (("its own", "R2"), ("another's", "squared correlation")))  # fmt: skip
    title = "goal, `command_ppo`: R2 of achieved against commanded"
    return [[title, steps(record), own, f"told another's command: squared correlation {others}"]]


def entities(record: Record) -> list[Row]:
    arms = [
        f"{span(record['summary'][f'{name}, 2 to 6 targets'], 2)} on 2 to 6 targets, "
        f"{span(record['summary'][f'{name}, 8 to 12 targets'], 2)} on 8 to 12"
        for name in ("transformer", "MLP")
    ]
    title = "transformer and pointer, `target_pick_ppo`: right picks of 8"
    return [[title, steps(record), arms[0], f"MLP with three times the steps: {arms[1]}"]]


def game_features(record: Record) -> list[Row]:
    summary = record["summary"]

    def row(title: str, with_it: str, without: str, found: Callable[[str], str] = lambda arm: span(summary[arm], 2)) -> Row:
        arm = next(name for name in record["configs"] if with_it.startswith(name))
        return [title, steps(record, arm), found(with_it), found(without)]

    seeds = lambda arm: solved(record, arm)  # noqa: E731
    median = lambda arm: f"return 7 after {summary[arm]['median']:,.0f} steps (median)"  # noqa: E731
    return [
        row("memory, T-maze, players take turns", "T-maze, gru, in turns", "T-maze, mlp, in turns"),
        row("memory, T-maze, all move at once", "T-maze, gru, at once", "T-maze, mlp, at once"),
        row("frames of the last 9 moves, T-maze, players take turns", "T-maze, frames, in turns", "T-maze, mlp, in turns"),
        row("frames of the last 9 moves, T-maze, all move at once", "T-maze, frames, at once", "T-maze, mlp, at once"),
        row("auto-regressive heads: sampled return", "autoregressive", "independent"),
        row("transformer and pointer: right picks of 8", "pointer", "picking MLP"),
        row("bonus of counts: seeds that find the goal", "count", "no bonus", seeds),
        row("random network distillation: seeds that find the goal", "rnd", "no bonus", seeds),
        row("bonus for information: looks at a hidden plan", "bonus for information: looks", "no bonus for information: looks"),
        row("privileged critic", "privileged critic: steps", "public critic: steps", median),
        row("two value heads, no privileged critic", "two value heads: steps", "public critic: steps", median),
    ]


# Rows of a game


def of_game(record: Record, found: str, beside: str) -> list[Row]:
    return [[f"`{record['name']}`", steps(record), str(len(record["seeds"])), found, beside]]


def heavy_box(record: Record) -> list[Row]:
    beside = "with an idle partner 0 at best, by enumeration; 1 is the best return of two"
    return of_game(record, f"return {span(record['summary']['return'], 3)}, solved by {solved(record)}", beside)


def biased_rps(record: Record) -> list[Row]:
    summary = record["summary"]
    parts = {"last": "last policy", "average": "pool's average", "meta_nash": "its equilibrium"}
    found = "; ".join(f"{label} {span(summary[f'league: exploitability, {name}'], 3)}" for name, label in parts.items())
    arms = ("self-play", "self-play with the league's entropy bonus", "uniform pool")
    beside = "; ".join(f"{arm} {span(summary[f'{arm}: exploitability, last'], 3)}" for arm in arms)
    return of_game(record, f"exploitability: {found}", beside)


GAME_VALUES = {"kuhn_league": -1 / 18, "leduc_league": -0.0856}
"""To the first player, by linear programming (OpenSpiel)."""


def poker(record: Record) -> list[Row]:
    summary, name = record["summary"], record["name"]
    twice = {}
    for part in ("average", "last", "averaged"):
        if f"{name}: exploitability, {part}" not in summary:
            continue  # a run without averaged parameters
        twice[part] = {key: 2 * value for key, value in summary[f"{name}: exploitability, {part}"].items()}
    found = f"NashConv: pool's average {span(twice['average'], 3)}, last policy {span(twice['last'], 3)}"
    if "averaged" in twice:
        found += f", averaged parameters {span(twice['averaged'], 3)}"
    value = f"value {span(summary[f'{name}: value, average'], 3)}, the game's {GAME_VALUES[name]:.3f}"
    return of_game(record, f"{found}; {value}", f"uniform play {record['facts']['NashConv of uniform play']:.2f}")


def tictactoe(record: Record) -> list[Row]:
    found = "; ".join(f"{name}: at most {max(values):g}" for name, values in record["raw"].items())
    return of_game(record, f"against a perfect player, {found}", "")


def normalisation(record: Record) -> list[Row]:
    lost = {name.split(": ")[0]: span(values, 0) for name, values in record["summary"].items()}
    sizes = dict.fromkeys(arm.rsplit(", ", 1)[0] for arm in lost)
    return [[size, steps(record), lost[f"{size}, as they come"], lost[f"{size}, normalised"]] for size in sizes]


def number_duel(record: Record) -> list[Row]:
    won = {arm: span(record["summary"][f"{arm}: won from it"], 2) for arm in
           ("league", "self-play", "self-play with the league's entropy bonus")}  # fmt: skip
    beside = "; ".join(f"from {arm} {value}" for arm, value in won.items() if arm != "league")
    return of_game(record, f"a fresh PPO learns to win {won['league']} a game from it, of 5", beside)


def kuhn_of_three(record: Record) -> list[Row]:
    won = {when: span(record["summary"][f"{when}: won from two copies"], 2) for when in ("trained", "untrained")}
    return of_game(record, f"a fresh PPO learns to win {won['trained']} a game from two copies", f"untrained {won['untrained']}")


def backgammon(record: Record) -> list[Row]:
    won, points = (
        {name: span(record["summary"][f"{name}: {what}"], 2) for name in BACKGAMMON} for what in ("won", "points a game")
    )
    search, policy = BACKGAMMON
    return of_game(
        record,
        f"search of 64 against its policy: won {won[search]}, {points[search]} points a game",
        f"the policy against random play: won {won[policy]}, {points[policy]} points a game",
    )


BACKGAMMON = ("search of 64 against its policy", "policy against random play")


def territory(record: Record) -> list[Row]:
    found = "; ".join(f"{name.removeprefix('lead over ')} {span(s, 1)}" for name, s in record["summary"].items())
    beside = "; ".join(f"{name} {value:.1f}" for name, value in record["facts"].items())
    return of_game(record, f"mean lead in cells of 49, over players that are: {found}", beside)


def connect_four(record: Record) -> list[Row]:
    share = lambda name: f"{100 * record['summary'][name]['mean']:.1f} %"  # noqa: E731
    found = "; ".join(f"{name} {share(name)}" for name in record["summary"] if ": won" in name)
    lost = lambda when: share(f"{when}: moves that lose value, all")  # noqa: E731
    known = "trained: moves that lose value, all" in record["summary"]
    beside = f"{lost('trained')} of its moves in 300 solved positions lose value, untrained {lost('untrained')}" if known else ""
    took = "" if minutes(record) == "-" else f"; {minutes(record)} minutes"
    return of_game(record, found, f"{beside}{took}")


def against_bots(record: Record) -> list[Row]:
    """A row for each bot: games won, drawn and lost from both seats by all seeds together, and the share that were won,
    with the least and the greatest of a seed."""
    trained = sum(config["total_timesteps"] for config in record["configs"].values() if config["algorithm"] != "bc")
    seeds, rows = len(record["seeds"]), []
    for measure in (name for name in record["summary"] if ": share of " in name):
        bot, games = measure.split(": share of ")
        counts = (record["raw"][f"{bot}: won, drawn and lost as player {seat}"] for seat in (0, 1))
        seats = ["-".join(str(sum(of_all)) for of_all in zip(*of_seat, strict=True)) for of_seat in counts]
        share = span({name: 100 * x for name, x in record["summary"][measure].items()}, 0)
        rows.append(
            [
                f"`{record['name']}`",
                f"{trained:,}",
                str(seeds),
                f"`{bot}`",
                *seats,
                f"{share} % of {seeds * int(games.split()[0])}",
            ]
        )
    return rows


def won_in_training(record: Record) -> list[Row]:
    """A row for each seed: its share of games won against scripted players, in equal parts of training."""
    measure = next(name for name in record["raw"] if "in training" in name)
    trained = steps(record, list(record["configs"])[-1])
    return [
        [f"`{record['name']}`, seed {seed}", trained, percents(shares)]
        for seed, shares in zip(record["seeds"], record["raw"][measure], strict=True)
    ]


def fog(record: Record) -> list[Row]:
    """A row for each network and seed: games won against scripted players in training, and the match with the other network."""
    first, second = record["configs"]
    match = [record["raw"][next(name for name in record["raw"] if f": {how} of" in name)] for how in ("won", "drawn", "lost")]
    rows = []
    for arm, counts in ((first, match), (second, match[::-1])):
        curve = next(name for name in record["raw"] if name.startswith(f"{arm}: share"))
        for number, seed in enumerate(record["seeds"]):
            shares = percents(record["raw"][curve][number])
            rows.append([f"{arm}, seed {seed}", steps(record, arm), shares, "-".join(str(count[number]) for count in counts)])
    return rows


def breakout(record: Record) -> list[Row]:
    found, count = record["summary"], len(record["seeds"])
    return [[f"`breakout_pqn`, {count} seeds", steps(record), span(found["return"], 1), span(found["at random"], 2)]]


def of_suite(record: Record) -> list[Row]:
    """A row of an environment of another suite: returns of 100 episodes."""
    found, config = record["summary"], next(iter(record["configs"].values()))
    digits = 2 if found["return"]["max"] <= 10 else 0
    greedy = span(found["return"], digits)
    greedy += f", {solved(record)} at {record['thresholds']['return']:g}" if record["thresholds"] else ""
    greedy += f"; battles won {span({name: 100 * x for name, x in found['won'].items()}, 0)} %" if "won" in found else ""
    env = ", ".join([f"`{config['env']}`", *map(str, config["env_params"].values())])
    cells = [config["algorithm"], steps(record), str(len(record["seeds"]))]
    sampled, at_random = (span(found[how], digits) for how in ("sampled", "at random"))
    if "control: return" not in found:
        return [[env, *cells, greedy, sampled, at_random, minutes(record)]]
    control = (span(found[f"control: {how}"], digits) for how in ("return", "sampled"))
    return [
        [f"{env}, with `shaped_reward`", *cells, greedy, sampled, at_random, f"{minutes(record)} for both"],
        [f"{env}, without", *cells, *control, at_random, ""],
    ]


def brax_ppo(record: Record) -> list[Row]:
    """A row for each library: returns of 100 episodes, and steps per second."""
    summary = record["summary"]
    env = next(iter(record["configs"].values()))["env"]
    return [
        [f"`{env}`, {name}", steps(record), str(len(record["seeds"])),
         span(summary[f"{name}: return"], 0), span(summary[f"{name}: steps per second"], 0)]
        for name in ("rljax", "Brax")
    ]  # fmt: skip


def craftax_resets(record: Record) -> list[Row]:
    """A row for each kind of resets: steps per second, the median and each run, and how often that is the speed of `each`."""
    rows, facts = [], record["facts"]
    for kind, config in record["configs"].items():
        speeds = sorted(config["total_timesteps"] / seconds for seconds in facts[f"{kind}: seconds of each run"])
        median = facts[f"{kind}: steps per second"]
        times = median / facts["each: steps per second"]
        compiling = f"{facts[f'{kind}: seconds to compile']:.0f}"
        rows.append([f"`{kind}`", f"{median:,.0f} [{speeds[0]:,.0f}, {speeds[-1]:,.0f}]", f"{times:.1f}", compiling])
    return rows


def lag(record: Record) -> list[Row]:
    return [
        [arm, steps(record, arm), f"{solved(record, arm)} at {record['thresholds'][arm]:g}", span(record["summary"][arm], 1)]
        for arm in ("V-trace", "no correction")
    ]


def tuned(record: Record) -> list[Row]:
    return [
        [arm, steps(record, arm), f"{found['mean']:.1f}", f"{found['median']:.1f}", f"{found['min']:.1f}"]
        for arm, found in record["summary"].items()
    ]


# Rows of imitation


def distilled(record: Record) -> list[Row]:
    """A row for each teacher: 95 % is counted over the seeds whose teacher has learned something."""
    rows, summary = [], record["summary"]
    for measure, share in summary.items():
        name, _, what = measure.rpartition(": ")
        if what != "student's share":
            continue
        of = name.split(",")[0]
        own, its = record["facts"][f"{of}: parameters of student and teacher"]
        student, teacher = (span(summary[f"{name}: {who}"], 2) for who in ("student", "teacher"))
        other = summary.get(f"{name}: the other teacher")
        rows.append(
            [
                name if other else f"`{name}`",
                f"{own:,} of {its:,}",
                steps(record, f"{of}, student"),
                student,
                f"{teacher}; the other teacher {span(other, 2)}" if other else teacher,
                f"{share['solved']} of {share.get('known', len(record['seeds']))}",
            ]
        )
    return rows


def cspl(record: Record) -> list[Row]:
    """A row for each team: points of its specialist, the student, its reinforcement and the run from scratch."""
    summary = record["summary"]
    teams = [name.split(", ")[1].split(": ")[0] for name in summary if name.startswith("student, ") and name.endswith(": points")]

    def cell(name: str) -> str:
        return span(summary[name], 2) if name in summary else "-"

    arms = ("student", "reinforced", "from scratch")
    return [[team, cell(f"specialist, {team}: points"), *(cell(f"{arm}, {team}: points") for arm in arms)] for team in teams]


def microrts_clone(record: Record) -> list[Row]:
    """A row for each opponent, for all of them, and for the accuracy of the clone's orders."""
    summary, facts = record["summary"], record["facts"]
    arms = ("clone", "PPO from the clone", "PPO from scratch")
    rows = []
    for name in summary:
        if not name.startswith("clone against "):
            continue
        against = name.removeprefix("clone ")
        teacher = next(value for fact, value in facts.items() if fact.endswith(against) and not fact.startswith(arms))
        rows.append([against.split(":")[0], f"{teacher:.2f}", *(span(summary[f"{arm} {against}"], 2) for arm in arms)])
    shares = (span(summary[f"{arm}: share of games won, of its teacher's"], 2) for arm in arms)
    accuracy = "held-out accuracy of orders"
    kinds = [name.removeprefix(f"{accuracy}, ") for name in summary if name.startswith(f"{accuracy}, ")]
    by_kind = figures(record, {f"{accuracy}, {kind}": kind for kind in kinds}, 2)
    return [
        *rows,
        ["all games, as a share of the script's", "1.00", *shares],
        ["held-out orders that are the script's", "-", f"{span(summary[accuracy], 3)}: {by_kind}", "-", "-"],
    ]


def parity(record: Record) -> list[Row]:
    """A row for each map and kind of play."""
    rows = []
    for name, facts in record["facts"].items():
        map_name, kind = name.split(": ")
        counts = [f"{facts[what]:,}" for what in ("positions", "orders", "states that differ", "legal orders that differ")]
        rows.append([map_name, kind, *counts, f"{facts['joint conflicts']:,}; {facts['joint conflicts that differ']:,}"])
    return rows


def large_data(record: Record) -> list[Row]:
    facts, summary = record["facts"], record["summary"]
    half, end = (summary[f"resident megabytes {when}"]["mean"] for when in ("at half of the run", "at the end"))
    waited = summary["share of time waiting for data"]["mean"]
    times = facts["bytes of the dataset, of the budget"]
    return [[f"{facts['steps of the dataset']:,}", f"{times:.1f} times", f"{half:,.1f}, {end:,.1f}", f"{100 * waited:.1f} %"]]


def branching(record: Record) -> list[Row]:
    """A row for each way to begin an exploiter."""
    rows = []
    for name, title in (("branch", "a branch of the main agent"), ("anew", "anew")):
        first, share = (record["summary"][f"{name}: {what}"] for what in ("steps to a share of 0.7", "share at the end"))
        worst = f"{first['max']:,.0f}" if "known" not in first else "never"
        rows.append([title, steps(record, "exploiter"), f"{first['median']:,.0f}, {worst}", span(share, 2)])
    return rows


def offline(record: Record) -> list[Row]:
    """A row for each algorithm and task: after the dataset alone, and over the steps in the environment that follow."""
    rows, summary = [], record["summary"]
    for name in dict.fromkeys(measure.split(": ")[0] for measure in summary):
        if name.endswith((" online", " from scratch")):
            continue
        task, _, algorithm = name.partition(", ")
        digits = 0 if task == "Pendulum" else 2
        cells = [f"{task}, {algorithm}", span(summary[name], digits)]
        for arm in ("online", "from scratch"):
            found = [summary.get(f"{name} {arm}: {when}") for when in ("mean of evaluations", "last evaluation")]
            cells += ["; ".join(span(each, digits) for each in found if each) or "-"]
        rows.append(cells)
    for task in ("Pendulum", "grid"):
        recorded = record["facts"][f"{task}: mean recorded return"]
        rows.append([f"{task}, what was recorded", f"{recorded:.{0 if task == 'Pendulum' else 2}f}", "-", "-"])
    sac = [summary[f"Pendulum, SAC from scratch: {when}"] for when in ("mean of evaluations", "last evaluation")]
    rows.append(["Pendulum, SAC", "-", "-", "; ".join(span(each, 0) for each in sac)])
    return rows


Maker = Callable[[Record], list[Row]]
GAME_COLUMNS = ["preset", "steps", "seeds", "result", "for comparison"]
TABLES: dict[str, tuple[list[str], dict[str, Maker]]] = {
    "learning": (
        ["preset", "steps", "solved seeds", "mean over seeds", "worst seed"],
        dict.fromkeys(
            (
                "cartpole_ppo", "cartpole_ppo_cleanrl", "acrobot_ppo", "pendulum_ppo", "cartpole_dqn", "cartpole_pqn",
                "cartpole_impala", "acrobot_dqn", "pendulum_sac", "gridworld_ppo", "maze_ppo",
            ),
            learned,
        ),
    ),
    "dreamer": (
        ["preset", "steps", "solved seeds", "at the end: mean (worst to best)", "worst seed at its last evaluations", "minutes"],
        dict.fromkeys(
            (
                "cartpole_dreamer_debug", "cartpole_dreamer", "pendulum_dreamer", "gridworld_pixels_dreamer",
                "cartpole_r2dreamer", "cartpole_infonce", "cartpole_dreamerpro",
            ),
            dreamed,
        ),
    ),
    "games": (
        GAME_COLUMNS,
        {
            "biased_rps_league": biased_rps, "kuhn_league": poker, "leduc_league": poker, "kuhn3_selfplay": kuhn_of_three,
            "tictactoe_selfplay": tictactoe, "backgammon": backgammon,
            "tictactoe_alphazero": tictactoe, "number_duel_league": number_duel, "connect_four_alphazero": connect_four,
            "territory_selfplay": territory, "heavy_box_selfplay": heavy_box, "connect_four_selfplay": connect_four,
        },
    ),
    "microrts": (
        ["trained", "steps", "seeds", "bot", "won, drawn, lost as player 0", "as player 1", "won"],
        dict.fromkeys(
            (
                "microrts_8x8_league", "microrts_8x8_coac", "microrts_8x8_ppo", "microrts_8x8_selfplay",
                "microrts_16x16_league", "microrts_16x16_coac",
            ),
            against_bots,
        ),
    ),
    "microrts_curve": (
        ["trained", "steps", "games won against scripted players, in %, in 20 equal parts of training"],
        dict.fromkeys(("microrts_8x8_coac", "microrts_16x16_league", "microrts_16x16_coac"), won_in_training),
    ),
    "microrts_fog": (
        [
            "memory of each cell", "steps", "games won against scripted players, in %, in 20 equal parts of training",
            "won, drawn, lost against the other",
        ],
        {"microrts_fog": fog},
    ),
    "breakout": (["preset", "steps", "greedy return", "random play"], {"breakout_pqn": breakout}),
    "suites": (
        ["environment", "algorithm", "steps", "seeds", "greedy return", "sampled", "random play", "minutes"],
        dict.fromkeys(("navix_doorkey", "pgx_2048", "smax_3m", "overcooked"), of_suite),
    ),
    "brax_ppo": (
        ["environment, PPO of", "steps", "seeds", "greedy return", "steps/s"],
        dict.fromkeys(("brax_ppo", "brax_halfcheetah"), brax_ppo),
    ),
    "craftax_resets": (
        ["resets", "steps/s: median [min, max]", "against `each`", "trace + compile, s"],
        {"craftax_resets": craftax_resets},
    ),
    "features": (
        ["feature, preset", "steps", "with it", "without it"],
        {
            "memory": memory, "entities": entities, "composite": composite, "exploration": exploration,
            "curricula": curricula, "critics": critics, "command": command,
        },
    ),
    "game_features": (["feature, in games of two players", "steps", "with it", "without it"], {"game_features": game_features}),
    "tictactoe_normalised": (
        ["what AlphaZero learns from", "steps", "lost of 200, as they come", "lost of 200, normalised"],
        {"tictactoe_normalised": normalisation},
    ),
    "randomization": (
        ["half length of the pole in m", "trained with .5 m", "trained with .25 to 3 m", "steps"],
        {"randomization": randomization},
    ),
    "scouting": (["Scouting-v0", "steps", "looks of an episode", "return", "of the best play"], {"scouting": scouting}),
    "opponent_models": (
        ["opponents of three habits", "steps", "with a model", "for comparison"],
        {"opponent_models": opponent_models},
    ),
    "cspl": (["fights of", "specialist", "student", "reinforced", "from scratch"], {"cspl": cspl}),
    "microrts_clone": (
        ["MicroRTS 8 x 8, games won", "script", "clone", "PPO from the clone", "PPO from scratch"],
        {"microrts_clone": microrts_clone},
    ),
    "parity": (
        [
            "map", "play", "cycles", "orders", "states that differ", "legal orders that differ",
            "joint conflicts apart: all, states that differ",
        ],
        {"microrts_parity": parity},
    ),
    "large_data": (
        ["steps of pictures", "size, of the budget of memory", "resident MB at half of the run, at the end", "time waiting"],
        {"large_data": large_data},
    ),
    "branching": (
        ["exploiter begins as", "steps", "steps until it wins 70 %: median, worst seed", "share won at the end"],
        {"branching": branching},
    ),
    "distillation": (
        ["teacher", "parameters of the student", "steps", "its return", "the teacher's", "seeds at 95 % of it"],
        {"distillation": distilled},
    ),
    "offline": (
        ["task, algorithm", "offline", "then online: mean of its evaluations; the last", "from scratch, as many steps: likewise"],
        {"offline": offline},
    ),
    "compared": (
        [
            "preset", "solved first, steps: median, worst seed", "seeds", "solved at the end", "at the end: mean, worst",
            "trace + compile, s", "run, s",
        ],
        {"first_solved": first_reached},
    ),
    "lag": (["policy lag of 8 iterations", "steps", "solved seeds", "return"], {"policy_lag": lag}),
    "tuning": (["configuration", "steps", "mean over seeds", "median", "worst"], {"tuning": tuned}),
}  # fmt: skip


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def sources(records: Sequence[Record]) -> str:
    """One line: what the records were measured with."""
    seeds = max((record["seeds"] for record in records), key=len)
    records = [part for record in records for part in record.get("parts", [record])]
    dates = sorted({record["date"][:10] for record in records})
    load = max(max(record["load"]) for record in records)
    machines = {
        f"{r['hardware']['cpu'].replace('(R)', '')}, {n} core{'s' * (n > 1)}" for r in records for n in [r["hardware"]["cores"]]
    }
    versions = sorted({record["versions"]["jax"] for record in records})
    if len(seeds) == 1:
        held = f"seed {seeds[0]}"
    elif seeds == list(range(seeds[0], seeds[-1] + 1)):
        held = f"seeds {seeds[0]} to {seeds[-1]}"
    else:
        held = f"seeds {', '.join(map(str, seeds))}"
    return (
        f"{' and '.join(sorted(machines))}, load average up to {load:.0f}; JAX {' and '.join(versions)}; "
        f"{' to '.join(sorted({dates[0], dates[-1]}))}; {held}."
    )


def block(name: str) -> str:
    """Return the text between the markers of a table."""
    lines: list[str] = [""]
    if name.startswith("bench_"):
        record = record_of(name)
        if record is not None:
            lines += [*record["facts"]["printed"], "", sources([record]).rsplit(";", 1)[0] + ".", ""]
        return "\n".join(lines)
    columns, makers = TABLES[name]
    found = {experiment: record for experiment in makers if (record := record_of(experiment)) is not None}
    if found:
        rows = [row for experiment, record in found.items() for row in makers[experiment](record)]
        lines += [*markdown(columns, rows), "", sources(list(found.values())), ""]
    return "\n".join(lines)


def filled(text: str) -> str:
    """A page with its tables made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}{block(match[2])}{match[3]}", text)


def main() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if filled(text) != text:
            page.write_text(filled(text), encoding="utf-8")
            print(page.relative_to(FOLDER.parent), "written", file=sys.stderr)


if __name__ == "__main__":
    main()
