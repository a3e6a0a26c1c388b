"""The wheel: everything in it, usable and typed from another directory; imports that stay light."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rljax
from rljax.core.errors import DISTRIBUTION
from rljax.lazy import PACKAGES

REPO = Path(__file__).parent.parent


@pytest.mark.slow
def test_wheel_has_environments_presets_and_type_marker_and_works_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(REPO)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    everything = [p.relative_to(REPO) for p in (REPO / "rljax").rglob("*.py")]
    sources = [path for path in everything if "peers" not in path.parts]  # imitations of other libraries do not ship
    sources += [
        Path("rljax") / p.relative_to(REPO) for folder in ("envs", "configs") for p in (REPO / folder).glob("*.[pt][yo]*")
    ]
    sources += [p.relative_to(REPO) for p in (REPO / "rljax/run/export/web/static").iterdir()]
    agents = [p.relative_to(REPO) for p in (REPO / "rljax/zoo").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert len([p for p in agents if p.name == "card.json"]) >= 5
    sources += agents
    assert len([p for p in sources if p.suffix == ".toml"]) >= 5
    assert len([p for p in sources if p.suffix == ".js"]) >= 5
    for path in [*sources, Path("rljax/py.typed")]:
        assert path.as_posix() in names
    assert not [n for n in names if n.startswith(("tests", "envs", "configs", "build")) or "peers" in n]
    # Unpacked and first on the path: what runs is the wheel's content, not this checkout.
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import rljax, rljax.envs; print(rljax.__file__, rljax.envs.__file__); print(rljax.load_config('cartpole_ppo').env); "
        "print(rljax.load_run('zoo:cartpole_ppo').config.env)"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=True
    )
    files, preset_env, agent_env = done.stdout.splitlines()
    assert all(f.startswith(str(tmp_path / "site")) for f in files.split())
    assert preset_env == agent_env == "CartPole-v1"


def test_import_leaves_heavy_and_optional_packages_alone() -> None:
    heavy = {"gymnax", "distrax", "orbax", "matplotlib", "seaborn", "tyro", "rejax", "PIL", "imageio"}
    heavy |= {"tensorboardX", "wandb", "mlflow", "aim", "jax2onnx", "onnx", "onnxruntime", "huggingface_hub"}
    late = {"plot", "record", "log_run", "play", "tournament", "demonstrations", "open_dataset", "compile_for", "CompileReport"}
    late |= {"train_opponent_model", "load_opponent_model"}
    code = (
        "import sys, rljax; print([m for m in ('jax', 'flax', 'numpy') if m in sys.modules])\n"
        f"for name in set(rljax.__all__) - {late}: getattr(rljax, name)\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_the_names_for_type_checkers_are_those_there_are() -> None:
    stub = ast.parse((REPO / "rljax" / "__init__.pyi").read_text())
    listed = next(ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign))
    assert sorted(listed) == rljax.__all__


def test_packages_that_import_nothing_import_their_modules_when_asked() -> None:
    found = set()
    for path in (REPO / "rljax").glob("**/__init__.py"):
        imports = any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.parse(path.read_text()).body)
        package = ".".join(path.parent.relative_to(REPO / "rljax").parts)
        # Experiments are imported all together, with their table.
        if not imports and package not in ("cli", "zoo", "run.reproduce.playing"):
            found.add(package)
    assert found == set(PACKAGES)
    code = "import rljax; rljax.nn.modules.initializers.orthogonal, rljax.core.games.versus.Remembering\n"
    code += "rljax.collect.games.play_match\n"
    code += "assert not hasattr(rljax.core, 'vresus') and not hasattr(rljax.nn, '__wrapped__')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_threads_may_ask_for_names_at_the_same_time() -> None:
    code = """
import threading, rljax
names = ["fit", "tune", "play", "league", "make_mcts", "DreamerConfig", "LeagueConfig", "envs", "load_run", "record", "plot"]
missing, barrier = set(names), threading.Barrier(len(names))
def ask(name):
    barrier.wait()
    getattr(rljax, name)
    missing.discard(name)
threads = [threading.Thread(target=ask, args=(name,)) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not missing, missing
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_every_package_is_listed_for_the_wheel() -> None:
    import tomllib

    listed = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    inside = {".".join(p.parent.relative_to(REPO).parts) for p in (REPO / "rljax").rglob("__init__.py")}
    beside = {".".join(("rljax", *p.parent.relative_to(REPO).parts)) for p in (REPO / "envs").rglob("__init__.py")}
    found = inside | beside | {"rljax.configs"}
    assert sorted(found) == sorted(listed)


def test_requirements_have_lower_bounds() -> None:
    import tomllib

    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = [r for group in project["optional-dependencies"].values() for r in group]
    for requirement in project["dependencies"] + extras:
        assert ">=" in requirement or requirement.startswith(f"{DISTRIBUTION}["), requirement  # its own extras


def test_oldest_pins_every_requirement_to_its_lower_bound() -> None:
    done = subprocess.run(
        [sys.executable, str(REPO / ".ci" / "oldest.py"), "tune"], capture_output=True, text=True, timeout=60, check=True
    )
    pins = done.stdout.split()
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", pin) for pin in pins)
    assert {"jax", "numpy", "optuna"} <= {pin.partition("==")[0] for pin in pins}


def test_one_name_to_install_by_and_plug_ins_of_the_same_jax() -> None:
    import tomllib

    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    (bound,) = (r.removeprefix("jax") for r in project["dependencies"] if r.startswith("jax>="))
    for extra in ("cuda12", "cuda13", "tpu"):
        assert project["optional-dependencies"][extra] == [f"jax[{extra}]{bound}"]
    pages = [REPO / "README.md", *(REPO / "docs").rglob("*.md")]
    named = {extra for page in pages for extra in re.findall(rf"{DISTRIBUTION}\[(\w+)\]", page.read_text())}
    assert {"onnx", "tune", "video"} <= named <= set(project["optional-dependencies"])
