"""No figure without a record: tables are made from `results/`, and other numbers stand in phrases that say what they are."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.core.config import config_table, load_config, preset_names
from rljax.run.reproduce import EXPERIMENTS
from rljax.run.reproduce.experiments import FIRST_SEED
from rljax.run.reproduce.report import summarized

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHERS = ("earlier", "campaign")
"""How records are called that are of no experiment."""
RECORDS = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json") if not path.stem.startswith(OTHERS)}
CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.,])\.?\d[\d.,]*")
"""One that begins a word: DreamerV3, f32 and GridWorld-v0 are names."""

spec = importlib.util.spec_from_file_location("tables", RESULTS / "tables.py")
assert spec is not None
assert spec.loader is not None
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.filled(text) == text


def test_every_table_is_shown_and_of_known_experiments() -> None:
    shown = {name for page in tables.PAGES for _, name, _ in tables.BLOCK.findall(page.read_text(encoding="utf-8"))}
    assert shown >= set(tables.TABLES)
    assert set(EXPERIMENTS) >= {name for _, makers in tables.TABLES.values() for name in makers}
    in_tables = {name for _, makers in tables.TABLES.values() for name in makers} | {name for name in shown if "bench" in name}
    assert set(RECORDS) <= in_tables, "a record that is in no table"
    earlier = json.loads((RESULTS / "earlier.json").read_text())
    assert "not repeated" in earlier["note"]
    assert {row["experiment"] for table in earlier["tables"].values() for row in table["rows"]} <= set(EXPERIMENTS)


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
            found = summarized(np.array(values, np.float64), record["thresholds"].get(measure))
            assert record["summary"][measure] == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_record_of_a_preset_has_its_present_settings(name: str) -> None:
    """If this fails: the preset has changed since; measure it again, or remove the record.

    Fields that came later have their defaults, and those that went are of no matter.
    """
    for arm, recorded in RECORDS[name]["configs"].items():
        if arm in preset_names() and arm == name:
            current = config_table(load_config(arm))
            for field in set(recorded) & set(current) - {"seed", "eval_every", "eval_episodes", "exploitability_every"}:
                assert recorded[field] == current[field], f"{arm}: {field}"
