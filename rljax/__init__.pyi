"""What `import rljax` offers. Each name is imported from its module when it is first asked for."""

from . import algos as algos
from . import collect as collect
from . import core as core
from . import envs as envs
from . import league as league
from . import nn as nn
from . import planning as planning
from . import run as run
from . import wrappers as wrappers
from .algos.common.losses import (
    advantage_weighted_regression,
    distillation_kl,
    expectile_loss,
    huber_value_loss,
    label_smoothed_cross_entropy,
    masked_reinforce,
    positive_advantage_regression,
    soft_cross_entropy,
)
from .algos.common.off_policy import polyak_update
from .algos.common.q_learning import dqn_target, epsilon_greedy
from .algos.common.soft_policy import Choice, SoftPolicy, soft_value
from .algos.common.training import TrainResult, make_train
from .algos.dqn import (
    DQNConfig,
    DQNParts,
    DQNState,
    dqn_collect,
    dqn_init,
    dqn_loss,
    dqn_noise,
    dqn_parts,
    dqn_update,
)
from .algos.dreamer.config import DreamerConfig
from .algos.dreamer.dreamer import (
    DreamerParts,
    DreamerState,
    dreamer_collect,
    dreamer_init,
    dreamer_noise,
    dreamer_parts,
    dreamer_update,
    loss_noise,
)
from .algos.dreamer.laprop import adaptive_grad_clip, laprop
from .algos.dreamer.losses import actor_critic_loss, dreamer_loss, imagine, replay_value_loss, world_model_loss
from .algos.dreamer.openloop import open_loop
from .algos.dreamer.replay import replayed, write_latents
from .algos.imitation.bc import BCConfig, bc_init, bc_loss, bc_parts, bc_update
from .algos.imitation.distill import (
    DistillConfig,
    distill_collect,
    distill_init,
    distill_loss,
    distill_parts,
    distill_update,
)
from .algos.impala import (
    ImpalaConfig,
    ImpalaParts,
    ImpalaRollout,
    ImpalaState,
    impala_collect,
    impala_init,
    impala_loss,
    impala_parts,
    impala_update,
)
from .algos.offline.awac import AWACConfig, awac_init, awac_loss, awac_noise, awac_parts, awac_update
from .algos.offline.cql import CQLConfig, cql_init, cql_loss, cql_parts, cql_update
from .algos.offline.iql import IQLConfig, iql_init, iql_loss, iql_parts, iql_update
from .algos.offline.parts import dataset_batch
from .algos.offline.td3_bc import (
    TD3BCConfig,
    td3_bc_actor_loss,
    td3_bc_critic_loss,
    td3_bc_init,
    td3_bc_noise,
    td3_bc_parts,
    td3_bc_target,
    td3_bc_update,
)
from .algos.opponents import train_opponent_model
from .algos.ppo import (
    Minibatch,
    PPOConfig,
    PPOParts,
    PPOState,
    Rollout,
    ppo_collect,
    ppo_init,
    ppo_loss,
    ppo_parts,
    ppo_update,
)
from .algos.pqn import (
    PQNConfig,
    PQNMinibatch,
    PQNParts,
    PQNRollout,
    PQNState,
    pqn_collect,
    pqn_init,
    pqn_loss,
    pqn_parts,
    pqn_update,
)
from .algos.sac import (
    SACConfig,
    SACParts,
    SACState,
    sac_actor_loss,
    sac_collect,
    sac_critic_loss,
    sac_init,
    sac_loss,
    sac_noise,
    sac_parts,
    sac_target,
    sac_temperature_loss,
    sac_update,
)
from .collect.demos.dataset import open_dataset
from .collect.demos.statistics import observation_statistics
from .collect.evaluation import evaluate
from .collect.normalizers import ReturnNormalizer
from .collect.returns import gae, lambda_returns, q_lambda_returns, upgo, vtrace
from .core.agent import Agent, make_agent
from .core.check import check_environment
from .core.config import Config
from .core.config_files import load_config, preset_names
from .core.environments.environment import Environment, EnvParams, EnvState
from .core.environments.spaces import Box, Dict, Discrete, MultiDiscrete
from .core.environments.wrappers import PixelObservation
from .core.errors import ConfigError, RljaxError, RljaxWarning, TrainingError, TrainingInterrupted
from .core.games.game import Game, batch_players, team_reward, unbatch_players
from .envs import env_ids, make_env, register_env
from .league.training import (
    GameParts,
    GameState,
    LeagueConfig,
    SelfPlayConfig,
    game_collect,
    game_init,
    game_parts,
    game_update,
    league_step,
)
from .nn.latent.rssm import RSSM, Latent, kl_loss
from .nn.modules.transforms import TwoHot
from .nn.opponents import load_opponent_model
from .planning.alphazero import AlphaZeroConfig
from .planning.mcts import make_mcts
from .run.compile.program import CompileReport, compile_for
from .run.demos.recording import demonstrations
from .run.driver import FitResult
from .run.export import export_numpy, export_policy, export_web, export_weights, load_policy, load_weights, pack
from .run.files.cards import Card
from .run.files.folder import Run, load_run
from .run.files.hub import pull, push
from .run.files.saved import load, save
from .run.files.zoo import zoo_cards
from .run.fit import fit
from .run.initial import begin_from
from .run.loggers.parts import Logger, RunStart
from .run.phases.plan import Phase, load_phases
from .run.phases.train import PhasesResult, fit_phases
from .run.search.merge import merge_sweep
from .run.search.space import Range
from .run.search.sweep import SweepResult, resume_sweep, sweep
from .run.search.tune import TuneResult, resume_tune, tune
from .run.view.contests import play, tournament
from .run.view.log import log_run
from .run.view.plot import plot
from .run.view.record import record
from .version import __version__

__all__ = [
    # train
    "make_train",
    "make_agent",
    "fit",
    "fit_phases",
    "Phase",
    "PhasesResult",
    "load_phases",
    "sweep",
    "resume_sweep",
    "merge_sweep",
    "Range",
    "SweepResult",
    "tune",
    "resume_tune",
    "TuneResult",
    "evaluate",
    "begin_from",
    "save",
    "load",
    "load_run",
    "plot",
    "record",
    "log_run",
    "demonstrations",
    "open_dataset",
    "observation_statistics",
    "train_opponent_model",
    "load_opponent_model",
    "tournament",
    "play",
    "export_numpy",
    "export_policy",
    "export_web",
    "export_weights",
    "load_policy",
    "load_weights",
    "zoo_cards",
    "pack",
    "push",
    "pull",
    "Card",
    "compile_for",
    "CompileReport",
    "Run",
    "Agent",
    "TrainResult",
    "FitResult",
    "Logger",
    "RunStart",
    # configure
    "Config",
    "PPOConfig",
    "DQNConfig",
    "SACConfig",
    "PQNConfig",
    "ImpalaConfig",
    "DreamerConfig",
    "BCConfig",
    "DistillConfig",
    "IQLConfig",
    "AWACConfig",
    "TD3BCConfig",
    "CQLConfig",
    "SelfPlayConfig",
    "LeagueConfig",
    "AlphaZeroConfig",
    "load_config",
    "preset_names",
    # environments
    "Environment",
    "EnvState",
    "EnvParams",
    "Game",
    "batch_players",
    "unbatch_players",
    "team_reward",
    "Box",
    "Discrete",
    "MultiDiscrete",
    "Dict",
    "make_env",
    "register_env",
    "env_ids",
    "check_environment",
    "PixelObservation",
    # parts
    "PPOParts",
    "PPOState",
    "Rollout",
    "Minibatch",
    "ppo_parts",
    "ppo_init",
    "ppo_collect",
    "ppo_update",
    "ppo_loss",
    "gae",
    "vtrace",
    "upgo",
    "ImpalaParts",
    "ImpalaState",
    "ImpalaRollout",
    "impala_parts",
    "impala_init",
    "impala_collect",
    "impala_update",
    "impala_loss",
    "DQNParts",
    "DQNState",
    "dqn_parts",
    "dqn_init",
    "dqn_noise",
    "dqn_collect",
    "dqn_update",
    "dqn_target",
    "dqn_loss",
    "epsilon_greedy",
    "PQNParts",
    "PQNState",
    "PQNRollout",
    "PQNMinibatch",
    "pqn_parts",
    "pqn_init",
    "pqn_collect",
    "pqn_update",
    "pqn_loss",
    "q_lambda_returns",
    "polyak_update",
    "huber_value_loss",
    "masked_reinforce",
    "positive_advantage_regression",
    "advantage_weighted_regression",
    "expectile_loss",
    "label_smoothed_cross_entropy",
    "soft_cross_entropy",
    "distillation_kl",
    "DreamerParts",
    "DreamerState",
    "dreamer_parts",
    "dreamer_init",
    "dreamer_noise",
    "dreamer_collect",
    "dreamer_update",
    "dreamer_loss",
    "loss_noise",
    "replayed",
    "write_latents",
    "open_loop",
    "world_model_loss",
    "actor_critic_loss",
    "replay_value_loss",
    "imagine",
    "RSSM",
    "Latent",
    "TwoHot",
    "kl_loss",
    "lambda_returns",
    "ReturnNormalizer",
    "laprop",
    "adaptive_grad_clip",
    "SACParts",
    "SACState",
    "Choice",
    "SoftPolicy",
    "soft_value",
    "sac_parts",
    "sac_init",
    "sac_noise",
    "sac_collect",
    "sac_update",
    "sac_loss",
    "sac_target",
    "sac_critic_loss",
    "sac_actor_loss",
    "sac_temperature_loss",
    "bc_parts",
    "bc_init",
    "bc_update",
    "bc_loss",
    "distill_parts",
    "distill_init",
    "distill_collect",
    "distill_update",
    "distill_loss",
    "dataset_batch",
    "iql_parts",
    "iql_init",
    "iql_update",
    "iql_loss",
    "awac_parts",
    "awac_init",
    "awac_noise",
    "awac_update",
    "awac_loss",
    "td3_bc_parts",
    "td3_bc_init",
    "td3_bc_noise",
    "td3_bc_update",
    "td3_bc_target",
    "td3_bc_critic_loss",
    "td3_bc_actor_loss",
    "cql_parts",
    "cql_init",
    "cql_update",
    "cql_loss",
    "GameParts",
    "GameState",
    "game_parts",
    "game_init",
    "game_collect",
    "game_update",
    "league_step",
    "make_mcts",
    # errors
    "RljaxError",
    "ConfigError",
    "TrainingError",
    "TrainingInterrupted",
    "RljaxWarning",
    "__version__",
]
