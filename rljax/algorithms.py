"""The algorithms that come with rljax by name, and the modules that define them, which are imported when they are asked for."""

MODULES = {
    "ppo": "rljax.algos.ppo",
    "dqn": "rljax.algos.dqn",
    "sac": "rljax.algos.sac",
    "pqn": "rljax.algos.pqn",
    "impala": "rljax.algos.impala",
    "dreamer": "rljax.algos.dreamer",
    "self_play": "rljax.league",
    "league": "rljax.league",
    "alphazero": "rljax.planning.alphazero",
    "bc": "rljax.algos.imitation.bc",
    "distill": "rljax.algos.imitation.distill",
    "iql": "rljax.algos.offline.iql",
    "awac": "rljax.algos.offline.awac",
    "td3_bc": "rljax.algos.offline.td3_bc",
    "cql": "rljax.algos.offline.cql",
}
