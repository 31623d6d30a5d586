"""The configuration under which a checkpoint is evaluated: an ordinary one, whose model is the checkpoint's."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnscale.checkpoint.shape import Shape
from attnscale.config import Config, ModelConfig, parse_config
from attnscale.errors import UserError
from attnscale.findings import explain
from attnscale.yaml_files import read_yaml

ARMS: dict[str, Any] = {
    "checkpoint": {"attention": "attention_o"},
    "checkpoint_log_n": {
        "weights_of": "checkpoint", "attention": {"name": "attention_e", "base": "training_length"},
    },
}  # fmt: skip
"""What is evaluated unless the file names arms: the model as it is, and with log n on at the length of its training."""

_ELSEWHERE = {
    "model": "the sizes of the model come from its config.json",
    "tokens": "the checkpoint brings its own tokenizer",
    "seeds": "a finished model has no seeds",
}


def checkpoint_config(configfile: Path, folder: Path, shape: Shape) -> Config:
    """Read the file and fill in what the checkpoint is.

    Args:
        configfile: a configuration without `model`, `tokens` and `seeds`, whose `training` names the length alone.
        folder: of the checkpoint, for sentences.
        shape: of its model.

    Raises:
        UserError: the file is no such configuration.
    """
    data = read_yaml(configfile)
    if not isinstance(data, dict):
        raise UserError(f"{configfile}: a configuration is a map of keys and values; see docs/models.md")
    for key, why in _ELSEWHERE.items():
        if key in data:
            raise UserError(f"{configfile}: {key}: {why}; leave it out")
    training = data.get("training")
    if not isinstance(training, dict) or list(training) != ["length"]:
        raise UserError(
            f"{configfile}: training: give its length alone, in tokens, at which {folder} was trained; it reads at "
            f"most {shape.longest} in transformers"
        )
    model = {
        "width": shape.width, "layers": shape.layers, "heads": shape.heads, "feed_forward": shape.feed_forward,
        "recipe": "faithful",
    }  # fmt: skip
    try:
        ModelConfig.model_validate(model)
    except ValidationError as error:
        raise UserError(f"{folder / 'config.json'}: {explain(error, ModelConfig)}") from None
    config = parse_config({"arms": ARMS, **data, "model": model}, str(configfile))
    trained = config.trained_arms
    own = config.arms[trained[0]]
    plain = own.attention.name == "attention_o" and (own.positions, own.n_at_least, own.n_at_most) == (None,) * 3
    if len(trained) > 1 or not plain or own.branch or own.training_lengths:
        raise UserError(
            f"{configfile}: arms: one arm, with `attention: attention_o` and nothing else, stands for the checkpoint "
            "as it is; all others need weights_of with its name"
        )
    return config
