"""Export: a trained policy as a folder of files that run without rljax.

    greedy.jax     greedy(obs [b, ...]) -> action [b, ...]               a `jax.export` artifact for CPU, CUDA and TPU
    sampling.jax   sampling(obs [b, ...], key u32 [2]) -> action [b, ...]
    greedy.onnx    the greedy action once more, for ONNX runtimes (only where jax2onnx is installed)
    metadata.json  what goes in and comes out, where the policy is from, and an example that needs jax alone

Parameters and observation normaliser are constants of the artifacts, and `b` is any batch size. Where the environment has an
action mask, both functions take `mask` bool `[b, flat_dim]` (`[b, flat_dim, flat_dim]` where heads rule out actions of later
ones) after their other arguments. An action with named heads is a dictionary of arrays `[b]`, and an ONNX output for each.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from rljax.collect.environments import make_evaluation_env
from rljax.core.agent import Agent
from rljax.core.contract import is_array
from rljax.core.environment import action_mask_of
from rljax.core.errors import ConfigError, first_line, how_to_install
from rljax.core.spaces import Dict, as_space, head_sizes
from rljax.core.wrappers import PublicObservation

FORMAT = 1
"""Of the folder; a reader refuses another."""

PLATFORMS = ("cpu", "cuda", "tpu")
GREEDY_FILE, SAMPLING_FILE, ONNX_FILE, METADATA_FILE = "greedy.jax", "sampling.jax", "greedy.onnx", "metadata.json"

ONNX_CHECKS = 1000
"""Observations on which a converted file must act as the artifact does before it is kept."""


class ExportReport(NamedTuple):
    """What `export_policy` wrote: the folder, bytes by file name, and why there is no ONNX file (None where there is one)."""

    path: Path
    files: dict[str, int]
    no_onnx: str | None


class _Signature(NamedTuple):
    """What a policy takes, unbatched: `jax.ShapeDtypeStruct` leaves; `mask` is None where the environment has none."""

    env_name: str
    obs: Any
    mask: jax.ShapeDtypeStruct | None
    obs_space: Any
    action_space: Any


def export_policy(
    agent: Agent,
    state: Any,
    out: str | os.PathLike[str],
    *,
    step: int | None = None,
    run_info: Mapping[str, Any] | None = None,
    onnx: bool = True,
) -> ExportReport:
    """Write the policy of `state` to the new folder `out`, which appears whole or not at all.

    Args:
        agent: from `make_agent`.
        state: the agent's state, unbatched; only what `agent.act` reads of it gets into the files.
        out: a path where there is nothing yet, or an empty folder.
        step: environment steps the policy was trained for, for the metadata.
        run_info: anything else for the metadata.
        onnx: write `greedy.onnx` too, where it can be made; the report says why not.

    Raises:
        ConfigError: there is something at `out` already (nothing is touched), it cannot be written, or `jax.export` cannot
            take the policy.
    """
    folder = Path(os.path.abspath(out))
    _check_free(folder)
    signature = _signature(agent)
    _check_state(agent, state)
    _check_memoryless(agent, state, signature)

    def greedy(obs: Any, *mask: jax.Array) -> Any:
        return agent.act(state, obs, None, jax.random.key(0), True, *mask)[0]

    def sampling(obs: Any, key: jax.Array, *mask: jax.Array) -> Any:
        # Raw bits and a fixed generator: a typed key would need the reader to know more than jax's defaults.
        return agent.act(state, obs, None, jax.random.wrap_key_data(key, impl="threefry2x32"), False, *mask)[0]

    obs, *mask = _batched(signature)
    exported = {
        GREEDY_FILE: _exported(greedy, obs, *mask),
        SAMPLING_FILE: _exported(sampling, obs, jax.ShapeDtypeStruct((2,), jnp.uint32), *mask),
    }
    contents = {name: _serialized(artifact) for name, artifact in exported.items()}
    no_onnx: str | None = "not asked for"
    if onnx:
        model, no_onnx = _onnx_or_reason(greedy, exported[GREEDY_FILE], signature)
        contents |= {} if model is None else {ONNX_FILE: model}
    metadata = {
        "format": FORMAT,
        "algorithm": agent.config.algorithm,
        "environment": signature.env_name,
        "step": step,
        "run": None if run_info is None else dict(run_info),
        "observation": _described(signature.obs),
        "action_space": _space_described(signature.action_space),
        "mask": None if signature.mask is None else _described(signature.mask),
        "platforms": list(PLATFORMS),
        "artifacts": _artifacts(signature, exported, ONNX_FILE in contents),
        "versions": _versions(ONNX_FILE in contents),
        "files": {name: {"bytes": len(x), "sha256": hashlib.sha256(x).hexdigest()} for name, x in contents.items()},
        "example": _example(signature),
    }
    contents[METADATA_FILE] = (json.dumps(_plain(metadata), indent=2, allow_nan=False) + "\n").encode()
    _write_whole(folder, contents)
    return ExportReport(folder, {name: len(content) for name, content in contents.items()}, no_onnx)


@dataclass(frozen=True)
class ExportedPolicy:
    """A policy read back by `load_policy`.

    Observations may be one (`[...]`, the action is unbatched too) or a batch (`[b, ...]`). NumPy observations, lists and numbers
    give NumPy actions, and an `int` for a single discrete one: Gymnasium's environments take them as they come. Where any part of
    the observation is a JAX array, the action is of JAX arrays, so that the policy works under `jit` and `vmap`.

    Attributes:
        metadata: the contents of `metadata.json`.
    """

    metadata: dict[str, Any]
    _greedy: Callable[..., Any]
    _sampling: Callable[..., Any]
    _obs: Any
    _mask: jax.ShapeDtypeStruct | None

    def greedy(self, obs: Any, mask: Any = None) -> Any:
        """The policy's most likely action, or a dictionary of actions where the action space has named heads.

        Args:
            obs: `[...]` or `[b, ...]`.
            mask: legal actions, bool `[flat_dim]` or `[b, flat_dim]`, where the environment has a mask (of both its axes where
                it has two); None: all are.

        Returns:
            For observations in NumPy: `int` of one Discrete action, NumPy arrays of a batch of them (`[b]`, i32) and of all other
            spaces, which may be written to. For JAX arrays: JAX arrays.

        Raises:
            ConfigError: `obs` or `mask` does not have the shape that the policy takes.
        """
        checked, mask, batched = self._checked(obs, mask)
        return self._as_given(self._greedy(checked, *mask), batched, obs)

    def sample(self, obs: Any, key: Any, mask: Any = None) -> Any:
        """An action drawn from the policy with `key`, a `jax.random.key` or raw u32 `[2]`; see `greedy`."""
        checked, mask, batched = self._checked(obs, mask)
        is_typed = is_array(key) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        key = jax.random.key_data(key) if is_typed else jnp.asarray(key)
        if key.shape != (2,) or key.dtype != jnp.uint32:
            raise ConfigError(f"key: expected jax.random.key(0) or its data, uint32 [2], got {key.dtype} {list(key.shape)}")
        return self._as_given(self._sampling(checked, key, *mask), batched, obs)

    def _as_given(self, action: Any, batched: bool, obs: Any) -> Any:
        """An action `[b, ...]` of the artifact, without `b` unless `batched`, of the kind that `obs` was."""
        action = action if batched else jax.tree.map(lambda x: x[0], action)
        if any(isinstance(x, jax.Array) for x in jax.tree.leaves(obs)):
            return action
        # Copies: what NumPy sees of a JAX array cannot be written to. Heads of a Dict are Discrete.
        single = not batched and self.metadata["action_space"]["type"] in ("Discrete", "Dict")
        return jax.tree.map(lambda x: int(x) if single else np.array(x), action)

    def _checked(self, obs: Any, mask: Any) -> tuple[Any, tuple[jax.Array, ...], bool]:
        """`(obs, mask as further arguments, whether they came with a batch axis)`, both with one."""
        leaves, structure = jax.tree.flatten(self._obs)
        # A lone array may come as a list of numbers; within a tree, lists are structure.
        given = [obs] if is_array(self._obs) else jax.tree.leaves(obs)
        if not is_array(self._obs) and not _same_structure(obs, self._obs):
            raise ConfigError(f"obs: expected {json.dumps(_described(self._obs))}, got {jax.tree.structure(obs)}")
        names = _leaf_names("obs", self._obs)
        checked, batches = zip(*map(_checked_leaf, names, given, leaves), strict=True)
        if len(set(batches)) > 1:
            raise ConfigError(f"obs: its parts have batches of different sizes: {dict(zip(names, batches, strict=True))}")
        batch = batches[0]
        result = jax.tree.unflatten(structure, checked)
        if self._mask is None:
            if mask is not None:
                raise ConfigError("mask: this policy takes none, its environment has no action mask")
            return result, (), batch is not None
        if mask is None:
            mask = jnp.ones(self._mask.shape if batch is None else (batch, *self._mask.shape), bool)
        legal, mask_batch = _checked_leaf("mask", mask, self._mask)
        if mask_batch != batch:
            raise ConfigError(f"mask: expected the batch of obs, {batch}, got {mask_batch}")
        return result, (legal,), batch is not None


def load_policy(path: str | os.PathLike[str]) -> ExportedPolicy:
    """Read a folder that `export_policy` wrote. A policy is a program: calling that of a stranger runs what they wrote.

    Raises:
        ConfigError: no exported policy there, or one that is damaged or of another format.
    """
    folder = Path(path)
    try:
        metadata = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
        version, files = metadata["format"], metadata["files"]
        digests = {name: files[name]["sha256"] for name in (GREEDY_FILE, SAMPLING_FILE)} if version == FORMAT else {}
    except OSError:
        raise ConfigError(f"{folder}: no exported policy there (no {METADATA_FILE})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder / METADATA_FILE}: damaged ({type(error).__name__}: {error}): export it again") from None
    if version != FORMAT:
        raise ConfigError(f"{folder}: an exported policy of format {version}, but this rljax reads {FORMAT}: export it again")
    greedy, sampling = (_read_artifact(folder / name, digest) for name, digest in digests.items())
    obs, *mask = jax.tree.unflatten(greedy.in_tree, [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in greedy.in_avals])[0]
    return ExportedPolicy(metadata, jax.jit(greedy.call), jax.jit(sampling.call), obs, mask[0] if mask else None)


def _read_artifact(path: Path, digest: str) -> Any:
    """The `jax.export.Exported` in a file. The digest comes first: a damaged artifact can take the process down with it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise ConfigError(f"{path}: damaged (not the file that {METADATA_FILE} describes): export it again")
    try:
        return jax_export.deserialize(bytearray(data))
    except ImportError:
        raise ConfigError("reading an exported policy needs flatbuffers: pip install flatbuffers") from None
    except Exception as error:
        raise ConfigError(f"{path}: JAX {jax.__version__} cannot read it: {first_line(error)}") from error


def _checked_leaf(name: str, x: Any, expected: jax.ShapeDtypeStruct) -> tuple[jax.Array, int | None]:
    """One array with a batch axis, of the dtype that the artifact takes, and the size of the batch it came with."""
    try:
        x = x if is_array(x) else np.asarray(x)
    except ValueError as error:
        raise ConfigError(f"{name}: expected an array: {error}") from None
    shape = tuple(x.shape)
    whole = ", ".join(["b", *map(str, expected.shape)])
    if shape != expected.shape and (shape[1:] != expected.shape or not shape or shape[0] == 0):
        raise ConfigError(f"{name}: expected shape {list(expected.shape)}, or [{whole}] for b of them, got {list(shape)}")
    if not jnp.can_cast(x.dtype, expected.dtype, "same_kind"):
        raise ConfigError(f"{name}: expected dtype {expected.dtype}, got {x.dtype}")
    batch = None if shape == expected.shape else shape[0]
    return jnp.asarray(x, expected.dtype).reshape((1 if batch is None else batch, *expected.shape)), batch


def _check_free(folder: Path) -> None:
    try:
        if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
            raise ConfigError(f"{folder} exists already: choose another folder for the policy, or delete it first")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from None


def _write_whole(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files aside and rename their folder, so that no reader finds half of them."""
    aside = folder.with_name(f".writing_{folder.name}_{os.getpid()}")
    try:
        aside.mkdir(parents=True)
        for name, content in contents.items():
            (aside / name).write_bytes(content)
        aside.rename(folder)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _signature(agent: Agent) -> _Signature:
    env, env_params = make_evaluation_env(agent.config)
    # What only the critic sees is not there where the policy goes.
    env = PublicObservation(env)
    obs, env_state = jax.eval_shape(lambda: env.reset_env(jax.random.key(0), env_params))
    mask = jax.eval_shape(lambda s: action_mask_of(env, s, env_params), env_state)
    obs, mask = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (obs, mask))
    _check_structure(env.name, obs)
    obs_space, action_space = as_space(env.observation_space(env_params)), as_space(env.action_space(env_params))
    return _Signature(env.name, obs, mask, obs_space, action_space)


def _check_structure(env_name: str, obs: Any) -> None:
    """Containers that jax alone can read back: a class of somebody's would have to be importable there."""
    if type(obs) is dict and all(isinstance(key, str) for key in obs):
        parts = list(obs.values())
    elif type(obs) in (tuple, list):
        parts = list(obs)
    elif is_array(obs):
        return
    else:
        raise ConfigError(
            f"environment {env_name}: a policy can be exported for observations that are arrays, or dictionaries and tuples "
            f"of them, not {type(obs).__name__}; flatten_observations = true makes them vectors"
        )
    for part in parts:
        _check_structure(env_name, part)


def _check_state(agent: Agent, state: Any) -> None:
    """One line for a batch of states, or another agent's."""
    expected = jax.eval_shape(agent.init, jax.random.key(0))
    if not _same_structure(state, expected) or jax.tree.map(jnp.shape, state) != jax.tree.map(jnp.shape, expected):
        raise ConfigError(
            "the state does not fit the agent: expected one state of agent.init or agent.step "
            "(of a batch take one: jax.tree.map(lambda x: x[0], state))"
        )


def _check_memoryless(agent: Agent, state: Any, signature: _Signature) -> None:
    """The files have no place for a carry, and without it a recurrent policy would take each step for an episode's first."""
    arguments = [signature.obs, signature.mask]
    carry = jax.eval_shape(lambda obs, mask: agent.act(state, obs, None, jax.random.key(0), True, mask)[1], *arguments)
    if jax.tree.leaves(carry):
        raise ConfigError(
            "a policy with a memory (recurrent, or a world model) cannot be exported: the files hold functions of one observation"
        )


def _batched(signature: _Signature) -> list[Any]:
    """`[obs]` or `[obs, mask]` with a symbolic batch axis `b` in front."""
    (b,) = jax_export.symbolic_shape("b")
    arguments = [signature.obs] + ([] if signature.mask is None else [signature.mask])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((b, *x.shape), x.dtype), arguments)


def _exported(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function as a `jax.export.Exported`. JIT drops whatever the action does not depend on: the critic, say."""
    try:
        with _no_source_locations():
            return jax_export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
    except Exception as error:
        raise ConfigError(f"the policy cannot be exported for any batch size: {first_line(error)}") from error


def _serialized(exported: Any) -> bytes:
    try:
        return bytes(exported.serialize())
    except ImportError:
        raise ConfigError("exporting a policy needs flatbuffers: pip install flatbuffers") from None


@contextlib.contextmanager
def _no_source_locations() -> Iterator[None]:
    """Programs without the file names of whoever made them, which an artifact would carry around otherwise."""
    option = "jax_traceback_in_locations_limit"
    before = getattr(jax.config, option)
    jax.config.update(option, 0)
    try:
        yield
    finally:
        jax.config.update(option, before)


def _onnx_or_reason(greedy: Callable[..., Any], exported: Any, signature: _Signature) -> tuple[bytes | None, str | None]:
    """The greedy policy as an ONNX file that acts as the artifact does, or one line that says why there is none."""
    try:
        with _as_found():
            model = _converted(greedy, exported, signature)
    except ImportError as error:
        return None, f"jax2onnx cannot be imported ({first_line(error)}): {how_to_install('onnx')}"
    except Exception as error:
        return None, f"jax2onnx cannot convert this policy: {first_line(error)}"
    try:
        disagreement = _disagreement(model, exported, signature)
    except Exception as error:
        return None, f"the converted policy cannot be checked: {first_line(error)}"
    return (model, None) if disagreement is None else (None, disagreement)


def _converted(greedy: Callable[..., Any], exported: Any, signature: _Signature) -> bytes:
    """The greedy policy as ONNX: one input per leaf of the observation, then the mask; one output per leaf of the action."""
    from jax.interpreters import partial_eval

    leaves, structure = jax.tree.flatten(_batched(signature))
    # Traced here and handed over as primitives, not as Python. While jax2onnx traces, it replaces functions of jax.numpy and
    # flax by its own, and what JAX caches then would break the next program; and many of those know no symbolic batch size.
    closed = jax.make_jaxpr(lambda *xs: greedy(*jax.tree.unflatten(structure, xs)))(*leaves)
    jaxpr, used, _ = partial_eval.dce_jaxpr_consts(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    consts = [x for x, is_used in zip(closed.consts, used, strict=True) if is_used]

    def policy(*xs: Any) -> Any:
        actions = _evaluated(jaxpr, consts, xs)
        return actions[0] if len(actions) == 1 else tuple(actions)

    model = importlib.import_module("jax2onnx").to_onnx(
        policy,
        leaves,
        model_name="policy",
        input_names=_input_names(signature),
        output_names=_leaf_names("action", _action_of(exported)),
    )
    return bytes(model.SerializeToString())


def _evaluated(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """The outputs of a program, its inner `jit`s inlined: jax2onnx converts those for some versions of JAX only."""
    from jax.extend.core import Literal

    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
    for equation in jaxpr.eqns:
        inputs = [x.val if isinstance(x, Literal) else values[x] for x in equation.invars]
        if equation.primitive.name in ("jit", "pjit"):
            inner = equation.params["jaxpr"]
            outputs = _evaluated(inner.jaxpr, inner.consts, inputs)
        elif equation.primitive.name == "stack":  # jax2onnx has no converter for it
            axis = equation.params["axis"]
            outputs = [jax.lax.concatenate([jax.lax.expand_dims(x, (axis,)) for x in inputs], axis)]
        else:
            bound = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
            outputs = bound if equation.primitive.multiple_results else [bound]
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [x.val if isinstance(x, Literal) else values[x] for x in jaxpr.outvars]


@contextlib.contextmanager
def _as_found() -> Iterator[None]:
    """Leaves JAX as it was, and the terminal too: jax2onnx forgets to take back some of its patches, and logs a lot."""
    modules = [jax, jnp, jax.lax, jax.nn, jax.random, importlib.import_module("flax.linen")]
    before = [dict(vars(module)) for module in modules]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        for module, attributes in zip(modules, before, strict=True):
            for name, value in attributes.items():
                if vars(module).get(name) is not value:
                    setattr(module, name, value)


def _disagreement(model: bytes, exported: Any, signature: _Signature) -> str | None:
    """How the ONNX file's actions differ from the artifact's on random observations; None where they do not."""
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is in the exception, and in the report
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = _random_inputs(signature, ONNX_CHECKS)
    # Both on the CPU: an accelerator's matmuls may keep fewer bits.
    expected = [np.asarray(x) for x in jax.tree.leaves(exported.call(*jax.device_put(inputs, jax.devices("cpu")[0])))]
    actions = session.run(None, dict(zip(_input_names(signature), map(np.asarray, jax.tree.leaves(inputs)), strict=True)))
    wrong = np.zeros(ONNX_CHECKS, bool)
    # Two actions may be alike to the last bit, and then rounding decides.
    allowed = ONNX_CHECKS // 500
    for action, wanted in zip(actions, expected, strict=True):
        if action.shape != wanted.shape or action.dtype != wanted.dtype:
            return f"the converted policy gave {action.dtype} {list(action.shape)}, not {wanted.dtype} {list(wanted.shape)}"
        if np.issubdtype(wanted.dtype, np.integer):
            differs = action != wanted
        else:
            differs, allowed = ~np.isclose(action, wanted, rtol=1e-5, atol=1e-5), 0
        wrong |= differs.reshape(ONNX_CHECKS, -1).any(axis=1)
    if np.count_nonzero(wrong) > allowed:
        return f"the converted policy acted otherwise on {np.count_nonzero(wrong)} of {ONNX_CHECKS} observations"
    return None


def _random_inputs(signature: _Signature, count: int) -> list[Any]:
    """`[obs]` or `[obs, mask]` of `count` observations drawn from the space, and masks with a legal action in each head."""
    obs_key, legal_key, action_key = jax.random.split(jax.random.key(0), 3)
    obs = jax.vmap(signature.obs_space.sample)(jax.random.split(obs_key, count))
    obs = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype).reshape((count, *like.shape)), obs, signature.obs)
    if signature.mask is None:
        return [obs]
    nvec = head_sizes(signature.action_space)
    assert nvec is not None  # check_environment allows masks for no other
    action = jax.random.randint(action_key, (count, len(nvec)), 0, jnp.asarray(nvec))
    taken = jnp.concatenate([jax.nn.one_hot(action[:, head], n, dtype=bool) for head, n in enumerate(nvec)], axis=1)
    if len(signature.mask.shape) > 1:
        # By the last axis alone, for whatever comes before: the action that was taken is legal after every other.
        taken = jnp.broadcast_to(taken[:, None], (count, *signature.mask.shape))
    return [obs, taken | jax.random.bernoulli(legal_key, 0.5, taken.shape)]


def _action_of(exported: Any) -> Any:
    """The shapes of an artifact's action, `[b, ...]`."""
    return jax.tree.unflatten(exported.out_tree, exported.out_avals)


def _input_names(signature: _Signature) -> list[str]:
    return _leaf_names("obs", signature.obs) + ([] if signature.mask is None else ["mask"])


def _leaf_names(root: str, tree: Any) -> list[str]:
    """`obs`, or `obs.camera`, `obs.speed`, ... for the leaves of a tree."""
    keystr = jax.tree_util.keystr
    return [".".join([root, *(keystr((key,), simple=True) for key in path)]) for path, _ in jax.tree.leaves_with_path(tree)]


def _same_structure(a: Any, b: Any) -> bool:
    left: Any = jax.tree.structure(a)
    return bool(left == jax.tree.structure(b))


def _described(tree: Any) -> Any:
    """Shapes and dtypes of a tree as JSON can hold them."""
    if isinstance(tree, dict):
        return {"type": "dict", "parts": {name: _described(part) for name, part in tree.items()}}
    if isinstance(tree, (tuple, list)):
        return {"type": type(tree).__name__, "parts": [_described(part) for part in tree]}
    shape = [n if isinstance(n, int) else str(n) for n in tree.shape]
    return {"type": "array", "shape": shape, "dtype": jnp.dtype(tree.dtype).name}


def _space_described(space: Any) -> dict[str, Any]:
    """The same for an action space, with its number of actions or its bounds; no bound is null, as JSON has no infinity.

    Named heads are in their order, which the pytree of an action does not have.
    """
    if isinstance(space, Dict):
        return {"type": "Dict", "heads": [{"name": name, **_space_described(part)} for name, part in space.spaces.items()]}
    description: dict[str, Any] = {"type": type(space).__name__, "shape": list(space.shape), "dtype": jnp.dtype(space.dtype).name}
    bounds = {name: np.asarray(getattr(space, name)).tolist() for name in ("n", "nvec", "low", "high") if hasattr(space, name)}
    return description | bounds


def _artifacts(signature: _Signature, exported: Mapping[str, Any], onnx: bool) -> dict[str, Any]:
    """How each file is called."""
    batched = dict(zip(("obs", "mask"), _batched(signature), strict=False))
    arguments = {name: _described(x) for name, x in batched.items()}
    key = {"key": {"type": "array", "shape": [2], "dtype": "uint32"}}
    action = _described(_action_of(exported[GREEDY_FILE]))
    mask = {name: x for name, x in arguments.items() if name == "mask"}
    calls = {
        GREEDY_FILE: {"arguments": arguments, "result": action},
        SAMPLING_FILE: {"arguments": {"obs": arguments["obs"], **key, **mask}, "result": action},
    }
    if onnx:
        inputs = dict(zip(_input_names(signature), map(_described, jax.tree.leaves(_batched(signature))), strict=True))
        leaves = jax.tree.leaves(_action_of(exported[GREEDY_FILE]))
        outputs = dict(zip(_leaf_names("action", _action_of(exported[GREEDY_FILE])), map(_described, leaves), strict=True))
        calls[ONNX_FILE] = {"arguments": inputs, "result": outputs}
    return calls


def _versions(onnx: bool) -> dict[str, str]:
    from importlib.metadata import version

    import rljax

    versions = {"rljax": rljax.__version__, "jax": jax.__version__}
    return versions | ({name: version(name) for name in ("jax2onnx", "onnx")} if onnx else {})


def _example(signature: _Signature) -> list[str]:
    """Lines of Python that use the artifacts from within their folder."""
    mask = "" if signature.mask is None else f", jnp.ones({(1, *signature.mask.shape)}, bool)"
    return [
        "import jax",
        "import jax.numpy as jnp",
        "from jax import export  # reading artifacts also needs the package flatbuffers",
        "",
        f'with open("{GREEDY_FILE}", "rb") as file:',
        "    greedy = export.deserialize(bytearray(file.read()))",
        f'with open("{SAMPLING_FILE}", "rb") as file:',
        "    sampling = export.deserialize(bytearray(file.read()))",
        f"obs = {_zeros_code(signature.obs)}  # any batch size in place of 1",
        f"action = jax.jit(greedy.call)(obs{mask})",
        f"action = jax.jit(sampling.call)(obs, jax.random.PRNGKey(0){mask})",
    ]


def _zeros_code(tree: Any) -> str:
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {_zeros_code(part)}" for name, part in tree.items()) + "}"
    if isinstance(tree, (tuple, list)):
        parts = "".join(_zeros_code(part) + ", " for part in tree)
        return f"({parts})" if isinstance(tree, tuple) else f"[{parts}]"
    return f"jnp.zeros({(1, *tree.shape)}, {jnp.dtype(tree.dtype).name!r})"


def _plain(value: Any) -> Any:
    """The value as JSON knows it; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
