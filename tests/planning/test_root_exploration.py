"""What the uniform share of AlphaZero's root prior does to the target of the policy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

from rljax.planning.alphazero import _with_root_exploration

ACTIONS = 7


@jax.jit
def weights(prior_logits: jax.Array, share: float) -> jax.Array:
    """The target of a search of 16 in a game of one move: action 2 wins, action 5 loses, the others draw."""
    reward = jnp.zeros(ACTIONS).at[2].set(1.0).at[5].set(-1.0)
    mask = jnp.ones((1, ACTIONS), bool)
    root = mctx.RootFnOutput(prior_logits=prior_logits[None], value=jnp.zeros(1), embedding=jnp.zeros(1))

    def recurrent(
        _params: None, _key: jax.Array, action: jax.Array, embedding: jax.Array
    ) -> tuple[mctx.RecurrentFnOutput, jax.Array]:
        zeros = jnp.zeros(1)
        return mctx.RecurrentFnOutput(
            reward=reward[action], discount=zeros, prior_logits=jnp.zeros((1, ACTIONS)), value=zeros
        ), embedding

    found = mctx.gumbel_muzero_policy(
        params=None,
        rng_key=jax.random.key(0),
        root=_with_root_exploration(root, mask, share),
        recurrent_fn=recurrent,
        num_simulations=16,
    )
    return found.action_weights[0]


@pytest.mark.slow
def test_the_uniform_share_of_the_root_prior_hardly_enters_the_target() -> None:
    """A converged prior stays as it is; one that is sure of the losing move is corrected at once, and only with the share."""
    sure = jnp.where(jnp.arange(ACTIONS) == 2, 12.0, 0.0)
    with_share, without = weights(sure, 0.25), weights(sure, 0.0)
    np.testing.assert_allclose(with_share, without, atol=2e-2)
    assert with_share[5] < 5e-4
    wrong = jnp.where(jnp.arange(ACTIONS) == 5, 12.0, 0.0)
    assert weights(wrong, 0.25)[2] > 0.5
    assert weights(wrong, 0.0)[2] < 0.05
