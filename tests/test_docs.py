"""The reference names what is public, all of it and nothing else; links lead somewhere; README and notebooks are pages.

The site itself is built by `mkdocs build --strict`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import io
import re
import textwrap
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import griffe
import jax
import jax.numpy as jnp
import nbformat
import pytest
import yaml
from flax import linen as nn
from mkdocs.utils.meta import get_data
from PIL import Image

import rljax
from rljax.algos.common.training import train_iteration
from rljax.cli import main as cli
from rljax.core.plain import freeze
from rljax.league.rules import ROLES
from rljax.run.export.web.runtime import is_there, runtime_folder
from tests.algos.imitation.recorded import record
from tests.run.tiny_runs import TINY
from tests.run.tiny_teacher import ready

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
PUBLIC = ("rljax", "rljax.envs", "rljax.league", "rljax.planning")


def rendered(text: str) -> list[str]:
    """The paths that a page renders: those after `:::`, and the members listed there."""
    paths: list[str] = []
    for path, block in re.findall(r"^::: (\S+)\n((?: +\S.*\n)*)", text, re.MULTILINE):
        members = (yaml.safe_load(block) or {}).get("options", {}).get("members") or []
        paths += [path, *(f"{path}.{name}" for name in members)]
    return paths


def found(path: str) -> object:
    """What a dotted path leads to.

    Raises:
        AttributeError: nothing.
    """
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[end:], module)
    raise AttributeError(path)


spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
assert spec is not None
assert spec.loader is not None
hooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hooks)

PAGES = {page.relative_to(DOCS).as_posix(): rendered(page.read_text(encoding="utf-8")) for page in DOCS.rglob("*.md")}
RENDERED = [path for paths in PAGES.values() for path in paths]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str) -> None:
    links = re.findall(r"\]\[(rljax[\w.]*)\]", (DOCS / page).read_text(encoding="utf-8"))
    for path in PAGES[page] + links:
        found(path)
    assert set(links) <= set(RENDERED)


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_on_a_page(package: str) -> None:
    module, shown = importlib.import_module(package), [found(path) for path in RENDERED]
    missing = [name for name in module.__all__ if not any(getattr(module, name) is thing for thing in shown)]
    assert not missing


@pytest.fixture(scope="module")
def reference() -> Any:
    """The tree of the package from which the pages of the reference are made."""
    extensions = griffe.load_extensions(str(DOCS / "griffe_rljax.py"))
    return griffe.load("rljax", search_paths=[str(ROOT)], extensions=extensions, resolve_aliases=True)


CONFIGS = [name for name in rljax.__all__ if name.endswith("Config")]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_the_table_of_a_configuration_has_its_fields_also_inherited_ones(name: str, reference: Any) -> None:
    config: Any = getattr(rljax, name)
    of_bases = {field for base in config.__mro__[:-2] for field in inspect.get_annotations(base)}
    fields = {f.name: f for f in dataclasses.fields(config) if name == "Config" or f.name in of_bases}
    text = reference[name].docstring.value
    lines = dict(re.findall(r"^    (\w+): (.*)$", text.partition("Attributes:\n")[2], re.MULTILINE))
    assert set(lines) == set(fields)
    for field, line in lines.items():
        described, _, default = line.partition(". Default: ")
        assert freeze(field, eval(default.split("`")[1])) == fields[field].default
        assert described.replace("[`fit`][rljax.fit]", "`fit`") == fields[field].metadata["doc"]
        assert default.endswith("; may be traced.") == fields[field].metadata["leaf"]
    if name != "Config":
        assert f"[`Config`][rljax.Config]; `rljax list {config.algorithm}` prints all of them" in text


@pytest.mark.slow
def test_the_signature_of_a_class_is_that_of_the_class(reference: Any) -> None:
    classes = {path: cls for path in RENDERED if inspect.isclass(cls := found(path)) and not issubclass(cls, rljax.Config)}
    of_fields = {path: cls for path, cls in classes.items() if dataclasses.is_dataclass(cls) or hasattr(cls, "_fields")}
    assert {"rljax.DQNState", "rljax.TrainResult", "rljax.algos.common.state.NormalizedState"} <= set(of_fields)
    for path, cls in of_fields.items():
        added = ("parent", "name") if issubclass(cls, nn.Module) else ()  # by flax
        real = [x for x in inspect.signature(cls).parameters.values() if x.name not in added]
        shown = [x for x in reference[path.removeprefix("rljax.")].parameters if x.name != "self"]
        assert [(x.name, x.kind.name, x.default is x.empty) for x in real] == [
            (x.name, x.kind.name.upper(), x.default is None) for x in shown
        ], path


LOOPS = {
    path.relative_to(ROOT).as_posix(): textwrap.dedent("".join(lines))
    for path in sorted((ROOT / "rljax" / "algos").rglob("*.py"))
    if (lines := re.findall(r"^ {4}\S.*\n", f"{ast.get_docstring(ast.parse(path.read_text(encoding='utf-8')))}\n", re.MULTILINE))
}
"""The code in the docstrings of algorithms' modules, which pages of the reference show, by the path of the module."""

SMALL: dict[str, dict[str, Any]] = {
    "bc": {"num_envs": 4, "num_steps": 8},
    "distill": {"num_envs": 4, "num_steps": 8, "teachers": ["teacher"]},
    "iql": {"env": "Pendulum-v1"},
    "awac": {"env": "Pendulum-v1"},
    "td3_bc": {"env": "Pendulum-v1"},
    "sac": {"env": "Pendulum-v1"},
    "ppo": {"num_steps": 8},
    "impala": {"num_steps": 8},
    "pqn": {"num_steps": 8},
}
"""Fields with which the loop of an algorithm runs here."""


@pytest.mark.parametrize("module", LOOPS)
def test_code_in_docstrings_of_algorithms_is_python(module: str) -> None:
    ast.parse(LOOPS[module])


@pytest.mark.slow
@pytest.mark.parametrize("module", [module for module in LOOPS if Path(module).stem != "opponents"])
def test_the_loop_in_the_docstring_of_an_algorithm_runs(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = Path(module).stem
    config = rljax.load_config("cartpole_dreamer_debug" if name == "dreamer" else name, **SMALL.get(name, {}))
    if hasattr(config, "dataset"):
        rljax.demonstrations("random", "data", num_episodes=20, env=config.env)
        config = config.replace(dataset="data")
    if name == "distill":
        rljax.fit(rljax.PPOConfig(num_steps=8, total_timesteps=32), run_dir="teacher")
    names = {"rljax": rljax, "config": config, "path": "data", "key": jax.random.key(0)}
    names |= {name: getattr(rljax, name) for name in rljax.__all__}
    exec(LOOPS[module], names)
    assert names["metrics"]


def test_nothing_is_on_two_pages() -> None:
    assert sorted(RENDERED) == sorted(set(RENDERED))


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    made = [f"tutorials/{notebook.stem}.md" for notebook in NOTEBOOKS] + [f"examples/{path.stem}.md" for path in hooks.EXAMPLES]
    assert sorted(listed) == sorted([*PAGES, "index.md", *made, *hooks.command_pages()])


def test_the_table_of_libraries_has_the_room_of_the_contents() -> None:
    """Beside the list of contents, the last of its columns would not be seen at a width of 1280 pixels."""
    text, settings = get_data((DOCS / "comparison.md").read_text(encoding="utf-8"))
    assert settings == {"hide": ["toc"]}
    assert text.startswith("# ")


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_and_files_in_prose_exist(path: Path) -> None:
    """Names such as `rljax.fit`, and links to other files, as somebody meets them who reads the files in the repository."""
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for name in re.findall(r"`(rljax(?:\.\w+)+)(?:\([^`]*\))?`", prose):
        found(name)
    targets = [match[1] for match in hooks.LINK.finditer(prose)]
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize(
    ("page", "written", "linked"),
    [
        ("index.md", "[x](docs/api/training.md#runs)", "[x](api/training.md#runs)"),
        ("index.md", "![x](docs/images/curves.png)", "![x](images/curves.png)"),
        ("index.md", "[x](notebooks/01_quickstart.ipynb)", "[x](tutorials/01_quickstart.md)"),
        ("index.md", "[x](LICENSE) [y](examples/)", "[x](REPO/blob/main/LICENSE) [y](REPO/tree/main/examples)"),
        ("guides/runs.md", "[x](../../README.md#resume)", "[x](../index.md#resume)"),
        (
            "guides/runs.md",
            "[x](looking.md), [y](../../examples/memory.py)",
            "[x](looking.md), [y](../examples/memory.md)",
        ),
        ("tutorials/01_quickstart.md", "[x](05_seeds_and_sweeps.ipynb)", "[x](05_seeds_and_sweeps.md)"),
        ("examples/memory.md", "[x](../docs/guides/networks.md), [y](command.py)", "[x](../guides/networks.md), [y](command.md)"),
        ("results.md", "[x](https://a.b/c), [y](#games)", "[x](https://a.b/c), [y](#games)"),
    ],
)
def test_links_between_files_become_links_between_pages(page: str, written: str, linked: str) -> None:
    assert hooks.relink(written, page) == linked.replace("REPO", hooks.REPOSITORY)


def test_names_in_prose_become_links_to_the_reference() -> None:
    assert (
        hooks.link_names("`rljax.fit` and `rljax.fit(config)`") == "[`rljax.fit`][rljax.fit] and [`rljax.fit(config)`][rljax.fit]"
    )
    for left_alone in ("[`rljax.fit`](x.md)", "`rljax.collect.replay`", "`rljax.envs`", "`fit`", "`rljax plot`"):
        assert hooks.link_names(left_alone) == left_alone


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_is_its_notebook_with_texts_code_and_what_it_prints_and_draws(path: Path) -> None:
    page, pictures = hooks.tutorial(path)
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    for cell in notebook.cells[1:]:
        assert cell.source in page
    assert page.startswith(notebook.cells[0].source.splitlines()[0])
    assert "badge.svg" not in page, "fetched from elsewhere"
    for output in outputs:
        assert output.get("text", "").rstrip() in page
    assert len(pictures) == sum(any(kind.startswith("image/") for kind in output.get("data", {})) for output in outputs) >= 2
    for name, data in pictures.items():
        assert page.count(f"]({name})") == 1
        with Image.open(io.BytesIO(data)) as picture:
            assert picture.format == Path(name).suffix[1:].upper()


@pytest.mark.parametrize("path", hooks.EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_page_with_texts_code_and_picture(path: Path) -> None:
    page, script = hooks.example(path), path.read_text(encoding="utf-8")
    prose = re.sub(r"^```python\n.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    written = [line for line in script.splitlines() if line and not line.startswith("# %%")]
    texts = [line.removeprefix("# ") for line in written if line.startswith("#")]
    assert page.startswith(texts[0])
    assert [line for line in texts if line not in prose and f"# {line}" not in code] == []
    assert [line for line in written if not line.startswith("#") and line not in code] == []
    picture = re.findall(r"\]\(\.\./(images/cookbook/\w+\.png)\)", page)
    assert len(picture) == 1
    with Image.open(DOCS / picture[0]) as image:
        assert image.width >= 400


def test_a_command_has_a_page_with_its_examples_and_its_help() -> None:
    pages = hooks.command_pages()
    assert {name for line, _ in cli.EXAMPLES for name in [line.split()[1]]} <= {Path(page).stem for page in pages}
    for line, what in cli.EXAMPLES:
        assert f"# {what}\n{line}\n" in pages[f"commands/{line.split()[1]}.md"]
    assert "Number of episodes to play." in pages["commands/eval.md"]
    assert "[rljax eval](eval.md) | Play whole episodes" in pages["commands/index.md"]


@pytest.mark.slow
def test_the_start_page_has_an_agent_to_play_against() -> None:
    if not is_there(runtime_folder()):
        pytest.skip("onnxruntime-web is not here: rljax.run.export.web.runtime.fetch_runtime fetches it")
    assert {"index.html", "policy.onnx", "connect_four.js"} <= set(hooks.page_of_agent())
    start = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    shown = hooks.on_page_markdown((ROOT / "README.md").read_text(encoding="utf-8"), start)
    assert 0 < shown.index('<iframe class="play" src="play/index.html"') < shown.index("## Install")
    assert "[page](guides/exporting.md#a-web-page)" in shown


def test_the_layout_names_every_folder_of_the_library() -> None:
    packages = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "rljax").rglob("__init__.py")} - {"rljax"}
    named = re.findall(r"^\| `([\w/]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert packages <= set(named)
    assert all((ROOT / name).is_dir() for name in named)


LOGGED = {
    "hidden_bit_ppo_heads": {"target_kl": 0.01},
    "sparse_gridworld_ppo_rnd": {},
    "cartpole_impala": {"upgo_coef": 0.5, "teacher_kl_coef": 0.5},
    "cartpole_pqn": {},
    "cartpole_dqn": {},
    "pendulum_sac": {},
    "cartpole_dreamer_debug": {},
    "cartpole_dreamerpro": {},
    "kuhn_league": {},
    "microrts_8x8_league": {},
    "tictactoe_alphazero": {},
}
"""Presets that log every metric between them."""


@pytest.mark.slow
def test_the_page_of_metrics_has_those_that_runs_log_and_no_others(tmp_path: Path) -> None:
    page = (DOCS / "guides" / "metrics.md").read_text(encoding="utf-8")
    named = {re.sub("N$|NAME$", "*", name) for name in re.findall(r"`((?:train|league|eval|episode|curriculum)/\w+)`", page)}
    logged: set[str] = set()
    configs = [rljax.load_config(preset, **changes) for preset, changes in LOGGED.items()]
    for env in ("Composite-v0", "Pendulum-v1"):
        space = rljax.make_env(env)[0].action_space(rljax.make_env(env)[1])
        record(tmp_path / env, env, lambda key, _obs, _state, space=space: space.sample(key), 4, 4)
        configs.append(rljax.BCConfig(env=env, dataset=str(tmp_path / env), held_out=0.3, eval_every=1024))
    levels = {"head_start": [9, 0]}
    configs += [rljax.PPOConfig(env="SparseGridWorld-v0", curriculum={"type": x, "levels": levels}) for x in ("success", "plr")]
    offline = {"env": "Pendulum-v1", "dataset": str(tmp_path / "Pendulum-v1"), "online": True}
    configs += [rljax.IQLConfig(**offline), rljax.AWACConfig(**offline), rljax.TD3BCConfig(**offline)]
    rljax.demonstrations("random", tmp_path / "CartPole-v1", num_episodes=2, env="CartPole-v1")
    configs.append(rljax.CQLConfig(dataset=str(tmp_path / "CartPole-v1")))
    configs.append(ready(TINY["distill"]))
    for config in configs:
        agent = rljax.make_agent(config)
        state = jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0)))
        _, found = jax.eval_shape(lambda s, agent=agent: train_iteration(agent, s, jnp.int32(0)), state)
        logged |= {
            re.sub(
                r"(?<=_error_)\d+$|(?<=success_rate_)\d+$|(?<=curriculum/score_)\d+$|(?<=value_loss_)\w+$|(?<=accuracy_)\w+$",
                "*",
                name,
            )
            for name in found
        }
    roles = {f"league/win_rate_{role}" for role in ROLES}  # those that a preset does not have, too
    assert named == {name for name in logged if not name.startswith(("env/", "perf/"))} | roles
