"""The configuration: the only place that knows keys, defaults and limits.

A file in the folder `config/` of the repository names only what differs from the defaults here. Each stage gets its own
settings object (`Config.corpus_settings()` and its sisters), holding just what can change that stage's output, so
that its canonical JSON tells Snakemake exactly which jobs a change concerns.
"""

from attnscale.config.arms import ArmConfig, AttentionSpec, BranchConfig, PositionsSpec
from attnscale.config.corpus import (
    CorpusConfig,
    FilesSource,
    HubSource,
    JsonReader,
    Reader,
    Source,
    SourceRules,
    SqliteReader,
    TextReader,
    TokensConfig,
    WheelSource,
)
from attnscale.config.evaluation import AttentionStatisticsConfig, ClaimsConfig, EvaluationConfig, StatisticsConfig
from attnscale.config.formal import FIRST_ARMS, FirstConfig, FormalArm, FormalConfig, ParityConfig, Task
from attnscale.config.run import Config, differing_sections, load_config, parse_config
from attnscale.config.section import Name, Section
from attnscale.config.stages import (
    AttentionStatisticsSettings,
    CorpusSettings,
    EncoderSettings,
    EvaluateSettings,
    EvaluationSetSettings,
    ExactSettings,
    FormalSettings,
    TheorySettings,
    TokensSettings,
    TrainSettings,
)
from attnscale.config.training import PRESETS, ComputeConfig, ModelConfig, TrainingConfig

__all__ = [
    "FIRST_ARMS",
    "PRESETS",
    "ArmConfig",
    "AttentionSpec",
    "AttentionStatisticsConfig",
    "AttentionStatisticsSettings",
    "BranchConfig",
    "ClaimsConfig",
    "ComputeConfig",
    "Config",
    "CorpusConfig",
    "CorpusSettings",
    "EncoderSettings",
    "EvaluateSettings",
    "EvaluationConfig",
    "EvaluationSetSettings",
    "ExactSettings",
    "FilesSource",
    "FirstConfig",
    "FormalArm",
    "FormalConfig",
    "FormalSettings",
    "HubSource",
    "JsonReader",
    "ModelConfig",
    "Name",
    "ParityConfig",
    "PositionsSpec",
    "Reader",
    "Section",
    "Source",
    "SourceRules",
    "SqliteReader",
    "StatisticsConfig",
    "Task",
    "TextReader",
    "TheorySettings",
    "TokensConfig",
    "TokensSettings",
    "TrainSettings",
    "TrainingConfig",
    "WheelSource",
    "differing_sections",
    "load_config",
    "parse_config",
]
