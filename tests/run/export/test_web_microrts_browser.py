"""The page of MicroRTS in a real browser: a game of a person's orders against the agent, whose orders are those of Python's."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.envs import resolve_env
from rljax.envs.microrts.actions import NUM_ORDERS, ORDERS
from rljax.envs.microrts.rules import engine
from rljax.envs.microrts.rules.units import ACTION_NAMES, ATTACK, DIRECTIONS, NONE, OFFSETS, PRODUCE, UNIT_NAMES
from rljax.run.export.web.runtime import is_there, runtime_folder
from tests.envs.play import QUICK
from tests.run.export.browser import Browser, find_browser, served
from tests.run.export.kinds import player_of
from tests.run.export.test_web_microrts import config_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WIDTH, EDGE = 8, 0.5  # columns of the map, and the margin of its picture
CONFIG = config_of("MicroRTSBots-v0", opponents=["workerrush"], wait_cycles=5, max_cycles=100)
VERBS = {"move": "move to", "return": "return to"}
STATUS = "document.querySelector('#status').textContent"
NOTE_STATUS = f"""{{
  globalThis.said = [];
  new MutationObserver(() => said.push({STATUS})).observe(document.querySelector("#status"), {{ childList: true }});
}}"""
LINES = "[...document.querySelectorAll('#moves li')].map((x) => x.textContent)"
SELECTS = "document.querySelectorAll('#controls select')"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium is here, to open the page with")
    browser = Browser(path, tmp_path / "profile")
    yield browser
    browser.close()


def cell_name(cell: int) -> str:
    return f"{'abcdefgh'[cell % WIDTH]}{cell // WIDTH + 1}"


def target(cell: int, action: int, parameter: int) -> int:
    offset = OFFSETS[parameter] if action == ATTACK else DIRECTIONS[parameter]
    return cell + int(offset @ [WIDTH, 1])


def lines(before: Any, ordered: Any) -> list[str]:
    """Lines that the page writes about the orders that a step began."""
    found = []
    for cell in np.flatnonzero((np.ravel(before.remaining) == 0) & (np.ravel(ordered.action) != NONE)):
        unit, owner = int(before.unit.ravel()[cell]), int(before.owner.ravel()[cell])
        action, product = int(ordered.action.ravel()[cell]), int(ordered.product.ravel()[cell])
        aim = cell_name(target(int(cell), action, int(ordered.parameter.ravel()[cell])))
        verb = ACTION_NAMES[action]
        what = f"make {UNIT_NAMES[product].lower()} in" if action == PRODUCE else VERBS.get(verb, verb)
        who = f"{('Blue', 'Red')[owner]} {UNIT_NAMES[unit].lower()} {cell_name(int(cell))}"
        found.append(f"{int(before.time)} {who}: {what} {aim}")
    return found


def press_cell(browser: Browser, cell: int) -> None:
    box = browser.value("(({ x, y, width }) => ({ x, y, width }))(board.getBoundingClientRect())")
    scale = box["width"] / (WIDTH + 2 * EDGE)
    browser.press(box["x"] + scale * (EDGE + cell % WIDTH + 0.5), box["y"] + scale * (EDGE + cell // WIDTH + 0.5))


def choose(browser: Browser, number: int, value: str) -> None:
    browser.value(f"(({SELECTS}[{number}].value = {json.dumps(value)}), {SELECTS}[{number}].dispatchEvent(new Event('change')))")


def test_a_person_orders_units_against_the_agent_and_then_it_plays_itself(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("jax2onnx")
    if not is_there(runtime_folder()):
        pytest.skip("onnxruntime-web is not here: rljax.run.export.web.runtime.fetch_runtime fetches it")
    agent, trained = player_of(CONFIG)
    rljax.export_web(agent, trained, tmp_path / "page")
    game, params = resolve_env("MicroRTS-v0", {"wait_cycles": 5, "max_cycles": 100})

    @functools.partial(jax.jit, compiler_options=QUICK)
    def look(state: Any) -> Any:
        obs, mask = game.observe(state, params), game.action_mask(state, params)
        return mask[0], agent.act(trained, obs[1], None, jax.random.key(0), True, mask[1])[0]

    @functools.partial(jax.jit, compiler_options=QUICK)
    def step(state: Any, actions: Any) -> Any:
        orders = game.orders(state, actions)
        return engine.issue(state, orders, game.walls), *game.play(state, orders, params)[::2]

    with served(tmp_path / "page") as address:
        browser.open(address)
        browser.wait(f"{STATUS}.startsWith('Blue, order your')")
        browser.value(NOTE_STATUS)
        choose(browser, 2, "likeliest")
        choose(browser, 3, "0.005")
        browser.key("n")  # the agent had drawn its first orders when the page was opened
        state, over, expected, pictures = game.map.start(), False, [], set()
        while not over:
            mask, answer = jax.tree.map(np.asarray, look(state))
            legal = mask.reshape(-1, NUM_ORDERS)[:, 1:]
            action, asked = np.zeros(WIDTH * WIDTH, np.int32), np.flatnonzero(legal.any(axis=1))
            if len(asked):
                cycle = f"board.getAttribute('aria-label').startsWith('cycle {int(state.time)}.')"
                browser.wait(f"{cycle} && document.querySelector('#orders button') !== null")
                pictures.add(browser.value("board.toDataURL()"))
                first = int(asked[0])
                action[first] = 1 + int(np.flatnonzero(legal[first])[0])
                press_cell(browser, target(first, *ORDERS[action[first], :2].tolist()))
                if len(asked) > 1:
                    browser.key("e")
            ordered, after, over = jax.tree.map(np.asarray, step(state, jnp.stack([action, answer])))
            expected += lines(state, ordered)
            state = after
        said = browser.wait(f"({STATUS}.endsWith('.') && !{STATUS}.startsWith('Blue, order')) && {STATUS}")
        assert said == "A draw: the time is over."
        # Between two turns no order is wanted, so none is asked for.
        assert "The game is on." in browser.value("said")
        assert browser.value(LINES) == expected
        assert any("Blue" in line for line in expected)
        assert any("Red" in line for line in expected)
        assert len(pictures) > 5, "the board changes"
        choose(browser, 0, "agent")
        tally = "document.querySelector('#tally').textContent"
        browser.wait(f"{STATUS} === 'A draw: the time is over.' && {tally} === 'blue 0, red 0, draws 1'")
        assert browser.errors == []
        assert {request[: len(address)] for request in browser.requests} == {address}, "nothing comes from elsewhere"
