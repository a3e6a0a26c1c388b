# %% [markdown]
# # An agent on a web page
#
# `rljax.export_web` writes a trained agent as a static page: the policy as an ONNX file, a runtime for it, and the game in
# JavaScript. The page needs no server of its own and loads nothing from elsewhere. Here an agent learns tic-tac-toe by
# self-play; a browser without a window opens the page and plays against it by keys; and each move of the page is compared with
# that of the agent in Python.

# %%
import argparse
import base64
import functools
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import rljax

parser = argparse.ArgumentParser(description="An agent on a web page, played in a browser.")
parser.add_argument("--total-timesteps", type=int, default=400_000, help="budget of the training")
parser.add_argument("--out", default="web_page.png", help="the picture")
options, _ = parser.parse_known_args()

GAMES, LIMIT = 4, 400
"""Games to play, and the seconds that the browser may take for all of them."""

# %%
config = rljax.load_config("tictactoe_selfplay", total_timesteps=options.total_timesteps, eval_every=None)
agent = rljax.make_agent(config)
state = jax.jit(rljax.make_train(agent))(jax.random.key(0)).state
folder = Path(tempfile.mkdtemp()) / "page"
report = rljax.export_web(agent, state, folder, step=config.total_timesteps, say=print)
size, own = sum(report.files.values()), report.files["policy.onnx"]
print(f"a page of {len(report.files)} files, {size / 1000:,.0f} kB, of which the policy has {own / 1000:.0f} kB")

# %% [markdown]
# Any web server will do: `python -m http.server --directory page`, say. This one runs in a thread.


# %%
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_address[1]}/"

# %% [markdown]
# A Chromium without a window, driven through its DevTools protocol: messages of JSON over two pipes. Tools such as Playwright
# do this with more comfort; here nothing is to be installed.


# %%
class Browser:
    """A page in a Chromium, which is ended after `LIMIT` seconds whatever happens."""

    def __init__(self, program):
        their_in, self.out = os.pipe()
        self.inward, their_out = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
        flags.append(f"--user-data-dir={tempfile.mkdtemp()}")
        # It reads from descriptor 3 and writes to descriptor 4.
        command = ["bash", "-c", f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}', program, *flags, "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, pass_fds=(their_in, their_out), **quiet)
        os.close(their_in)
        os.close(their_out)
        self.alarm = threading.Timer(LIMIT, self.process.kill)
        self.alarm.start()
        self.number, self.session, self.left = 0, {}, b""
        page = next(x for x in self.call("Target.getTargets")["targetInfos"] if x["type"] == "page")
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]}

    def call(self, method, **params):
        """Call a method of the protocol and return its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params, **self.session}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.left:
                read = os.read(self.inward, 1 << 16)
                if not read:
                    raise SystemExit("the browser has ended before the games did")
                self.left += read
            answer, _, self.left = self.left.partition(b"\0")
            answer = json.loads(answer)
            if answer.get("id") == self.number:
                return answer["result"]

    def value(self, expression):
        """Return the value of a JavaScript expression."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, expression):
        """Wait until an expression is true."""
        while not self.value(expression):
            time.sleep(0.02)

    def close(self):
        self.alarm.cancel()
        self.process.kill()
        self.process.wait()


program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = None
if program is None:
    print("No Chromium is here, so nobody opens the page: the games below are played by the agent in Python alone.")
else:
    browser = Browser(program)
    browser.call("Emulation.setDeviceMetricsOverride", width=900, height=640, deviceScaleFactor=1, mobile=False)
    browser.call("Page.navigate", url=address)
    browser.wait("document.querySelector('#status')?.textContent === 'Your move.'")
    print(f"{browser.value('performance.now()'):.0f} ms from opening the page to the first move")

# %% [markdown]
# The person plays at random, by the keys 1 to 9; in the page the agent's moves are read from the list beside the board. In
# Python the same game is played along. The last column is the agent's result: 1 if it wins, 0 for a draw, -1 if it loses.


# %%
game, params = rljax.make_env(config.env)
act = jax.jit(lambda obs, mask: agent.act(state, obs, None, jax.random.key(0), True, mask)[0])
step, look = jax.jit(game.step_env), jax.jit(game.action_mask)
MOVES = "[...document.querySelectorAll('#moves li')]"


def play(seat, generator):
    """Play a game with the agent at a seat; return the moves of the page, those of Python, and the agent's reward."""
    if browser is not None:
        text = "Agent begins" if seat == 0 else "You begin"
        browser.value(f"[...document.querySelectorAll('button')].find((x) => x.textContent === '{text}').click()")
    obs, board = game.reset_env(jax.random.key(0), params)
    shown, chosen, over = [], [], False
    while not over:
        moved = int(board.time)
        mask = np.asarray(look(board, params))[moved % 2]
        if moved % 2 == seat:
            action = int(act(obs[seat], mask))
            chosen.append(action + 1)
            if browser is not None:
                browser.wait(f"{MOVES}.length > {moved}")
                shown.append(int(browser.value(f"{MOVES}[{moved}].textContent.match(/: (\\d)/)[1]")))
                action = shown[-1] - 1
        else:
            action = int(generator.choice(np.flatnonzero(mask)))
            if browser is not None:
                browser.wait("document.querySelector('#status').textContent === 'Your move.'")
                for kind in ("keyDown", "keyUp"):
                    browser.call("Input.dispatchKeyEvent", type=kind, key=str(action + 1))
                browser.wait(f"{MOVES}.length > {moved}")
        obs, board, reward, over, _ = step(jax.random.key(0), board, np.full(2, action), params)
    return shown, chosen, float(reward[seat]), board


def listed(moves):
    return " ".join(map(str, moves))


generator = np.random.default_rng(0)
same = total = 0
page_title = "" if browser is None else f"{'moves of the page':>20}"
print(f"{'game':10}{page_title}{'moves of Python':>20}{'result':>10}")
for number in range(GAMES):
    shown, chosen, result, board = play((number + 1) % 2, generator)
    same, total = same + sum(a == b for a, b in zip(shown, chosen, strict=False)), total + len(shown)
    print(f"game {number + 1:<5}{'' if browser is None else f'{listed(shown):>20}'}{listed(chosen):>20}{result:10.0f}")
if browser is not None:
    print(f"the page moved as Python in {same} of {total} moves")

# %% [markdown]
# The page after the last game; without a browser, the board as rljax draws it.
#
# Next: put the folder on any static host. `rljax export zoo:connect_four_selfplay --web page` makes the page of a stronger
# agent, and [exporting](../docs/guides/exporting.md#a-web-page) lists the environments that have one. Without a browser, the
# same policy runs in [NumPy](numpy_policy.py).

# %%
if browser is not None:
    browser.wait("!document.querySelector('#status').textContent.includes('thinking')")
    Path(options.out).write_bytes(base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"]))
    browser.close()
else:
    fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    ax.imshow(np.asarray(game.render(board, params)))
    ax.set_title("The end of the last game")
    ax.set_axis_off()
    fig.savefig(options.out, dpi=150)
server.shutdown()
