"""What config.json of a RoFormer in Hugging Face's layout says, as far as it can be evaluated here."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from attnscale.errors import UserError
from attnscale.records import Record

Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"]
ACTIVATIONS = get_args(Activation)
Size = Annotated[int, Field(ge=1)]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a RoFormer, in tokens and numbers.

    Attributes:
        vocabulary_size: V.
        embedding: width of the embeddings, which a linear map brings to `width` where it differs.
        width: of the residual stream.
        layers: number of blocks.
        heads: attention heads per block.
        feed_forward: width of the feed-forward layer.
        activation: one of `ACTIVATIONS`.
        norm_eps: added to variances by the norms.
        longest: most tokens that transformers lets it read; here nothing depends on it.
    """

    vocabulary_size: Size
    embedding: Size
    width: Size
    layers: Size
    heads: Size
    feed_forward: Size
    activation: Activation
    norm_eps: Annotated[float, Field(ge=0, lt=1)]
    longest: Size


class CheckpointRecord(Record):
    """`checkpoint.json` of a run, which says that it is an import and of what.

    Attributes:
        shape: of the model.
        frame: ids before and after every window; None for no frame.
        files: sha256 of the checkpoint's files, by name.
    """

    shape: Shape
    frame: tuple[int, int] | None
    files: dict[str, str]

    @model_validator(mode="after")
    def _check_frame(self) -> Self:
        if not all(0 <= number < self.shape.vocabulary_size for number in self.frame or ()):
            raise ValueError("ids beyond the vocabulary")
        return self


def read_shape(folder: Path) -> Shape:
    """Read config.json and refuse what would not be the same function here.

    Args:
        folder: of the checkpoint.

    Raises:
        UserError: the folder or file is missing or damaged, or the model is none of the known kind.
    """
    path = folder / "config.json"
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give a folder with config.json, weights and tokenizer of a RoFormer")
    config = read_dict(path)
    kind = config.get("model_type")
    if kind != "roformer":
        raise UserError(f"{path} is of a model of type {kind!r}; only RoFormer (roformer) can be imported")
    for key, wanted, why in (
        ("rotary_value", False, "rotates its values too"),
        ("is_decoder", False, "is a decoder"),
        ("use_bias", True, "has no biases, as RoFormer v2"),
        ("norm_type", "layer_norm", "has other norms, as RoFormer v2"),
    ):
        if config.get(key, wanted) != wanted:
            raise UserError(f"{path} is of a model that {why} ({key}: {config[key]!r}); it cannot be imported")
    if config.get("hidden_act", "gelu") not in ACTIVATIONS:
        raise UserError(f"{path} names the activation {config['hidden_act']!r}; known are {', '.join(ACTIVATIONS)}")
    width = _whole(path, config, "hidden_size")
    shape = Shape(
        vocabulary_size=_whole(path, config, "vocab_size"),
        embedding=width if config.get("embedding_size") is None else _whole(path, config, "embedding_size"),
        width=width,
        layers=_whole(path, config, "num_hidden_layers"),
        heads=_whole(path, config, "num_attention_heads"),
        feed_forward=_whole(path, config, "intermediate_size"),
        activation=config.get("hidden_act", "gelu"),
        norm_eps=_epsilon(path, config),
        longest=_whole(path, {"max_position_embeddings": 1536, **config}, "max_position_embeddings"),
    )
    if shape.width % shape.heads or (shape.width // shape.heads) % 2:
        raise UserError(
            f"{path}: {shape.heads} heads do not share a width of {shape.width} in even parts; check the file"
        )
    return shape


def read_dict(path: Path) -> dict[str, Any]:
    """A JSON file of a checkpoint.

    Raises:
        UserError: it is missing or is no JSON map.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; give the folder of a whole checkpoint") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path} is no JSON map; fetch the checkpoint again")
    return found


def _whole(path: Path, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise UserError(f"{path}: {key} must be a whole number above 0, not {value!r}")
    return value


def _epsilon(path: Path, config: dict[str, Any]) -> float:
    value = config.get("layer_norm_eps", 1e-12)
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise UserError(f"{path}: layer_norm_eps must be a number from 0 to 1, not {value!r}")
    return float(value)
