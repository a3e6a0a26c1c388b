"""Auto-regressive actions whose first head points at an entity: against enumeration by a slow implementation, head by head."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.environments.spaces import MultiDiscrete
from rljax.core.errors import ConfigError
from rljax.envs.target_pick import TargetPick
from rljax.nn.outputs.pointed import Pointed, PointedDistribution, PointedOutputs, pointed_head
from tests.envs.play import QUICK

NVEC, CONTEXT, ENTITIES, WIDTH = (4, 3, 2), 6, 3, 5
TOTAL, STARTS = sum(NVEC), (0, 4, 7)
JOINT = list(itertools.product(*map(range, NVEC)))
HEAD = pointed_head(MultiDiscrete(NVEC), CONTEXT)


def pairs() -> np.ndarray:
    """A mask `[A, A]`: entity 1 is illegal, 0 rules out an action of each other head, and an action of head 1 one of head 2."""
    mask = np.ones((TOTAL, TOTAL), bool)
    for row, column in ((1, 1), (0, 4), (0, 8), (5, 8)):
        mask[row, column] = False
    return mask


MASKS = {"no mask": None, "one for all": np.array([1, 0, 1, 1, 1, 1, 0, 1, 1], bool), "pairs": pairs()}


def network_output(seed: int = 0) -> Pointed:
    rng = np.random.default_rng(seed)
    entities = jnp.asarray(rng.normal(size=(ENTITIES, WIDTH)), jnp.float32)
    return Pointed(jnp.asarray(rng.normal(size=CONTEXT), jnp.float32), entities, jnp.ones(ENTITIES, bool))


@functools.cache
def parameters() -> Any:
    """Parameters large enough that every head's choice matters to those after it."""
    assert HEAD.module is not None
    shapes = jax.eval_shape(HEAD.module.init, jax.random.key(0), network_output())
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: (0.8 * rng.normal(size=x.shape)).astype(np.float32), shapes)


def outputs_of(x: Pointed) -> PointedOutputs:
    assert HEAD.module is not None
    outputs: PointedOutputs = HEAD.module.apply(parameters(), x)
    return outputs


def head_probabilities(x: Pointed, mask: np.ndarray | None, before: tuple[int, ...]) -> np.ndarray:
    """Probabilities `[n]` of the next head's actions from the parameters, one head and one action at a time."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), parameters()["params"])
    context, entities = (np.asarray(leaf, np.float64) for leaf in x[:2])
    k = len(before)
    for j, action in enumerate(before):
        if j > 0:
            context = context + p["others"]["embedding"][j - 1, action]
        elif action < ENTITIES:
            context = context + entities[action] @ p["embed"]["kernel"] + p["embed"]["bias"]
        else:
            context = context + p["rest_embedding"][action - ENTITIES]
    hidden = np.tanh(context)
    if k > 0:
        logits = hidden @ p["others"]["kernel"][k - 1] + p["others"]["bias"][k - 1]
    else:
        query = hidden @ p["pointer"]["query"]["kernel"] + p["pointer"]["query"]["bias"]
        keys = entities @ p["pointer"]["key"]["kernel"] + p["pointer"]["key"]["bias"]
        logits = np.append(keys @ query / math.sqrt(WIDTH), hidden @ p["rest"]["kernel"] + p["rest"]["bias"])
    weights = np.exp(logits[: NVEC[k]])
    for action in range(NVEC[k]):
        place = STARTS[k] + action
        if mask is not None:
            rows = [] if mask.ndim == 1 else [mask[STARTS[j] + a, place] for j, a in enumerate(before)]
            weights[action] *= all([mask[place] if mask.ndim == 1 else mask[place, place], *rows])
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("name", MASKS)
def test_probabilities_entropies_and_modes_are_those_of_head_after_head(name: str) -> None:
    mask, x = MASKS[name], network_output()

    @jax.jit
    def measure(mask: jax.Array | None, key: jax.Array) -> Any:
        d: PointedDistribution = HEAD.distribution(outputs_of(x), mask)
        joint = jnp.array(JOINT)
        samples = jax.vmap(d.sample)(HEAD.noise(key, (20_000,)))
        return jnp.exp(jax.vmap(d.log_prob)(joint)), jax.vmap(d.entropy_along)(joint), d.mode(), samples

    found, entropy, mode, samples = map(np.asarray, measure(None if mask is None else jnp.asarray(mask), jax.random.key(0)))
    steps = [[head_probabilities(x, mask, actions[:k]) for k in range(3)] for actions in JOINT]
    expected = np.array(
        [np.prod([p[a] for p, a in zip(step, actions, strict=True)]) for step, actions in zip(steps, JOINT, strict=True)]
    )
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    assert found.sum() == pytest.approx(1.0, abs=1e-5)
    for n in np.flatnonzero(expected > 0):
        along = -sum(float(np.sum(p[p > 0] * np.log(p[p > 0]))) for p in steps[n])
        assert entropy[n] == pytest.approx(along, rel=1e-4)
    best: tuple[int, ...] = ()
    while len(best) < 3:
        best = (*best, int(np.argmax(head_probabilities(x, mask, best))))
    assert tuple(mode) == best
    shares = np.array([(samples == actions).all(1).mean() for actions in JOINT])
    np.testing.assert_allclose(shares, expected, atol=0.015)


@pytest.mark.slow
def test_probabilities_go_with_the_entities_and_absent_ones_have_none() -> None:
    x, order = network_output(), np.array([2, 0, 1])
    moved = Pointed(x.context, x.entities[order], x.mask)
    joint = np.array(JOINT)
    where = np.append(np.argsort(order), 3)
    same = np.concatenate([where[joint[:, :1]], joint[:, 1:]], axis=1)
    log_prob = jax.vmap(HEAD.distribution(outputs_of(x), None).log_prob)(joint)
    np.testing.assert_allclose(jax.vmap(HEAD.distribution(outputs_of(moved), None).log_prob)(same), log_prob, rtol=1e-5)
    for present in ([True, False, True], [False, False, False]):
        absent = Pointed(x.context, x.entities, jnp.array(present))
        some = jnp.exp(jax.vmap(HEAD.distribution(outputs_of(absent), None).log_prob)(joint))
        assert some[~np.append(present, True)[joint[:, 0]]].sum() == 0
        assert some.sum() == pytest.approx(1.0, abs=1e-5)


NETWORK = {"encoder": "entities", "pointer": True, "layers": 1, "heads": 2, "width": 16, "hidden": [16], "head_hidden": [16]}


class PickAndSay(TargetPick):
    """TargetPick with a second head, which is not read."""

    def action_space(self, params: Any) -> Any:
        return MultiDiscrete((self.capacity + 1, 2))

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        return super().step_env(key, state, action[0], params)

    def action_mask(self, state: Any, params: Any) -> Any:
        return jnp.concatenate([state.present, jnp.ones(3, bool)])


@pytest.mark.slow
def test_training_moves_the_pointer_and_what_the_other_heads_see_of_it() -> None:
    config = rljax.PPOConfig(
        env=PickAndSay(capacity=8), network=NETWORK, action_heads="autoregressive",
        num_envs=4, num_steps=8, num_minibatches=1, num_epochs=1, total_timesteps=32,
    )  # fmt: skip
    agent = rljax.make_agent(config)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def train(key: jax.Array) -> Any:
        state = agent.init(key)
        after, metrics = agent.step(state)
        return jax.tree.map(lambda a, b: jnp.any(a != b), state.params, after.params), metrics

    changed, metrics = train(jax.random.key(0))
    assert np.isfinite(metrics["train/policy_loss"])
    head = changed["params"]["head"]
    assert head["pointer"]["query"]["kernel"]
    assert head["embed"]["kernel"]
    assert head["others"]["kernel"]


@pytest.mark.long
def test_units_are_pointed_at_in_self_play_with_memory() -> None:
    units = {"map_name": "melee4x4light2", "actions": "units", "observation": "entities"}
    config = rljax.SelfPlayConfig(
        env="MicroRTS-v0", env_params=units, network=NETWORK | {"type": "gru", "size": 8}, action_heads="autoregressive",
        num_envs=4, num_steps=16, num_minibatches=1, num_epochs=1, total_timesteps=64,
    )  # fmt: skip
    state = jax.eval_shape(rljax.make_agent(config).init, jax.random.key(0))
    assert state.params["params"]["head"]["pointer"]["query"]["kernel"].shape[-2:] == (64, 16)


def test_a_first_head_that_cannot_point_at_all_entities_is_refused() -> None:
    class Short(PickAndSay):
        def action_space(self, params: Any) -> Any:
            return MultiDiscrete((5, 2))

        def action_mask(self, state: Any, params: Any) -> Any:
            return None

    expected = r"network.pointer = true: expected at least two heads, .* each of 16 entities; the heads have \[5, 2\] actions"
    with pytest.raises(ConfigError, match=expected):
        rljax.make_agent(rljax.PPOConfig(env=Short(), network=NETWORK, action_heads="autoregressive"))
