"""Loss functions of one formula each, for the algorithms and for loops of your own.

They take log-probabilities or logits, never a network. `own`, bool of a shape that broadcasts, says which entries count (None:
all), and `legal` which actions there are (None: all); illegal ones have no part in a loss and no gradient. A is the number of
actions.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from rljax.collect.streams import own_mean
from rljax.nn.modules.classes import entry_of, mask_logits
from rljax.nn.outputs.choices import Choices


def huber_value_loss(value: jax.Array, target: jax.Array, delta: float | jax.Array | None = None) -> jax.Array:
    """Return the loss of each value, f32 `[...]`: `0.5 e^2` for errors `|e| <= delta`, else `delta (|e| - 0.5 delta)`.

    Its gradient is at most `delta` (Huber, "Robust estimation of a location parameter", 1964).

    Args:
        value: f32 `[...]`.
        target: f32 `[...]`.
        delta: error from which on the loss is linear; None: half the squared error.
    """
    return 0.5 * jnp.square(value - target) if delta is None else optax.huber_loss(value, target, delta=delta)


def masked_reinforce(log_prob: jax.Array, advantage: jax.Array, own: jax.Array | None = None) -> jax.Array:
    """Return the policy gradient's loss f32 []: the mean over own steps of `-A log pi(a|s)` (Williams, "Simple statistical
    gradient-following algorithms for connectionist reinforcement learning", 1992). Advantages are constants.

    Args:
        log_prob: log-probabilities of the actions taken, f32 `[...]`.
        advantage: f32 `[...]`.
        own: which steps count, bool `[...]`.
    """
    return -own_mean(jax.lax.stop_gradient(advantage) * log_prob, own)


def positive_advantage_regression(log_prob: jax.Array, advantage: jax.Array, own: jax.Array | None = None) -> jax.Array:
    """Return the loss f32 [] that imitates what was better than expected: the mean over own steps of `-max(A, 0) log pi(a|s)`
    (Oh et al., "Self-imitation learning", 2018, eq. 2). Actions that were worse are left alone, not avoided.

    Args:
        log_prob: log-probabilities of the actions taken, f32 `[...]`.
        advantage: f32 `[...]`.
        own: which steps count, bool `[...]`.
    """
    return masked_reinforce(log_prob, jnp.maximum(advantage, 0.0), own)


def advantage_weighted_regression(
    log_prob: jax.Array,
    advantage: jax.Array,
    beta: float | jax.Array,
    max_weight: float | jax.Array = 100.0,
    own: jax.Array | None = None,
) -> jax.Array:
    """Return the loss f32 [] that imitates an action the more, the better it was: the mean over own steps of
    `-min(exp(beta A), max_weight) log pi(a|s)` (Peng et al., "Advantage-weighted regression", 2019, eq. 9; with the bound of
    Kostrikov et al., "Offline reinforcement learning with implicit Q-learning", 2021).

    Args:
        log_prob: log-probabilities of the actions taken, f32 `[...]`.
        advantage: f32 `[...]`; constants.
        beta: inverse temperature; 0 is cloning.
        max_weight: largest weight.
        own: which steps count, bool `[...]`.
    """
    # The exponent is bounded, too: that of a large advantage is infinite.
    weight = jnp.exp(jnp.minimum(beta * advantage, jnp.log(max_weight)))
    return masked_reinforce(log_prob, weight, own)


def expectile_loss(error: jax.Array, expectile: float | jax.Array) -> jax.Array:
    """Return the loss of each error, f32 `[...]`: `|expectile - 1(e < 0)| e^2` (Newey and Powell, "Asymmetric least squares
    estimation and testing", 1987; Kostrikov et al., 2021, eq. 4).

    Of `error = target - prediction` it is least at the expectile of the targets: at 0.5 their mean, near 1 their maximum.
    """
    return jnp.abs(expectile - (error < 0)) * jnp.square(error)


def label_smoothed_cross_entropy(
    logits: jax.Array, label: jax.Array, smoothing: float | jax.Array = 0.0, legal: jax.Array | None = None
) -> jax.Array:
    """Return the cross-entropy f32 `[...]` to labels that are right with probability `1 - smoothing` and else uniform over the
    legal actions: `-(1 - smoothing) log p[label] - smoothing mean over legal a of log p[a]` (Szegedy et al., "Rethinking the
    inception architecture for computer vision", 2016, section 7).

    Args:
        logits: or log-probabilities, f32 `[..., A]`.
        label: i32 `[...]`; the loss of an illegal one is finite and has no gradient from the label.
        smoothing: between 0 and 1.
        legal: bool `[..., A]`.
    """
    log_prob = _log_softmax(logits, legal)
    uniform = own_mean(log_prob, legal, (-1,))
    return -(1.0 - smoothing) * entry_of(log_prob, label) - smoothing * uniform


def soft_cross_entropy(
    logits: jax.Array, teacher_logits: jax.Array, temperature: float | jax.Array = 1.0, legal: jax.Array | None = None
) -> jax.Array:
    """Return `T^2` times the cross-entropy f32 `[...]` from a teacher's softened distribution to the student's,
    `-T^2 sum_a softmax(teacher / T)_a log softmax(student / T)_a` (Hinton et al., "Distilling the knowledge in a neural network",
    2015, section 2). Gradients shrink by `1 / T^2` as T rises; the factor undoes that.

    Args:
        logits: the student's, or log-probabilities, f32 `[..., A]`.
        teacher_logits: f32 `[..., A]`; constants.
        temperature: T > 0; above 1 the less likely actions count more.
        legal: bool `[..., A]`.
    """
    student = _log_softmax(logits, legal, temperature)
    teacher = _log_softmax(jax.lax.stop_gradient(teacher_logits), legal, temperature)
    return -jnp.square(temperature) * jnp.sum(_probabilities(teacher, legal) * student, axis=-1)


def distillation_kl(
    logits: jax.Array, teacher_logits: jax.Array, temperature: float | jax.Array = 1.0, legal: jax.Array | None = None
) -> jax.Array:
    """Return `T^2 KL(teacher || student)`, f32 `[...]`, of distributions softened by T: `soft_cross_entropy` less `T^2` times the
    teacher's entropy, so 0 where they agree, with the same gradient (Rusu et al., "Policy distillation", 2016, eq. 3, which
    softens the teacher only). The arguments are those of `soft_cross_entropy`.
    """
    student = _log_softmax(logits, legal, temperature)
    teacher = _log_softmax(jax.lax.stop_gradient(teacher_logits), legal, temperature)
    return jnp.square(temperature) * jnp.sum(_probabilities(teacher, legal) * (teacher - student), axis=-1)


def choices_loss(choices: Choices, smoothing: float | jax.Array = 0.0) -> jax.Array:
    """Return `label_smoothed_cross_entropy` of the actions of all heads that are read, summed, f32 `[...]`."""
    losses = label_smoothed_cross_entropy(choices.log_prob, choices.action, smoothing, choices.legal)
    return jnp.sum(jnp.where(choices.read, losses, 0.0), axis=-1)


def choices_kl(student: Choices, teacher: Choices, temperature: float | jax.Array = 1.0) -> jax.Array:
    """Return `distillation_kl` of all heads that are read, summed, f32 `[...]`: by the chain rule the divergence of the joint
    distributions where the teacher drew the actions, else that along the actions of whoever did (Vinyals et al., 2019).
    """
    divergences = distillation_kl(student.log_prob, teacher.log_prob, temperature, teacher.legal)
    return jnp.sum(jnp.where(teacher.read, divergences, 0.0), axis=-1)


def choices_kl_to(policy: Choices, other: jax.Array) -> jax.Array:
    """Return KL(policy || other), f32 `[...]`, of all heads that are read, summed, with the gradient of both.

    Where the policy drew the actions, it is by the chain rule the divergence of the joint distributions; its gradient leaves out
    that the actions of earlier heads depend on the policy, too, as that of an entropy bonus does.

    Args:
        policy: the policy's choices.
        other: log-probabilities of the other policy along the same actions, f32 `[..., K, W]`.
    """
    legal = policy.legal
    gap = jnp.where(legal, policy.log_prob - jnp.where(legal, other, 0.0), 0.0)
    divergences = jnp.sum(_probabilities(policy.log_prob, legal) * gap, axis=-1)
    return jnp.sum(jnp.where(policy.read, divergences, 0.0), axis=-1)


def _log_softmax(logits: jax.Array, legal: jax.Array | None, temperature: float | jax.Array = 1.0) -> jax.Array:
    """Return log-probabilities of softened logits f32 `[..., A]`, 0 for illegal actions."""
    if legal is None:
        return jax.nn.log_softmax(logits / temperature)
    # Divide only legal ones: the least finite number over a small temperature would be infinite.
    softened = mask_logits(jnp.where(legal, logits, 0.0) / temperature, legal)
    return jnp.where(legal, jax.nn.log_softmax(softened), 0.0)


def _probabilities(log_prob: jax.Array, legal: jax.Array | None) -> jax.Array:
    return jnp.exp(log_prob) if legal is None else jnp.where(legal, jnp.exp(log_prob), 0.0)
