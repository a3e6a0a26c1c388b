"""No figure without a record: tables are made from `results/`, and other numbers stand in phrases that say what they are."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.core.config_files import comparable, config_table, load_config
from rljax.run.reproduce import EXPERIMENTS
from rljax.run.reproduce.experiments import FIRST_SEED
from rljax.run.reproduce.report import summarize, to_plain

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
RECORDS = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json") if not path.stem.startswith("campaign")}
"""By experiment; campaigns are not experiments."""
CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.,])\.?\d[\d.,]*")
"""One that begins a word: DreamerV3, f32 and GridWorld-v0 are names."""

spec = importlib.util.spec_from_file_location("tables", RESULTS / "tables.py")
assert spec is not None
assert spec.loader is not None
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)
PAGES: tuple[Path, ...] = tables.PAGES


def phrases() -> list[str]:
    kinds = tomllib.loads((RESULTS / "phrases.toml").read_text())
    return [phrase for kind in kinds.values() for phrase in kind]


def prose(text: str) -> str:
    """A page without what is generated, code and links, in single spaces."""
    return " ".join(CODE.sub("` `", tables.BLOCK.sub("", text)).split())


def unlisted(text: str) -> list[str]:
    """Numbers of a page outside every listed phrase, each with the words around it."""
    text = prose(text)
    for phrase in phrases():
        text = text.replace(" ".join(phrase.split()), " ")
    return [text[max(0, found.start() - 40) : found.end() + 40] for found in NUMBER.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_number_outside_the_tables_is_in_a_listed_phrase(page: Path) -> None:
    """If this fails: record a measured number with `rljax reproduce`, or list a phrase of another in results/phrases.toml."""
    assert unlisted(page.read_text(encoding="utf-8")) == []


def test_a_new_figure_is_noticed() -> None:
    assert unlisted("Solves it on 19 of `20` seeds.") == ["Solves it on 19 of ` ` seeds."]
    assert unlisted("DreamerV3 takes f32; see [it](page-2.md)\n```bash\n--seeds 8\n```\n") == []
    assert unlisted("<!-- results: learning -->\n| 475.0 |\n<!-- end -->\n") == []
    assert unlisted("an R2 of .93")


def test_every_listed_phrase_is_in_use() -> None:
    text = "\n".join(prose(page.read_text(encoding="utf-8")) for page in PAGES)
    assert [phrase for phrase in phrases() if " ".join(phrase.split()) not in text] == []


def test_tests_that_hold_a_phrase_exist() -> None:
    for test in tomllib.loads((RESULTS / "phrases.toml").read_text())["tested"].values():
        file, name = test.split("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test


def test_the_tables_are_what_the_records_give() -> None:
    """If this fails: python results/tables.py."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.filled(text) == text


def test_every_table_is_shown_and_of_known_experiments() -> None:
    found = [name for page in PAGES for _, name, _ in tables.BLOCK.findall(page.read_text(encoding="utf-8"))]
    shown = set(found)
    assert sorted(found) == sorted(shown), "a table on two pages"
    assert shown >= set(tables.TABLES)
    assert set(EXPERIMENTS) >= {name for _, makers in tables.TABLES.values() for name in makers}
    in_tables = {name for _, makers in tables.TABLES.values() for name in makers} | {name for name in shown if "bench" in name}
    assert set(RECORDS) <= in_tables, "a record that is in no table"


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_record_is_whole_and_its_summary_is_of_its_raw_values(name: str) -> None:
    record: dict[str, Any] = RECORDS[name]
    assert record["name"] == name
    assert name in EXPERIMENTS
    assert record["command"].split()[:3] == ["rljax", "reproduce", name]
    assert re.fullmatch(r"[0-9a-f]{7,}", record["commit"]), "of a commit, without changes"
    assert {"python", "jax", "flax", "optax", "rljax"} <= set(record["versions"])
    assert record["hardware"]["cpu"]
    assert len(record["load"]) == 6
    assert record["budget"] == 1
    assert min(record["seeds"]) >= FIRST_SEED, "seeds with which presets may have been tuned"
    assert record["raw"] or record["facts"]
    for measure, values in record["raw"].items():
        assert len(values) == len(record["seeds"])
        if np.ndim(values) == 1:
            found = summarize(np.array(values, np.float64), record["thresholds"].get(measure))
            assert record["summary"][measure] == pytest.approx(found, rel=1e-5)


SET = {"seed", "eval_every", "eval_episodes", "exploitability_every"}
"""What experiments set that does not change what is learned."""


def origin(record: dict[str, Any], arm: str) -> tuple[str | None, set[str]]:
    """The preset that an arm comes from, and the fields that are not meant to be as there."""
    if "presets" not in record:  # the first records: each arm is called as its preset is
        return arm, SET
    found = record["presets"][arm]
    return found["preset"], set(found["changed"])


def differing(record: dict[str, Any], load: Callable[[str], Any] = load_config) -> list[str]:
    """Fields in which an arm is no longer as its preset, but for those changed on purpose.

    Fields that came later had their defaults, and those that went are of no matter.
    """
    found = []
    for arm, recorded in record["configs"].items():
        preset, changed = origin(record, arm)
        if preset is None:
            continue
        current = to_plain(config_table(load(preset)))
        if recorded["algorithm"] == current["algorithm"]:
            recorded = {**to_plain(config_table(load_config(current["algorithm"]))), **to_plain(recorded)}
        compared = [field for field in current if field in recorded and field not in changed]
        changes = [x for x in compared if comparable(x, recorded[x]) != comparable(x, current[x])]
        found += [f"{arm}: {field}" for field in changes]
    return found


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_record_of_a_preset_has_its_present_settings(name: str) -> None:
    """If this fails: the preset has changed since; measure it again, or remove the record."""
    assert differing(RECORDS[name]) == []


@pytest.mark.parametrize(
    ("name", "arm", "preset"),
    [
        ("command", "command_ppo", "command_ppo"),
        ("critics", "one value head", "hidden_bit_ppo_heads"),
        ("memory", "T-maze, lstm", "tmaze_ppo_lstm"),
        ("policy_lag", "no correction", "cartpole_impala"),
    ],
)
def test_a_changed_preset_is_noticed_whatever_the_record_is_called(name: str, arm: str, preset: str) -> None:
    def load(source: str) -> Any:
        return load_config(source, learning_rate=0.123) if source == preset else load_config(source)

    assert f"{arm}: learning_rate" in differing(RECORDS[name], load)


def test_a_record_says_which_fields_are_not_meant_to_be_as_in_its_preset() -> None:
    table = config_table(load_config("cartpole_ppo", seed=5000, gamma=0.5))
    record: dict[str, Any] = {"name": "tried", "configs": {"an arm": table}}
    record["presets"] = {"an arm": {"preset": "cartpole_ppo", "changed": ["seed", "gamma"]}}
    assert differing(record) == []
    record["presets"]["an arm"]["changed"] = ["seed"]
    assert differing(record) == ["an arm: gamma"]
    record["presets"]["an arm"]["changed"] = ["seed", "gamma"]
    del table["dual_clip"]
    assert differing(record) == []
    assert differing(record, lambda source: load_config(source, dual_clip=3.0)) == ["an arm: dual_clip"]
