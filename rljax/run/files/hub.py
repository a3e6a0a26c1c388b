"""Packed agents in repositories of the Hugging Face Hub, through its own client (extra `hub`)."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljax.core.errors import ConfigError, RljaxError, how_to_install, reason_of, shown
from rljax.core.places import LOCK_FILE, atomic_folder, user_cache
from rljax.run.files.cards import CARD_FILE, Card, check_card, read_card
from rljax.run.files.checkpoint import CHECKPOINTS

README = "README.md"


def push(folder: str | os.PathLike[str], repo: str, *, private: bool = False) -> str:
    """Write a packed agent (see `rljax.pack`) to a model repository of the Hugging Face Hub, which is created if it is not there.

    The repository gets a README.md with the agent's card and how to use it. Files of an agent that was there before are removed,
    in the same commit.

    Args:
        folder: folder of the packed agent.
        repo: `USER/REPO`.
        private: whether a repository that is created is private.

    Returns:
        The address of the repository's page.

    Raises:
        ConfigError: there is no packed agent or it is damaged, huggingface_hub is not installed, or there is no token.
        RljaxError: the Hub cannot be reached, or refuses.
    """
    path = Path(folder)
    card = read_card(path)
    check_card(path)
    hub = check_login(repo)
    api = hub.HfApi()
    files: dict[str, Any] = {name: path / name for name in [CARD_FILE, *card.files]}
    files[README] = model_card(repo, card).encode()
    with _explained(hub, repo):
        address = str(api.create_repo(repo, private=private, exist_ok=True))
        old = [name for name in api.list_repo_files(repo) if name.startswith(f"{CHECKPOINTS}/") and name not in files]
        changes: list[Any] = [hub.CommitOperationDelete(path_in_repo=name) for name in old]
        changes += [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=source) for name, source in files.items()]
        api.create_commit(repo, changes, commit_message=f"{card.algorithm} on {card.env}, {card.step:,} steps")
    return address


def check_login(repo: str) -> Any:
    """Return the Hub's client, if it may write to a repository.

    Raises:
        ConfigError: the name is none of a repository, huggingface_hub is not installed, or there is no token.
    """
    hub = _client(repo)
    if hub.get_token() is None:
        raise ConfigError(f"{repo}: the Hub wants to know who you are: hf auth login, or a token that may write in HF_TOKEN")
    return hub


def pull(repo: str, out: str | os.PathLike[str]) -> Card:
    """Fetch a packed agent from a model repository of the Hugging Face Hub into a new folder, whole or not at all.

    Only the files that its card names are fetched, and each must have the card's SHA-256.

    Args:
        repo: `USER/REPO`.
        out: folder to create.

    Raises:
        ConfigError: `out` exists or cannot be written, or huggingface_hub is not installed.
        RljaxError: the Hub cannot be reached or refuses, or what it has is not a whole packed agent.
    """
    target = Path(out)
    if os.path.lexists(target):
        raise ConfigError(f"{target}: exists already; choose another folder with --out, or delete it first")
    hub = _client(repo)
    api = hub.HfApi()
    try:
        with atomic_folder(target) as aside:
            with _explained(hub, repo):
                commit = api.model_info(repo).sha  # all files are of one commit

                def fetch(name: str) -> None:
                    api.hf_hub_download(repo, name, revision=commit, local_dir=aside)

                fetch(CARD_FILE)
            try:
                card = read_card(aside)
                with _explained(hub, repo):
                    for name in card.files:
                        fetch(name)
                check_card(aside)
            except ConfigError as error:
                raise RljaxError(str(error).replace(f"{aside}{os.sep}", f"{repo}: ")) from None
            shutil.rmtree(aside / ".cache", ignore_errors=True)  # the client's notes
        (target / LOCK_FILE).unlink(missing_ok=True)  # nothing will write there
        return card
    except OSError as error:
        raise ConfigError(f"{target}: cannot be made: {error.strerror or error}") from None


def cached(repo: str) -> Path:
    """Return the folder of the user's cache with the agent of a repository, which is fetched the first time (see `pull`)."""
    _check_name(repo)
    folder = user_cache() / "hub" / repo
    if not folder.exists():
        try:
            pull(repo, folder)
        except ConfigError:
            if not folder.exists():  # otherwise another process was faster
                raise
    return folder


def model_card(repo: str, card: Card) -> str:
    """Return the README.md of a repository: what the Hub reads of it (YAML), and what people do."""
    name = repo.split("/")[1]
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"type": card.env, "name": card.env},
        "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": f"{card.mean:.2f} +/- {card.std:.2f}"}],
    }
    header = {
        "library_name": "rljax",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "rljax", card.algorithm, card.env],
        "model-index": [{"name": name, "results": [result]}],
    }
    # JSON is YAML: one key a line is as readable, and needs no other library.
    yaml = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in header.items())
    rows = "\n".join(f"| {title} | {text} |" for title, text in card.lines().items())
    return f"""---
{yaml}
---

# {name}

An agent that rljax trained and packed.

| | |
| --- | --- |
{rows}

The return is that of {card.episodes:,} episodes of a seed that training did not see; `rljax eval` plays the same ones:

```bash
pip install "rljax-jit[hub]"
rljax pull {repo} --out {name}
rljax eval {name} --seed {card.eval_seed} --episodes {card.episodes}
rljax record {name} --out {name}.gif
```

```python
import rljax

agent, state = rljax.load("hub:{repo}")
```
"""


def _client(repo: str) -> Any:
    """Return the module huggingface_hub, after checking the name of a repository."""
    _check_name(repo)
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise ConfigError(f"huggingface_hub is not installed: {how_to_install('hub')}") from None


def _check_name(repo: str) -> None:
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo, re.ASCII):
        raise ConfigError(f"repository {shown(repo)}: expected USER/REPO")


@contextlib.contextmanager
def _explained(hub: Any, repo: str) -> Iterator[None]:
    """Explain in one line what the Hub or the way to it says; the client draws no bars for small files, and logs no tries."""
    errors, bars, logger = hub.errors, hub.utils, logging.getLogger("huggingface_hub")
    drawn, level = not bars.are_progress_bars_disabled(), logger.level
    bars.disable_progress_bars()
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    except errors.RepositoryNotFoundError:  # also one that is gated
        raise RljaxError(f"{repo}: the Hub has no such repository, or none that you may see (hf auth login)") from None
    except errors.LocalEntryNotFoundError as error:  # before the error of which it is one
        raise RljaxError(f"{repo}: the Hub cannot be reached: {reason_of(error.__cause__ or error)}") from None
    except errors.EntryNotFoundError as error:
        missing = re.search(r"[^/\s]+/[^/\s]+/resolve/[^/\s]+/([^\s?]+)", str(error))
        what = f"no {missing[1].rstrip('.')} there" if missing else "a file is missing there"
        raise RljaxError(f"{repo}: no packed agent: {what}") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            raise RljaxError(f"{repo}: the Hub refuses your token: it needs one that may write there (hf auth login)") from None
        raise RljaxError(f"{repo}: the Hub failed: {reason_of(error)}") from None
    except (RljaxError, KeyboardInterrupt):
        raise
    except Exception as error:  # of whatever library the client speaks HTTP with
        raise RljaxError(f"{repo}: the Hub cannot be reached: {reason_of(error)}") from None
    finally:
        logger.setLevel(level)
        if drawn:
            bars.enable_progress_bars()
