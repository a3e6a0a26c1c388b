"""`rljax launch`: train elsewhere, through SkyPilot."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import jax

import rljax
from rljax.cli.folders import folder_name, free_folder
from rljax.cli.options import Launch
from rljax.cli.overrides import merge_tables
from rljax.cli.phases import changed_phases
from rljax.core.config import Config, env_name
from rljax.core.config_files import dump_config, holds_phases, load_config
from rljax.core.errors import ConfigError, RljaxError, RljaxWarning, shown
from rljax.run.episodes import check_one_run
from rljax.run.files.folder import check_num_seeds
from rljax.run.files.outputs import make_folder
from rljax.run.files.remote import EXTRAS, Remote
from rljax.run.launch import skypilot
from rljax.run.launch import task as tasks
from rljax.run.phases.plan import check_phases, dump_phases
from rljax.run.view.layout import say
from rljax.version import __version__

SHOWN_OFFERS = 10
"""Number of offers to print, the cheapest ones."""

ACTIONS = ("status", "fetch", "stop")


def launch(options: Launch, overrides: dict[str, Any]) -> None:
    """`rljax launch`: write a task file, show offers and launch it; or look at, fetch or stop what was launched."""
    jax.config.update("jax_platforms", "cpu")  # nothing is computed: the devices of this machine are left alone
    wanted = [name for name in ACTIONS if getattr(options, name) is not None]
    if not wanted:
        _launch(options, overrides)
        return
    if len(wanted) > 1 or options.config is not None or overrides:
        raise ConfigError(f"--{wanted[0]}: takes the folder of a launch and nothing else")
    folder = Path(getattr(options, wanted[0]))
    launched = tasks.read_task(folder)
    if not skypilot.is_installed() and not (options.fetch and launched.sync):
        raise RljaxError(f"{folder}: {skypilot.how_to_get()}")
    {"status": _status, "fetch": _fetch, "stop": _stop}[wanted[0]](folder, launched)


def _launch(options: Launch, overrides: dict[str, Any]) -> None:
    if options.config is None:
        raise ConfigError(
            "nothing to launch: give a preset or a TOML file (see rljax list), or --status, --fetch or --stop FOLDER"
        )
    if options.accelerators is None:
        raise ConfigError("accelerators: is missing, expected NAME:COUNT, such as --accelerators H100:1")
    if options.max_price is not None and not 0 < options.max_price < float("inf"):
        raise ConfigError(f"max_price = {options.max_price}: expected a number of dollars an hour > 0")
    folder = Path(options.run_dir or free_folder(Path("launches") / folder_name(options.config)))
    task, configs = _plan(options, overrides, folder)
    unset = [name for name in task.secrets if name not in os.environ]
    if unset and not options.dry_run:
        raise ConfigError(f"--install: the environment has no variable {unset[0]}, whose value the machine needs")
    installed = skypilot.is_installed()
    if installed:
        if options.cloud is not None:
            skypilot.check_cloud(options.cloud)
        skypilot.check_task(tasks.task_text(task))
        offers = _show_offers(options, *tasks.parse_accelerators(task.accelerators))
        if options.spot and offers and options.cloud is None:
            # Some clouds have no prices of such machines in the catalogue, which a limit would not keep away from.
            task = task._replace(infra=tuple(dict.fromkeys(offer.cloud for offer in offers)))
    written = tasks.task_text(task)
    make_folder(folder, {tasks.TASK_FILE: written}, "choose another with --run-dir, or delete it first")
    file, quoted = folder / tasks.TASK_FILE, shlex.quote(str(folder))
    say(f"{file}: {' and '.join(f'{c.algorithm} on {env_name(c)}' for c in configs)} with {task.accelerators}")
    if task.install is None and not tasks.is_from_index():
        say(f"the machine installs rljax {__version__} from the package index; the one here comes from elsewhere, such as a "
            "repository: for the same one, give --install its address or a wheel")  # fmt: skip
    command = _command(task, file)
    if not installed:
        message = f"{skypilot.how_to_get()}; then: sky {shlex.join(command)}"
        if not options.dry_run:
            raise RljaxError(f"{file} is written but not launched: {message}")
        say(f"not checked, since {message}")
        return
    if options.dry_run:
        say("checked by SkyPilot, and nothing is rented; to launch it:", f"sky {shlex.join(command)}")
        return
    say(f"sky {shlex.join(command)}")
    skypilot.run_sky(*command)
    print("next:")
    print(f"  rljax launch --status {quoted}")
    print(f"  rljax launch --fetch {quoted}")
    print(f"  rljax launch --stop {quoted}")


def _plan(options: Launch, overrides: dict[str, Any], folder: Path) -> tuple[tasks.Task, list[Config]]:
    """Return the task, and the configurations of its phases or the only one, after checking that they can be trained.

    Raises:
        ConfigError: an option or a configuration cannot be used.
    """
    tasks.check_paths(options.workdir, options.install)
    accelerator, count = tasks.parse_accelerators(str(options.accelerators))
    if options.spot and options.sync is None:
        raise ConfigError("--spot: needs --sync, a place for checkpoints that outlives a machine that is taken away")
    if options.sync is not None and options.sync.partition("://")[0] not in EXTRAS:
        raise ConfigError(f"sync = {shown(options.sync)}: expected a bucket, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER")
    if tasks.holds_secret(options.sync or ""):
        raise ConfigError("--sync: the address holds a password, which the task file would keep: leave it out, as the libraries "
                          "of the stores find your credentials")  # fmt: skip
    if tasks.holds_secret(options.install or ""):
        raise ConfigError("--install: the address holds a password or token, which the task file would keep: set a variable of "
                          "the environment to it, and write '${NAME}' in its place")  # fmt: skip
    text, configs = _read(options, overrides)
    name = tasks.task_name(folder, text)
    for config in configs:
        if config.num_devices != count and not accelerator.lower().startswith("tpu"):
            message = f"num_devices = {config.num_devices}: the machine has {count}"
            if config.num_devices > count:
                raise ConfigError(message)
            warnings.warn(f"{message}, of which the others do nothing", RljaxWarning, stacklevel=2)
    train_options = [] if options.seeds is None else ["--seeds", str(options.seeds)]
    train_options += [] if options.sync is None else ["--sync", f"{options.sync.rstrip('/')}/{name}"]
    task = tasks.Task(
        name=name,
        config=text,
        extras=tasks.extras_for(accelerator, configs, options.sync),
        accelerators=f"{accelerator}:{count}",
        max_price=options.max_price,
        infra=() if options.cloud is None else (options.cloud,),
        spot=options.spot,
        workdir=options.workdir,
        install=options.install,
        options=tuple(train_options),
    )
    return task, configs


def _read(options: Launch, overrides: dict[str, Any]) -> tuple[str, list[Config]]:
    """Return the configuration as TOML, and those of its phases or the only one.

    Raises:
        ConfigError: they cannot be trained from the folder that is copied to the machine.
    """
    source = str(options.config)
    sys.path.append(os.path.abspath(options.workdir or "."))  # for modules of the user's own, as where the run starts
    phases = changed_phases(source, overrides) if holds_phases(source) else None
    if phases is None:
        config = load_config(source, **merge_tables(lambda: load_config(source), overrides))
        text, configs = dump_config(config), [config]
        if options.seeds is not None:
            check_num_seeds(options.seeds, config)
            check_one_run(config, f"seeds = {options.seeds}")
    else:
        refused = [name for name in ("seeds", "sync") if getattr(options, name) is not None]
        if refused:
            raise ConfigError(f"--{refused[0]}: is not for a run of phases")
        text, configs = dump_phases(phases), [phase.config for phase in phases.values()]
    for config in configs:
        tasks.check_local_files(config, options.workdir)
    with contextlib.chdir(options.workdir or "."):
        if phases is None:
            rljax.make_agent(configs[0].replace(num_devices=1))
        else:
            check_phases(phases)
    return text, configs


def _show_offers(options: Launch, accelerator: str, count: int) -> list[skypilot.Offer]:
    """Print and return the offers that --max-price allows, of clouds with credentials if a machine is to be rented.

    Raises:
        ConfigError: there is none, or SkyPilot has no credentials.
    """
    offers = skypilot.find_offers(accelerator, count, options.cloud, options.spot)
    usable = None if options.dry_run else skypilot.clouds_with_credentials()
    where = (options.cloud or "").partition("/")[0].lower()
    where = {"k8s": "kubernetes"}.get(where, where)
    if usable is not None and (not usable or (where not in ("", "*") and where not in usable)):
        have = f"only of {', '.join(usable)}" if usable else "of no cloud"
        raise ConfigError(f"SkyPilot has credentials {have}: `sky check` says what to set up for which one")
    if offers is None:
        say("prices are not known here" + (": SkyPilot will keep to --max-price" if options.max_price is not None else ""))
        return []
    if usable is not None:
        offers = [offer for offer in offers if offer.cloud in usable]
        if not offers and "kubernetes" not in usable:
            what = f"accelerators = {shown(f'{accelerator}:{count}')}"
            raise ConfigError(f"{what}: offered by none of the clouds with credentials, {', '.join(usable)}")
    cheapest, limit = offers[:1], options.max_price
    if limit is not None:
        offers = [offer for offer in offers if offer.price <= limit]
        if cheapest and not offers:
            price, cloud, region, _ = cheapest[0]
            raise ConfigError(f"max_price = {limit:g}: the cheapest offer is ${price:.2f} an hour ({cloud}, {region})")
    for price, cloud, region, instance in offers[:SHOWN_OFFERS]:
        print(f"  ${price:6.2f} an hour  {cloud:10}  {instance}  ({region})")
    if len(offers) > SHOWN_OFFERS:
        print(f"  and {len(offers) - SHOWN_OFFERS} more")
    return offers


def _command(task: tasks.Task, file: Path) -> list[str]:
    """Return the arguments of SkyPilot's command that launches a task."""
    kind = ["jobs", "launch", "--name"] if task.spot else ["launch", "--cluster"]
    secrets = (word for name in task.secrets for word in ("--secret", name))
    return [*kind, task.name, *secrets, "--yes", "--detach-run", str(file)]


def _status(_: Path, launched: tasks.Launched) -> None:
    if launched.spot:
        skypilot.run_sky("jobs", "queue")
    else:
        skypilot.run_sky("status", launched.name)
        skypilot.run_sky("queue", launched.name)


def _fetch(folder: Path, launched: tasks.Launched) -> None:
    run = folder / tasks.RUN_FOLDER
    if launched.sync is None:
        skypilot.fetch_from_machine(launched.name, run)
    elif not Remote(launched.sync).restore(run, replace=True):
        raise RljaxError(f"{launched.sync}: no checkpoint of the run is there yet")
    say("next:", f"rljax show {shlex.quote(str(run))}")


def _stop(folder: Path, launched: tasks.Launched) -> None:
    how = ("jobs", "cancel", "--name", launched.name) if launched.spot else ("down", launched.name)
    try:
        _fetch(folder, launched)
    except RljaxError as error:
        raise RljaxError(f"not stopped, as its run was not fetched: {error}; to stop it anyway: sky {shlex.join(how)}") from None
    skypilot.run_sky(*how, "--yes")
    say(f"{launched.name} is stopped")
