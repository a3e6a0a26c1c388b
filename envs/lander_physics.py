"""The motion of LunarLander-v3: a hull and two legs above uneven ground, as Gymnasium's Box2D computes it.

Box2D is a general engine; these three bodies are solved directly. Both legs are joined to the hull at the hull's origin. So the
mechanism turns about one point: the velocity of that point and three spins say everything, and the joints hold exactly.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

DT = 1 / 50
"""Seconds per step."""
SCALE = 30.0
"""Pixels of Gymnasium's window, in which the shapes are given, per metre."""
WIDTH, HEIGHT = 600 / SCALE, 400 / SCALE
NUM_POINTS = 11
"""Points of the ground, which is straight between them."""
CHUNK = WIDTH / (NUM_POINTS - 1)
PAD_HEIGHT = HEIGHT / 4
HULL = np.array([(-14, 17), (-17, 0), (-17, -10), (17, -10), (17, 0), (14, 17)]) / SCALE
"""Corners of the lander, counter-clockwise, relative to its origin, at which the legs are joined."""
LEG_DOWN = 18 / SCALE
LEG_LOWER, LEG_UPPER = 0.35, 0.85
"""Limits of the angle by which a leg is turned outwards: Gymnasium's 0.4 and 0.9 count from the 0.05 of a leg that is created."""
LEG_SPEED, LEG_TORQUE = 0.3, 40.0
"""The motor of a leg turns it inwards at this speed with at most this torque, and so works as a spring."""
MAIN_ENGINE_DOWN, SIDE_ENGINE_AWAY, SIDE_ENGINE_UP, SIDE_ENGINE_BACK = 4 / SCALE, 12 / SCALE, 14 / SCALE, 17 / SCALE
FRICTION = math.sqrt(0.1 * 0.2)
"""Box2D takes the geometric mean of the ground's friction and a leg's."""

# Box2D keeps shapes apart by a skin, leaves small errors of position alone and corrects the others by a fifth at a time.
SKIN, LINEAR_SLOP, ANGULAR_SLOP, BAUMGARTE = 0.02, 0.005, math.radians(2), 0.2
SLEEP_SPEED, SLEEP_SPIN, SLEEP_STEPS = 0.01, math.radians(2), 25

VELOCITY_SWEEPS, POSITION_SWEEPS = 20, 4
SIDES = np.array([1.0, -1.0], np.float32)
"""The first leg is the right one. A leg's side times its angle to the lander is the angle by which it is turned outwards."""


def _mass_of(corners: np.ndarray, density: float) -> tuple[float, np.ndarray, float]:
    """Return the mass, the centre and the moment of inertia about the centre of a polygon."""
    a, b = corners, np.roll(corners, -1, 0)
    double = a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
    area = double.sum() / 2
    center = ((a + b) * double[:, None]).sum(0) / (6 * area)
    about_origin = (double * ((a * a + a * b + b * b).sum(1))).sum() / 12
    return density * area, center, density * (about_origin - area * (center @ center))


LEG = np.array([(-2, -8), (2, -8), (2, 8), (-2, 8)]) / SCALE
"""Corners of a leg, counter-clockwise, relative to its centre; the first two are its foot."""
_hull, _leg = _mass_of(HULL, 5.0), _mass_of(LEG, 1.0)
MASSES = np.array([_hull[0], _leg[0], _leg[0]], np.float32)
INERTIAS = np.array([_hull[2], _leg[2], _leg[2]], np.float32)
MASS = float(MASSES.sum())
CENTERS = np.array([_hull[1], (20 / SCALE, -18 / SCALE), (-20 / SCALE, -18 / SCALE)], np.float32)
"""Centres of mass of the hull and the two legs in the frame of each, relative to the joints: f32 `[3 bodies, 2]`."""
FEET = np.stack([CENTERS[1:, None] + LEG[:2]])[0].astype(np.float32)
"""Corners of the legs that stand on the ground in the frame of each leg, relative to the joints: f32 `[2 legs, 2 corners, 2]`."""


@struct.dataclass
class LunarLanderState:
    """SI units: m, m/s, rad, rad/s. The right leg comes first."""

    position: jax.Array
    """Origin of the lander, f32 `[2]`."""
    angle: jax.Array
    velocity: jax.Array
    """Velocity of the lander's centre of mass, f32 `[2]`."""
    spin: jax.Array
    leg_angle: jax.Array
    """Angles of the legs, f32 `[2]`, not relative to the lander."""
    leg_velocity: jax.Array
    """Velocities of the legs' centres of mass, f32 `[2 legs, 2]`."""
    leg_spin: jax.Array
    contact: jax.Array
    """True for each leg that touches the ground, bool `[2]`."""
    still: jax.Array
    """Number of steps for which no body has moved, int32."""
    ground: jax.Array
    """Heights of the ground, f32 `[11]`, at equal distances from the left edge of the world to the right one."""
    wind: jax.Array
    """Indices into the patterns of the wind and its torque, int32 `[2]`."""
    time: jax.Array


@struct.dataclass
class LunarLanderParams:
    """Gravity in m/s^2, at most 0 and above -12; engine powers per unit of offset; wind in N and turbulence in N m."""

    gravity: float = -10.0
    main_engine_power: float = 13.0
    side_engine_power: float = 0.6
    initial_force: float = 1000.0
    enable_wind: bool = False
    wind_power: float = 15.0
    turbulence_power: float = 1.5
    max_steps_in_episode: int = 1000


def start(heights: jax.Array, force: jax.Array, wind: jax.Array, params: LunarLanderParams) -> LunarLanderState:
    """Return the state in which an episode starts.

    Args:
        heights: uniform in 0..`HEIGHT / 2`, f32 `[12]`; the ground is their running mean, with a flat pad in the middle.
        force: force on the lander in Gymnasium's first step, in kN, f32 `[2]`.
        wind: indices into the patterns of the wind, int32 `[2]`.
    """
    heights = heights.at[3:8].set(PAD_HEIGHT)
    ground = 0.33 * (jnp.roll(heights, 1) + heights + jnp.roll(heights, -1))[:NUM_POINTS]
    # Gymnasium creates the legs away from where the joints hold them, and lets Box2D pull them in place in a first step.
    # What comes out is linear in the force and the torque to 2e-5; the coefficients are a least-squares fit to 400 resets.
    gust, twist = jnp.where(params.enable_wind, _blowing(wind), 0.0)
    push_x, push_y = force[0] + gust * params.wind_power / 1000, force[1]
    twist *= params.turbulence_power
    angle = 0.000439 * twist - 0.009250 * push_x
    fall = params.gravity * DT
    spin = 0.021754 * twist - 0.457878 * push_x
    outwards = jnp.stack([0.491889 - 0.002747 * push_x, 0.492163 + 0.002747 * push_x])
    # In the next step Box2D stops short of what the motors of the legs want, by this much.
    outwards += 0.0003 * push_y - 0.000031 * push_x**2
    return LunarLanderState(
        position=jnp.stack([WIDTH / 2 + 0.079827 * push_x + 0.00004 * twist, 13.339469 + fall * DT + 0.080663 * push_y]),
        angle=angle,
        velocity=jnp.stack([4.042799 * push_x - 0.000458 * twist, fall + 4.033161 * push_y]),
        spin=spin,
        leg_angle=SIDES * outwards + angle,
        leg_velocity=jnp.stack(
            [
                jnp.full(2, 3.706773 * push_x + 0.015507 * twist),
                fall + 4.033161 * push_y + (0.013832 * twist - 0.291139 * push_x) * SIDES,
            ],
            1,
        ),
        leg_spin=jnp.full(2, spin),
        contact=jnp.zeros(2, bool),
        still=jnp.zeros((), jnp.int32),
        ground=ground,
        wind=wind + params.enable_wind,
        time=jnp.zeros((), jnp.int32),
    )


def _blowing(wind: jax.Array) -> jax.Array:
    """Return the strengths of the wind and its torque, in -1..1, at indices into their patterns, which never repeat."""
    phase = wind.astype(jnp.float32) * 0.01
    return jnp.tanh(jnp.sin(2 * phase) + jnp.sin(math.pi * phase))


class Rows(NamedTuple):
    """Directions in which impulses act on a motion, which is the velocity of the joints and the three spins, f32 `[5]`.

    Each array has a leading axis of directions R.
    """

    speed: jax.Array
    """Derivative of the speed in each direction with respect to the motion, f32 `[R, 5]`."""
    response: jax.Array
    """Change of the motion by an impulse of 1, f32 `[R, 5]`."""
    resistance: jax.Array
    """Impulse that changes the speed by 1, f32 `[R]`."""


def advance(
    state: LunarLanderState, main: jax.Array, side: jax.Array, dispersion: jax.Array, params: LunarLanderParams
) -> tuple[LunarLanderState, jax.Array]:
    """Advance the physics by one step.

    Args:
        main, side: powers of the engines, see `LunarLander.throttle`.
        dispersion: noise of the engines, uniform in -1..1 over `SCALE`, f32 `[2]`.

    Returns:
        The next state, and whether the lander's hull has touched the ground, bool [].
    """
    # Both legs are joined to the lander at its origin. So this is three bodies that turn about one point: the velocity of the
    # point and the three spins say everything, the joints need no impulses, and the matrix of inertia is nearly diagonal.
    blows = params.enable_wind & ~state.contact.any()
    velocity, hull_spin = _forced(state, main, side, dispersion, blows, params)
    velocities = jnp.concatenate([velocity[None], state.leg_velocity + jnp.array([0.0, params.gravity * DT])])
    spins = jnp.concatenate([hull_spin[None], state.leg_spin])
    angles = jnp.concatenate([state.angle[None], state.leg_angle])

    places = turned(angles, CENTERS)
    levers = _across(places)
    momentum = (MASSES[:, None] * velocities).sum(0)
    angular_momenta = jnp.asarray(INERTIAS * spins + MASSES * (levers * velocities).sum(1))
    motion = _respond(levers, momentum, angular_momenta)

    feet = turned(jnp.repeat(state.leg_angle, 2), FEET.reshape(4, 2))
    gaps, normals = _gap(state.ground, state.position + feet)
    opened = jnp.asarray(SIDES * (state.leg_angle - state.angle))
    joints = _rows(levers, jnp.zeros((2, 2)), jnp.array([(-1.0, 1.0, 0.0), (1.0, 0.0, -1.0)]))
    normal_rows = _rows(levers, normals, _spin_of_leg((normals * _across(feet)).sum(1)))
    tangents = -_across(normals)
    tangent_rows = _rows(levers, tangents, _spin_of_leg((tangents * _across(feet)).sum(1)))
    motion = _solve_velocities(motion, opened, gaps <= SKIN, joints, normal_rows, tangent_rows)

    spins = motion[2:]
    velocities = motion[:2] + spins[:, None] * levers
    still = (((velocities**2).sum(1) <= SLEEP_SPEED**2) & (jnp.abs(spins) <= SLEEP_SPIN)).all()

    # The common centre of mass moves straight.
    center = state.position + _common_center(places) + DT * (MASSES[:, None] * velocities).sum(0) / MASS
    angles = angles + DT * spins
    position = center - _common_center(turned(angles, CENTERS))
    depths = _gap(state.ground, position + turned(jnp.repeat(angles[1:], 2), FEET.reshape(4, 2)))[0] - SKIN
    shift = _correct_positions(jnp.asarray(SIDES * (angles[1:] - angles[0])), opened, depths, joints, normal_rows)
    position, angles = position + shift[:2], angles + shift[2:]

    # Box2D looks for contacts before it moves the bodies, and while it moves them only for those that go in deep.
    contact = ((gaps <= SKIN) | (depths <= LINEAR_SLOP - SKIN)).reshape(2, 2).any(1)
    crashed = _hull_gap(state.ground, state.position, state.angle) <= SKIN
    crashed |= _hull_gap(state.ground, position, angles[0]) <= LINEAR_SLOP
    next_state = LunarLanderState(
        position=position,
        angle=angles[0],
        velocity=velocities[0],
        spin=spins[0],
        leg_angle=angles[1:],
        leg_velocity=velocities[1:],
        leg_spin=spins[1:],
        contact=contact,
        still=jnp.where(still, state.still + 1, 0),
        ground=state.ground,
        wind=state.wind + blows,
        time=state.time + 1,
    )
    return next_state, crashed


def turned(angles: jax.Array, points: Any) -> jax.Array:
    """Turn points f32 `[K, 2]` counter-clockwise about the origin by angles f32 `[K]` or []."""
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    x, y = points[..., 0], points[..., 1]
    return jnp.stack([cos * x - sin * y, sin * x + cos * y], -1)


def _across(vectors: jax.Array) -> jax.Array:
    """Turn vectors `[..., 2]` by a right angle: the velocities of points at `vectors` that turn about the origin with spin 1."""
    return jnp.stack([-vectors[..., 1], vectors[..., 0]], -1)


def _common_center(places: jax.Array) -> jax.Array:
    return (MASSES[:, None] * places).sum(0) / MASS


def _forced(
    state: LunarLanderState, main: jax.Array, side: jax.Array, dispersion: jax.Array, blows: jax.Array, params: LunarLanderParams
) -> tuple[jax.Array, jax.Array]:
    """Return the velocity f32 `[2]` and the spin of the hull after gravity, the engines and the wind, as if it had no legs."""
    sin, cos = jnp.sin(state.angle), jnp.cos(state.angle)
    up, left = jnp.stack([-sin, cos]), jnp.stack([-cos, -sin])
    center = up * CENTERS[0, 1]
    # An engine's impulse is proportional to the place where it acts, relative to the lander; the noise moves that place.
    main_at = left * dispersion[1] - up * (MAIN_ENGINE_DOWN + 2 * dispersion[0])
    main_impulse = -main_at * (params.main_engine_power * main)
    side_at = left * (3 * dispersion[1] + jnp.sign(side) * SIDE_ENGINE_AWAY) - up * dispersion[0]
    side_impulse = -side_at * (params.side_engine_power * jnp.abs(side))
    # These two lengths should be one, and then the engines would stay in place on a lander that tilts. Gymnasium has it so.
    side_at += jnp.stack([-sin * SIDE_ENGINE_BACK, cos * SIDE_ENGINE_UP])
    gust, twist = jnp.where(blows, _blowing(state.wind), 0.0)
    impulse = main_impulse + side_impulse + jnp.stack([gust * params.wind_power * DT, 0.0])
    moment = (_across(main_at - center) * main_impulse).sum() + (_across(side_at - center) * side_impulse).sum()
    moment += twist * params.turbulence_power * DT
    fall = jnp.array([0.0, params.gravity * DT])
    return state.velocity + fall + impulse / MASSES[0], state.spin + moment / INERTIAS[0]


def _respond(levers: jax.Array, momentum: jax.Array, angular_momenta: jax.Array) -> jax.Array:
    """Return the motion f32 `[..., 5]` of a momentum `[..., 2]` and momenta of the three spins about the joints `[..., 3]`."""
    inertias = INERTIAS + MASSES * (levers**2).sum(1)
    coupling = MASSES[:, None] * levers
    # Eliminate the spins: a system of two equations for the velocity of the joints remains.
    xx, yy = MASS - (coupling**2 / inertias[:, None]).sum(0)
    xy = -(coupling[:, 0] * coupling[:, 1] / inertias).sum()
    rest = momentum - (coupling * (angular_momenta / inertias)[..., None]).sum(-2)
    determinant = xx * yy - xy**2
    x = (yy * rest[..., 0] - xy * rest[..., 1]) / determinant
    y = (xx * rest[..., 1] - xy * rest[..., 0]) / determinant
    velocity = jnp.stack([x, y], -1)
    spins = (angular_momenta - (coupling * velocity[..., None, :]).sum(-1)) / inertias
    return jnp.concatenate([velocity, spins], -1)


def _rows(levers: jax.Array, linear: jax.Array, angular: jax.Array) -> Rows:
    speed = jnp.concatenate([linear, angular], -1)
    response = _respond(levers, linear, angular)
    return Rows(speed, response, 1 / (speed * response).sum(-1))


def _spin_of_leg(of_feet: jax.Array) -> jax.Array:
    """Return the derivatives with respect to the three spins, f32 `[4, 3]`, of speeds of the four feet."""
    legs = np.repeat(np.array([(0, 1, 0), (0, 0, 1)], np.float32), 2, 0)
    return of_feet[:, None] * legs


def _solve_velocities(
    motion: jax.Array, opened: jax.Array, touching: jax.Array, joints: Rows, normals: Rows, tangents: Rows
) -> jax.Array:
    """Return the motion after the impulses of motors and limits of the joints (2) and of contacts (4) with friction.

    Sequential impulses, as in Box2D, with one change. A leg is so much lighter than the hull that its contact and its joint,
    solved in turns, need hundreds of turns to pass on an impulse; so each direction of a contact is solved together with the
    joint of its leg.
    """
    rows = Rows(*(jnp.concatenate(parts) for parts in zip(tangents, normals, strict=True)))
    legs = jnp.array([0, 0, 1, 1, 0, 0, 1, 1])
    joint = Rows(*(part[legs] for part in joints))
    coupling = (rows.speed * joint.response).sum(-1)
    held_resistance = 1 / (1 / rows.resistance - coupling**2 * joint.resistance)
    at_lower, at_upper = (opened <= LEG_LOWER)[legs], (opened >= LEG_UPPER)[legs]
    is_leg = legs[:, None] == jnp.arange(2)
    most = LEG_TORQUE * DT

    def sweep(_: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        motion, joint_impulses, impulses = carry
        grip = FRICTION * impulses[4:]
        low = jnp.concatenate([-grip, jnp.zeros(4)])
        high = jnp.concatenate([grip, jnp.where(touching, jnp.inf, 0.0)])

        def push(carry: tuple[jax.Array, jax.Array], xs: Any) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            motion, joint_impulses = carry
            row, joint, coupling, held_resistance, is_leg, at_lower, at_upper, impulse, low, high = xs
            held = jnp.where(is_leg, joint_impulses, 0.0).sum()
            speed, opening = (row.speed * motion).sum(), (joint.speed * motion).sum()

            def of_joint(new: jax.Array) -> tuple[jax.Array, jax.Array]:
                """Return the joint's impulse if the contact's is `new`, and the one that stops the joint."""
                stop = held - joint.resistance * (opening + coupling * (new - impulse))
                sprung = jnp.clip(stop - joint.resistance * LEG_SPEED, -most, most)
                # A limit adds to its motor what stops the joint.
                limited = jnp.where(at_lower, jnp.maximum(sprung, stop), jnp.where(at_upper, jnp.minimum(sprung, stop), sprung))
                return limited, stop

            def with_joint_at(target: jax.Array) -> jax.Array:
                against = speed - coupling * joint.resistance * (opening - target)
                return jnp.clip(impulse - held_resistance * against, low, high)

            # Try a joint that has all the torque that it needs; then it has what it can.
            joint_impulse, stop = of_joint(with_joint_at(jnp.where(at_lower, 0.0, -LEG_SPEED)))
            yielding = jnp.clip(impulse - row.resistance * (speed + coupling * (joint_impulse - held)), low, high)
            stopped, turns = joint_impulse == stop, jnp.abs(joint_impulse) < most
            new = jnp.where(stopped | turns, with_joint_at(jnp.where(stopped, 0.0, -LEG_SPEED)), yielding)
            joint_impulse, _ = of_joint(new)
            motion = motion + (new - impulse) * row.response + (joint_impulse - held) * joint.response
            return (motion, jnp.where(is_leg, joint_impulse, joint_impulses)), new

        xs = (rows, joint, coupling, held_resistance, is_leg, at_lower, at_upper, impulses, low, high)
        (motion, joint_impulses), impulses = jax.lax.scan(push, (motion, joint_impulses), xs)
        return motion, joint_impulses, impulses

    return jax.lax.fori_loop(0, VELOCITY_SWEEPS, sweep, (motion, jnp.zeros(2), jnp.zeros(8)))[0]


def _correct_positions(turned_out: jax.Array, opened: jax.Array, depths: jax.Array, joints: Rows, normals: Rows) -> jax.Array:
    """Return the change of position and angles, f32 `[5]`, that brings feet out of the ground and legs within their limits."""
    rows = Rows(*(jnp.concatenate(parts) for parts in zip(normals, joints, strict=True)))
    inf, zeros = jnp.full(2, jnp.inf), jnp.zeros(4)
    gap = jnp.concatenate([depths, turned_out])
    # Errors of a size up to the slop stay, as does most of an error of a foot up to three times the slop.
    low = jnp.concatenate([zeros - 3 * LINEAR_SLOP, jnp.where(opened <= LEG_LOWER, LEG_LOWER - ANGULAR_SLOP, -inf)])
    soft = jnp.concatenate([zeros - LINEAR_SLOP, -inf])
    high = jnp.concatenate([zeros + jnp.inf, jnp.where(opened >= LEG_UPPER, LEG_UPPER + ANGULAR_SLOP, inf)])

    def push(shift: jax.Array, row: Any) -> tuple[jax.Array, None]:
        (speed, response, resistance), gap, low, soft, high = row
        gap = gap + (speed * shift).sum()
        error = jnp.maximum(jnp.maximum(low - gap, BAUMGARTE * (soft - gap)), 0.0) - jnp.maximum(gap - high, 0.0)
        return shift + error * resistance * response, None

    def sweep(_: jax.Array, shift: jax.Array) -> jax.Array:
        return jax.lax.scan(push, shift, (rows, gap, low, soft, high))[0]

    return jax.lax.fori_loop(0, POSITION_SWEEPS, sweep, jnp.zeros(5))


def _gap(ground: jax.Array, points: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return how far points `[K, 2]` are above the line of the ground at their place, `[K]`, and the normals there, `[K, 2]`."""
    index = jnp.clip(jnp.floor(points[:, 0] / CHUNK), 0, NUM_POINTS - 2).astype(jnp.int32)
    left, rise = ground[index], ground[index + 1] - ground[index]
    normals = jnp.stack([-rise, jnp.full_like(rise, CHUNK)], -1) / jnp.hypot(rise, CHUNK)[:, None]
    return normals[:, 0] * (points[:, 0] - index * CHUNK) + normals[:, 1] * (points[:, 1] - left), normals


def _hull_gap(ground: jax.Array, position: jax.Array, angle: jax.Array) -> jax.Array:
    """Return how far the hull is from the ground, negative inside; right where it is near."""
    corners, _ = _gap(ground, position + turned(angle, HULL.astype(np.float32)))
    # A peak of the ground may stand between two corners.
    peaks = turned(-angle, jnp.stack([jnp.arange(NUM_POINTS) * CHUNK, ground], 1) - position)
    edges = np.roll(HULL, -1, 0) - HULL
    outwards = (np.stack([edges[:, 1], -edges[:, 0]], 1) / np.hypot(*edges.T)[:, None]).astype(np.float32)
    offsets = (outwards * HULL).sum(1).astype(np.float32)
    outside = (peaks[:, None] * outwards).sum(-1) - offsets
    return jnp.minimum(corners.min(), outside.max(1).min())
