"""Export for NumPy: a policy as one Python file that needs only NumPy, and its weights."""

from __future__ import annotations

import hashlib
import io
import os
import pprint
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax.core.agent import Agent, check_state
from rljax.core.errors import ConfigError
from rljax.core.places import as_path
from rljax.run.export.checks import disagreement
from rljax.run.export.metadata import describe_space, describe_tree, plain
from rljax.run.export.policy import ExportReport, check_free, write_whole
from rljax.run.export.program import read_program
from rljax.run.export.signature import read_signature, search_note, to_export
from rljax.run.export.steps import read_step
from rljax.run.export.translate import translate
from rljax.version import __version__

POLICY_FILE, WEIGHTS_FILE = "policy.py", "weights.npz"

RUNNER = Path(__file__).with_name("runner.py")

ABOUT = '''\
"""Policy of {algorithm} for {environment}, written by rljax {version}. It needs NumPy 2, and {weights} beside it.

    from policy import Policy

    policy = Policy()
    action, carry = policy.step(obs)                # begins an episode
    action, carry = policy.step(obs, carry)         # goes on; also with mask=..., and with rng=..., deterministic=False to sample
"""
'''


def export_numpy(
    agent: Agent,
    state: Any,
    out: str | os.PathLike[str],
    *,
    step: int | None = None,
    run_info: Mapping[str, Any] | None = None,
) -> ExportReport:
    """Write the policy of `state` for NumPy to a new folder `out`, which appears whole or not at all.

    `policy.py` needs only NumPy, neither JAX nor rljax; `weights.npz` holds the arrays that it reads. What it does is the same as
    `agent.act`, to rounding: this is checked on random observations before anything is written.

    Args:
        agent: agent from `make_agent`.
        state: the agent's state, unbatched.
        out: path of a folder to create, or of an empty one.
        step: number of environment steps of training, for the metadata.
        run_info: further entries for the metadata.

    Raises:
        ConfigError: there is something at `out` already (nothing is touched), it cannot be written, or the policy does what this
            export has no code for, such as sorting.
    """
    folder = Path(os.path.abspath(as_path(out, "out")))
    check_free(folder)
    agent = to_export(agent)
    signature = read_signature(agent)
    check_state(agent, state)
    steps = {kind: read_step(agent, state, signature, kind == "greedy") for kind in ("greedy", "sampling")}
    arrays: dict[str, np.ndarray] = {}
    functions = []
    for kind, of_kind in steps.items():
        try:
            program = read_program(of_kind, state)
            source, read = translate(program, kind)
        except ConfigError as error:
            raise ConfigError(f"the policy cannot be exported for NumPy: {error}") from None
        functions.append(source)
        arrays |= read
    weights = _npz(arrays)
    greedy = steps["greedy"]
    result = jax.eval_shape(lambda xs: greedy.noised(state, jax.random.key(0), xs), list(greedy.inputs(key=False).values()))
    action = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), result if greedy.carry is None else result[0])
    metadata = {
        "algorithm": agent.config.algorithm,
        "environment": signature.env_name,
        "note": search_note(agent.config),
        "rljax": __version__,
        "step": step,
        "run": None if run_info is None else dict(run_info),
        "observation": describe_tree(signature.obs),
        "action_space": describe_space(signature.action_space),
        "action": describe_tree(action),
        "mask": None if signature.mask is None else describe_tree(signature.mask),
        "carry": None if greedy.carry is None else describe_tree(greedy.carry),
        "noise": {
            kind: [{"distribution": d.distribution, "shape": list(d.shape), "dtype": np.dtype(d.dtype).name} for d in s.draws]
            for kind, s in steps.items()
        },
        "weights": {"file": WEIGHTS_FILE, "sha256": hashlib.sha256(weights).hexdigest()},
    }
    code = _code(plain(metadata), functions)
    for kind, of_kind in steps.items():
        wrong = disagreement(of_kind, state, _loaded(code, kind, arrays))
        if wrong is not None:
            raise ConfigError(f"the policy cannot be exported for NumPy: {wrong}")
    contents = {POLICY_FILE: code.encode(), WEIGHTS_FILE: weights}
    write_whole(folder, contents)
    return ExportReport(folder, {name: len(content) for name, content in contents.items()}, {})


def _code(metadata: Mapping[str, Any], functions: list[str]) -> str:
    """Return the runner with the metadata and the functions of this policy."""
    # Any text is a name, also one that would end the docstring.
    environment = repr(metadata["environment"])[1:-1].replace('"', "'")
    about = ABOUT.format(algorithm=metadata["algorithm"], environment=environment, version=__version__, weights=WEIGHTS_FILE)
    runner = RUNNER.read_text(encoding="utf-8").split('"""', 2)[2].lstrip()
    described = "METADATA: Any = " + pprint.pformat(metadata, width=120, sort_dicts=False)
    makers = ["", "", *("\n\n".join(functions)).split("\n")]
    body = runner.replace("METADATA: Any = {}", described, 1)
    return about + "\n" + body + "\n".join(makers) + "\n\nMAKERS.update(greedy=greedy, sampling=sampling)\n"


def _loaded(code: str, kind: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return one function of a policy's code, of the arguments by name."""
    module = types.ModuleType("policy")
    exec(compile(code, POLICY_FILE, "exec"), module.__dict__)
    step = module.__dict__["MAKERS"][kind](arrays)

    def call(given: dict[str, np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            found: list[np.ndarray] = step(*given.values())
        return found

    return call


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()
