"""The task file of a launch: what SkyPilot needs to rent a machine, install rljax there and train."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import textwrap
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from rljax.core.config import Config, algorithm_path
from rljax.core.errors import DISTRIBUTION, ConfigError, shown
from rljax.envs.adapters import suite_of
from rljax.envs.registry import PGX_PREFIX, RACE_PREFIX
from rljax.run.files.remote import EXTRAS
from rljax.version import __version__

TASK_FILE = "task.yaml"
RUN_FOLDER = "run"
"""Folder beside the task file for the copy of the run that is fetched."""

NO_JAX = re.compile(r"(MI\d|Radeon|Gaudi|Trainium|Inferentia)", re.IGNORECASE)
"""Accelerators for which no extra of rljax installs JAX: only those of NVIDIA and Google have one."""

_END = "RLJAX_CONFIG"

_UNWRITABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""Characters that a YAML file cannot have, or that its readers take for the end of a line."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}", re.ASCII)
_SECRET = re.compile(r"token|secret|passw|signature|credential|(^|[_-])(key|sig|auth)$", re.IGNORECASE)
"""Names of parameters of an address whose values are secret."""


class Task(NamedTuple):
    """A launch, as its task file describes it.

    Attributes:
        name: name for SkyPilot, of the machine or of the managed job; also that of the run's folder there.
        config: configuration of the run, or of its phases, as TOML.
        extras: extras of rljax that the run needs.
        accelerators: NAME:COUNT, in SkyPilot's words.
        max_price: highest price of the machine in dollars an hour, or None.
        infra: places where the machine may be, CLOUD, CLOUD/REGION or a cluster; anywhere if there is none.
        spot: whether the machine may be taken away at any time; SkyPilot then finds another one.
        workdir: folder to copy to the machine, in which the run starts, or None.
        install: wheel, or address that pip installs rljax from; None for this version from the package index. `${NAME}` in an
            address is a variable of the environment, which SkyPilot gives to the machine as a secret.
        options: further options of `rljax train`.
    """

    name: str
    config: str
    extras: tuple[str, ...]
    accelerators: str
    max_price: float | None = None
    infra: tuple[str, ...] = ()
    spot: bool = False
    workdir: str | None = None
    install: str | None = None
    options: tuple[str, ...] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the variables whose values the machine needs and the task file does not have."""
        return () if self.install is None else tuple(dict.fromkeys(_VARIABLE.findall(self.install)))


class Launched(NamedTuple):
    """A launch, as its task file says.

    Attributes:
        name: name of the machine or of the managed job.
        spot: whether it is a managed job.
        sync: address of the run's copy, or None.
    """

    name: str
    spot: bool
    sync: str | None


def read_task(folder: Path) -> Launched:
    """Read the task file of a launch.

    Raises:
        ConfigError: there is none.
    """
    try:
        text = (folder / TASK_FILE).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{folder}: no launch there ({TASK_FILE}: {error.strerror}); expected a folder of `rljax launch`"
        ) from None
    except ValueError:
        raise ConfigError(f"{folder / TASK_FILE}: not a UTF-8 text file") from None
    name = re.search(r'^name: "?(\w[\w.-]*)"?$', text, re.MULTILINE)
    if name is None:
        raise ConfigError(f"{folder / TASK_FILE}: no name: expected a file as rljax launch writes it")
    spot = re.search(r"^ +use_spot: true$", text, re.MULTILINE) is not None
    # The command is behind the configuration, whose values may be any text.
    sync = re.search(r" --sync (\S.*)$", text.rpartition(_END)[2], re.MULTILINE)
    try:
        return Launched(name[1], spot, None if sync is None else shlex.split(sync[1])[0])
    except ValueError as error:
        raise ConfigError(f"{folder / TASK_FILE}: --sync {shown(sync and sync[1])}: {error}") from None


def holds_secret(address: str) -> bool:
    """Return whether an address has a password or a token in it; one given as `${NAME}` is not in it."""
    try:
        parts = urllib.parse.urlsplit(address)
    except ValueError:
        return False
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    values = [password or ("" if "ssh" in parts.scheme or user == "git" else user)]
    values += [value for name, value in urllib.parse.parse_qsl(parts.query) if _SECRET.search(name)]
    return any(_VARIABLE.sub("", value) for value in values)


def check_paths(workdir: str | None, install: str | None) -> None:
    """Check what is to be copied to the machine.

    Raises:
        ConfigError: it is not there.
    """
    if workdir is not None and not os.path.isdir(workdir):
        raise ConfigError(f"workdir = {shown(workdir)}: no such folder")
    if _is_wheel(install) and not os.path.isfile(install):
        raise ConfigError(f"install = {shown(install)}: no such file")


def task_name(folder: Path, config: str) -> str:
    """Return a name that every cloud takes: that of the folder in small letters, digits and hyphens, and a checksum.

    The checksum is of the path and the configuration. So launches in folders of one name, and different ones one after the other
    in one folder, share neither a machine nor a place for copies; the same launch again has the same name.
    """
    path = folder.resolve()
    name = re.sub(r"[^a-z0-9]+", "-", path.name.lower()).strip("-")
    name = name if name[:1].isalpha() else f"run-{name}".strip("-")
    checksum = hashlib.sha256(f"{path}\n{config}".encode(errors="surrogateescape")).hexdigest()
    return f"{name}-{checksum[:8]}"


def parse_accelerators(text: str) -> tuple[str, int]:
    """Return name and number of `H100:2` or `H100`.

    Raises:
        ConfigError: it is neither, or JAX cannot be installed for such an accelerator.
    """
    found = re.fullmatch(r"([A-Za-z][\w.-]*?)(?::([1-9]\d{0,3}))?", text, re.ASCII)
    if found is None:
        raise ConfigError(f"accelerators = {shown(text)}: expected NAME or NAME:COUNT, such as H100:1, A100-80GB:8 or tpu-v5e-8")
    if NO_JAX.match(found[1]):
        raise ConfigError(f"accelerators = {shown(text)}: expected GPUs of NVIDIA or TPUs of Google, for which JAX is installed")
    return found[1], int(found[2] or 1)


def extras_for(accelerator: str, configs: Iterable[Config], sync: str | None = None) -> tuple[str, ...]:
    """Return the extras of rljax that a machine needs: for its accelerator, for the environments, and for the place of copies."""
    # Drivers of rented machines are often older than CUDA 13 wants.
    extras = ["tpu" if accelerator.lower().startswith("tpu") else "cuda12"]
    for config in configs:
        env = str(config.env).removeprefix(RACE_PREFIX)
        suite = "games" if env.startswith(PGX_PREFIX) else suite_of(env)
        extras += [] if suite is None else [suite]
    scheme = (sync or "").partition("://")[0]
    extras += [EXTRAS[scheme]] if scheme in EXTRAS else []
    return tuple(dict.fromkeys(extras))


def check_local_files(config: Config, workdir: str | None) -> None:
    """Check that the machine will have the files that a configuration names: datasets, runs, modules.

    Args:
        config: the configuration.
        workdir: folder that is copied to the machine, or None.

    Raises:
        ConfigError: one would be missing there; the message names the field and what to do.
    """
    for field, path in _files_of(config):
        copied = workdir is not None and not os.path.isabs(path) and os.path.exists(os.path.join(workdir, path))
        if os.path.exists(path) and not copied:
            raise ConfigError(
                f"{field}: {path} is on this machine only; give --workdir, the folder to copy there, and its path in that folder"
            )


def _files_of(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the files and folders that a configuration may name, with the name of the field."""
    for field, path in (("env", str(config.env)), ("algorithm", algorithm_path(type(config)))):
        module, colon, _ = path.partition(":")
        if colon and re.fullmatch(r"[\w.]+", module):
            yield from ((field, f"{module.replace('.', '/')}{ending}") for ending in (".py", "/__init__.py"))
    names = [field.name for field in dataclasses.fields(config) if field.metadata.get("runs")]
    for name in ("dataset", *names):
        value = getattr(config, name, None)
        yield from ((name, str(path)) for path in (value if isinstance(value, tuple) else (value,)) if path is not None)
    network = getattr(config, "network", {})
    if isinstance(network, Mapping) and network.get("opponent_model") is not None:
        yield "network", str(network["opponent_model"])


def task_text(task: Task) -> str:
    """Return the task file, in YAML.

    Raises:
        ConfigError: a path or the configuration holds a character that such a file cannot.
    """
    resources = {
        "accelerators": task.accelerators,
        "infra": task.infra[0] if len(task.infra) == 1 else None,
        "any_of": [{"infra": place} for place in task.infra] if len(task.infra) > 1 else None,
        "max_hourly_cost": task.max_price,
        "use_spot": task.spot or None,
    }
    parts = [
        f"# Written by rljax {__version__}.",
        f"name: {_yaml(task.name)}",  # `no` and `null` alone are no text
        "resources:",
        *(f"  {key}: {_yaml(value)}" for key, value in resources.items() if value is not None),
    ]
    if task.secrets:
        parts += ["secrets:", *(f"  {name}: null" for name in task.secrets)]  # their values come with the command
    if task.workdir is not None:
        parts.append(f"workdir: {_yaml(os.path.abspath(task.workdir))}")
    if _is_wheel(task.install):
        wheel = os.path.abspath(task.install)
        parts += ["file_mounts:", f"  {_yaml(f'~/wheels/{os.path.basename(wheel)}')}: {_yaml(wheel)}"]
    for key, script in (("setup", _setup(task)), ("run", _run(task))):
        parts += [f"{key}: |", textwrap.indent(script, "  ").rstrip()]
    text = "\n".join(parts) + "\n"
    found = _UNWRITABLE.search(text)
    if found is not None:
        line = text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0].strip()
        raise ConfigError(f"the task file cannot hold the character {found[0]!a}, expected another path or value: {line!a}")
    return text


def _yaml(value: Any) -> str:
    """Return a value as JSON, which is YAML. Escapes of two halves of a character would be two characters there."""
    return json.dumps(value, ensure_ascii=False)


def _is_wheel(install: str | None) -> TypeGuard[str]:
    """Return whether this is a wheel on this machine, which has to be copied."""
    return install is not None and install.endswith(".whl") and "://" not in install


def is_from_index() -> bool:
    """Return whether rljax was installed here from a package index, and not from a folder, a file or a repository (PEP 610)."""
    try:
        return importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json") is None
    except importlib.metadata.PackageNotFoundError:
        return False


def _setup(task: Task) -> str:
    return textwrap.dedent(f"""\
        set -e
        export PATH="$HOME/.local/bin:$PATH"
        command -v uv > /dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
        [ -d ~/rljax ] || uv venv --python 3.12 ~/rljax
        uv pip install --python ~/rljax/bin/python {_requirement(task)}
        """)


def _requirement(task: Task) -> str:
    named = f"{DISTRIBUTION}[{','.join(task.extras)}]"
    if task.install is None:
        return shlex.quote(f"{named}=={__version__}")
    if _is_wheel(task.install):
        return f'"{named} @ file://$HOME/wheels/"{shlex.quote(os.path.basename(task.install))}'
    pieces = enumerate(_VARIABLE.split(f"{named} @ {task.install}"))  # every second one is a variable's name
    return "".join(f'"${{{piece}}}"' if i % 2 else shlex.quote(piece) for i, piece in pieces if piece)


def _run(task: Task) -> str:
    """Return the script that trains. Started again, on this machine or on the one after a preemption, it goes on."""
    train = ["rljax", "train", f"$HOME/{task.name}.toml", "--run-dir", f"$HOME/runs/{task.name}", "--or-resume"]
    start = f"set -e\n. ~/rljax/bin/activate\ncat > ~/{task.name}.toml <<'{_END}'\n"
    return f"{start}{task.config.rstrip()}\n{_END}\n{' '.join([*train, *map(shlex.quote, task.options)])}\n"
