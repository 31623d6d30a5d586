"""Our encoder in the shape of an imported RoFormer, between the special tokens that it was trained with.

Tensor names end in their shape: B rows, N tokens of a window, S selected tokens, V vocabulary.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscale.checkpoint.shape import Activation, CheckpointRecord, Shape
from attnscale.config import EncoderSettings
from attnscale.evaluate import load_weights
from attnscale.manifest import IMPORTED
from attnscale.model import Encoder, make_encoder
from attnscale.records import read_record


class RoFormerEncoder(Encoder):
    """An `Encoder` with embeddings of another width, another activation, and a frame of special tokens.

    Args:
        shape: of the imported model.
        frame: ids before and after every window, such as those of [CLS] and [SEP]; None for no frame. They count as
            keys, as they did in training; nothing is predicted for them.
    """

    def __init__(self, shape: Shape, frame: tuple[int, int] | None, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.frame = frame
        self.embedding = nn.Embedding(shape.vocabulary_size, shape.embedding)
        self.segment = nn.Parameter(torch.zeros(shape.embedding))
        norm, activation = nn.LayerNorm(shape.embedding, eps=shape.norm_eps), _activation(shape.activation)
        if shape.embedding != shape.width:
            self.embedding_norm = nn.Sequential(norm, nn.Linear(shape.embedding, shape.width))  # type: ignore[assignment]
        else:
            self.embedding_norm = norm
        self.transform = nn.Sequential(
            nn.Linear(shape.width, shape.embedding), activation, nn.LayerNorm(shape.embedding, eps=shape.norm_eps)
        )
        for block in self.blocks:
            block.feed_forward[1] = activation  # type: ignore[operator, assignment, index, unused-ignore]
            block.attention_norm.eps = block.feed_forward_norm.eps = shape.norm_eps  # type: ignore[union-attr]

    def forward(self, ids_BN: Tensor, selected_S: Tensor | None = None, key_mask_BN: Tensor | None = None) -> Tensor:
        """As `Encoder.forward`; indices are those of the window, without its frame, and so are the logits.

        Raises:
            ValueError: there is padding, which would come between a text and the end of its frame.
        """
        if self.frame is None:
            return super().forward(ids_BN, selected_S, key_mask_BN)
        if key_mask_BN is not None:
            raise ValueError("windows with padding cannot be framed")
        rows, length = ids_BN.shape
        ends = [torch.full((rows, 1), number, dtype=ids_BN.dtype, device=ids_BN.device) for number in self.frame]
        if selected_S is None:
            selected_S = torch.arange(rows * length, device=ids_BN.device)
        framed_S = selected_S + 1 + 2 * (selected_S // length)
        return super().forward(torch.cat([ends[0], ids_BN, ends[1]], dim=1), framed_S)


def make_roformer(settings: EncoderSettings, shape: Shape, frame: tuple[int, int] | None) -> RoFormerEncoder:
    """The encoder of an arm of an imported checkpoint, its weights not yet set.

    Raises:
        UserError: see `attnscale.model.make_encoder`.
    """
    # One of the usual kind knows how settings become a variant, positions and limits.
    plain = make_encoder(settings, vocabulary_size=1)
    return RoFormerEncoder(
        shape, frame, settings.model, shape.vocabulary_size, plain.variant, plain.training_length, plain.positions,
        plain.n_limits,
    )  # fmt: skip


def load_roformer(settings: EncoderSettings, run: Path, weights: Path) -> RoFormerEncoder:
    """The encoder of an arm of a run that holds an imported checkpoint, in evaluation mode.

    Args:
        settings: of the arm.
        run: folder of the run.
        weights: what the import stored.

    Raises:
        UserError: something is missing, damaged or of another shape.
    """
    again = "import the checkpoint again"
    record = read_record(run / IMPORTED, CheckpointRecord, again)
    model = make_roformer(settings, record.shape, record.frame)
    load_weights(model, weights, missing=again, damaged=again)
    return model.eval()  # type: ignore[no-any-return, unused-ignore]


def _activation(name: Activation) -> nn.Module:
    if name.startswith("gelu"):
        return nn.GELU(approximate="none" if name == "gelu" else "tanh")
    return nn.ReLU() if name == "relu" else nn.SiLU()
