"""Web pages in a real browser: whole games with mouse, finger and keys, in which the agent's moves are those of Python's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.environments import make_game
from rljax.run.export.web.runtime import is_there, runtime_folder
from tests.run.export.browser import Browser, find_browser, served
from tests.run.export.kinds import KINDS, played, player

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium is here, to open the pages with")
    browser = Browser(path, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, browser: Browser) -> Iterator[str]:
    """The address of the page of an agent of a kind."""
    pytest.importorskip("jax2onnx")
    if not is_there(runtime_folder()):
        pytest.skip("onnxruntime-web is not here: rljax.run.export.web.runtime.fetch_runtime fetches it")
    rljax.export_web(*player(request.param), tmp_path / "page")
    with served(tmp_path / "page") as address:
        yield address
        assert browser.errors == []
        assert {request[: len(address)] for request in browser.requests} == {address}, "nothing comes from elsewhere"


class Opponent:
    """The agent in Python at one seat of a game, which is played along."""

    def __init__(self, kind: str, seat: int):
        self.agent, self.trained = player(kind)
        self.game, self.params = make_game(KINDS[kind].replace(time_limit=None))
        self.seat, self.carry = seat, None
        self.obs, self.state = self.game.reset_env(jax.random.key(0), self.params)
        self._step = jax.jit(lambda state, action: self.game.step_env(jax.random.key(0), state, action, self.params))
        self._act = jax.jit(lambda obs, carry, mask: self.agent.act(self.trained, obs, carry, jax.random.key(0), True, mask))

    def mask(self) -> np.ndarray:
        """The legal actions of the player to move."""
        return np.asarray(self.game.action_mask(self.state, self.params))[int(self.state.time) % 2]

    def move(self) -> int:
        """The move of the agent, whose turn it is."""
        seen = jax.tree.map(lambda x: x[self.seat], self.obs)
        action, self.carry = self._act(seen, self.carry, self.mask())
        return int(action)

    def take(self, action: int) -> tuple[np.ndarray, bool]:
        """Take a move of either player; return the rewards, and whether the game is over."""
        self.obs, self.state, reward, over, _ = self._step(self.state, jnp.full(2, action))
        return np.asarray(reward), bool(over)


PICTURE = "document.querySelector('#board').toDataURL()"
MOVES = "[...document.querySelectorAll('#moves li')].map((x) => x.textContent)"
STATUS = "document.querySelector('#status').textContent"


def play_game(browser: Browser, opponent: Opponent, choose: Callable[[int, int], None]) -> None:
    """Play a game to its end; `choose(number, action)` makes the person's move."""
    person, over, number = 1 - opponent.seat, False, 0
    pictures = {}
    while not over:
        if opponent.state.time % 2 == person:
            browser.wait(f"{STATUS} === 'Your move.'")
            legal = np.flatnonzero(opponent.mask())
            action = int(legal[number % min(2, len(legal))])
            expected = f"You: {action + 1}"
            choose(number, action)
        else:
            action = opponent.move()
            expected = f"Agent: {action + 1} ("
        number += 1
        # Python may take longer than the page, which has made a further move then.
        browser.wait(f"{MOVES}.length >= {number}")
        moves, picture = browser.value(f"[{MOVES}, {PICTURE}]")
        assert moves[number - 1].startswith(expected)
        pictures[len(moves)] = picture
        reward, over = opponent.take(action)
    assert len(set(pictures.values())) == len(pictures) > number // 2, "each move is drawn"
    said = {1: "You win.", -1: "The agent wins.", 0: "A draw."}[int(reward[person])]
    browser.wait(f"{STATUS} === '{said}'")


def place(browser: Browser, x: float, y: float) -> tuple[float, float]:
    """A place in the window, from shares of the picture's width and height."""
    box = browser.value("(({ x, y, width, height }) => ({ x, y, width, height }))(board.getBoundingClientRect())")
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


@pytest.mark.parametrize("site", ["self_play"], indirect=True)
def test_games_of_an_agent_with_memory_by_mouse_and_keys(browser: Browser, site: str) -> None:
    browser.open(site)
    browser.wait(f"{STATUS} === 'Your move.'")

    def choose(number: int, action: int) -> None:
        if number % 4 < 2:
            browser.press(*place(browser, (0.65 + action % 3) / 3.3, (0.65 + action // 3) / 3.3))
        else:
            browser.key(str(action + 1))

    play_game(browser, Opponent("self_play", seat=1), choose)
    browser.value("[...document.querySelectorAll('button')].find((x) => x.textContent === 'Agent begins').click()")
    opponent = Opponent("self_play", seat=0)
    action = opponent.move()
    browser.wait(f"{MOVES}.length === 1")
    browser.wait(f"{STATUS} === 'Your move.'")
    assert browser.value(MOVES)[0].startswith(f"Agent: {action + 1} (")
    # Arrow keys from the middle: to a taken cell, where nothing happens, and to a free one.
    browser.press(*place(browser, 0.5, 0.5), button="right")
    browser.press(*place(browser, 0.2, 0.8), button="right")
    assert browser.value(f"{MOVES}.length") == 1, "the menu's button makes no move"
    opponent.take(action)
    free = int(np.flatnonzero(opponent.mask())[-1])
    at = 4
    for cell in (action, free):
        keys = ["ArrowLeft" if cell % 3 < at % 3 else "ArrowRight"] * abs(cell % 3 - at % 3)
        keys += ["ArrowUp" if cell // 3 < at // 3 else "ArrowDown"] * abs(cell // 3 - at // 3)
        # The first arrow shows the place in the middle.
        for key in [*(["ArrowUp"] if at == 4 else []), *keys, "Enter"]:
            browser.key(key)
        at = cell
    browser.wait(f"{MOVES}.length >= 2")
    assert browser.value(MOVES)[1] == f"You: {free + 1}"
    browser.key("N")  # as with caps lock
    browser.wait(f"{MOVES}.length < 2")


@pytest.mark.parametrize("site", ["images"], indirect=True)
def test_a_game_on_a_phone_in_the_dark(browser: Browser, site: str) -> None:
    browser.open(site, width=400, height=800, dark=True, touch=True)
    browser.wait(f"{STATUS} === 'Your move.'")
    assert browser.value("document.documentElement.scrollWidth") <= 400
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(22, 25, 31)"
    play_game(
        browser,
        Opponent("images", seat=1),
        lambda _, column: browser.press(*place(browser, (0.7 + column) / 7.4, 0.5), touch=True),
    )


@pytest.mark.parametrize("site", ["gru"], indirect=True)
def test_an_agent_with_memory_is_watched_and_steered(browser: Browser, site: str) -> None:
    browser.open(site)
    step = "Number(document.querySelector('dd').textContent)"
    browser.wait(f"{STATUS} === 'The agent acts.' && {step} > 0")
    picture = browser.value(PICTURE)
    browser.wait(f"{PICTURE} !== {json.dumps(picture)}")
    # Nine steps are the time limit of this agent's configuration.
    browser.wait("document.querySelectorAll('dd')[2].textContent.endsWith(' over 1 episode')")
    browser.wait("document.querySelectorAll('dd')[2].textContent.endsWith(' over 2 episodes')")
    browser.key("ArrowRight", up=False)
    browser.wait(f"{STATUS} === 'You act.'")
    browser.key("ArrowRight", down=False)
    browser.wait(f"{STATUS} === 'The agent acts.'")
    browser.press(*place(browser, 0.9, 0.5), button="right", up=False)
    count = browser.value(step)
    browser.wait(f"{step} !== {count}")
    assert browser.value(STATUS) != "You act."
    browser.key(" ")
    browser.wait(f"{STATUS} === 'Paused.' || {STATUS} === 'The episode has ended.'")
    # One step of an episode that is played stops it there; the agent has looked at nothing when an episode begins.
    bars = "[...document.querySelectorAll('.bar output')].map((x) => x.textContent)"
    press = "document.dispatchEvent(new KeyboardEvent('keydown', {{ key: '{}' }}))"
    browser.value(f"{press.format(' ')}; {press.format('n')}; {press.format('s')}")
    assert browser.value(STATUS) == "Paused."
    browser.wait(f"{step} === 1")
    assert all(text.endswith(" %") for text in browser.value(bars))
    browser.key("n")
    assert set(browser.value(bars)) == {"\N{EN DASH}"}
    # The page's runner alone, over whole episodes of the agent in Python.
    episodes = played("gru", True)
    inputs = json.dumps({"obs": episodes.obs[:, 0].tolist(), "begins": episodes.begins[:, 0].tolist()})
    actions = browser.value(f"""(async () => {{
        const {{ loadPolicy }} = await import("./policy.js");
        const policy = await loadPolicy((await (await fetch("policy.json")).json()).inputs);
        const {{ obs, begins }} = {inputs};
        const actions = [];
        let carry = null;
        for (let t = 0; t < obs.length; t++) {{
            const result = await policy({{ obs: obs[t], carry: begins[t] ? null : carry }});
            carry = result.carry;
            actions.push(result.action[0]);
        }}
        return actions;
    }})()""")
    assert actions == np.asarray(episodes.action)[:, 0].tolist()


@pytest.mark.parametrize("site", ["continuous"], indirect=True)
def test_a_page_without_its_policy_says_so(browser: Browser, site: str, tmp_path: Path) -> None:
    policy = tmp_path / "page" / "policy.onnx"
    before = policy.stat().st_mtime - 1_000_000  # Browsers take a copy of a file that was old then for the file, for hours.
    os.utime(policy, (before, before))
    browser.open(site)
    browser.wait(f"{STATUS} === 'The agent acts.'")
    altered = bytearray(policy.read_bytes())
    altered[len(altered) // 2] ^= 1  # a weight, say: the file can still be read
    for content in (altered, b"not a model"):
        policy.write_bytes(content)
        browser.open(site)
        said = "The page cannot go on: policy.onnx is not the file that was exported: its checksum differs"
        assert browser.wait(f"{STATUS} === '{said}'")
    (tmp_path / "page" / "policy.json").unlink()
    browser.open(site)
    assert browser.wait(f"{STATUS} === 'The page cannot go on: policy.json: 404 File not found'")
    browser.errors.clear()
