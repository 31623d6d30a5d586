"""The training loop of one arm on one device.

Tensor names end in their shape: A ids of all documents, B rows, N tokens of a row, S masked tokens, V vocabulary.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional

from attnscale import counts, engine
from attnscale.attention import make_variant
from attnscale.model import Encoder
from attnscale.optimizers import make_optimizers
from attnscale.tokens.batches import TrainingBatches
from attnscale.tokens.load import DocumentTokens
from attnscale.tokens.vocabulary import Vocabulary
from benchmarks.device.feed import feed
from benchmarks.device.settings import Attention

if TYPE_CHECKING:
    from attnscale.config import ModelConfig, TrainingConfig


class Machine:
    """An encoder and its compiled step. Trainings follow one another in it, so it is compiled once.

    Args:
        model: sizes and recipe.
        attention: the attention under test.
        vocabulary: the ids.
        documents: the training text.
        length: tokens of a window.
        device: where it computes.
        bf16: whether in bf16.
        compiled: whether the step is compiled.
    """

    def __init__(
        self, model: "ModelConfig", attention: Attention, vocabulary: Vocabulary, documents: DocumentTokens,
        length: int, device: torch.device, *, bf16: bool, compiled: bool,
    ) -> None:  # fmt: skip
        self.vocabulary, self.documents, self.device, self.bf16 = vocabulary, documents, device, bf16
        variant = make_variant(attention.name, attention.parameters)
        self.model = Encoder(model, vocabulary.size, variant, length).to(device)
        # Four bytes an id: torch cannot index tensors of two-byte ids on every device.
        self.ids_A = torch.from_numpy(documents.ids.astype(np.int32)).to(device)
        self.predict = engine.compiled(self._predict) if compiled else self._predict

    def _predict(self, inputs_BN: Tensor, selected_S: Tensor, targets_S: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            logits_SV = self.model(inputs_BN, selected_S)
        loss = functional.cross_entropy(logits_SV.float(), targets_S)
        return loss, (logits_SV.detach().argmax(dim=1) == targets_S).sum()

    def run(self, training: "TrainingConfig", seed: int) -> Iterator[Tensor]:
        """Train from the start, step by step, as `attnscale.train` does.

        Yields:
            After each step a (4,) tensor on the device: loss, right predictions, gradient norm, and that of the
            weights of queries and keys.
        """
        self.model.initialise(seed)
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        optimizers = make_optimizers(self.model, training, torch.bfloat16 if self.bf16 else torch.float32)
        batches = TrainingBatches(*self.documents, self.vocabulary, training, seed)
        parameters = list(self.model.parameters())
        for step, batch in enumerate(feed(batches, self.ids_A, training.length, counts.steps(training))):
            loss, correct = self.predict(*batch)
            loss.backward()  # type: ignore[no-untyped-call]
            norm_qk = self.model.grad_norm_qk()
            norm = torch.nn.utils.clip_grad_norm_(parameters, training.clip_norm)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * counts.schedule(training, step)
                optimizer.step()
            self.model.zero_grad(set_to_none=True)
            yield torch.stack([loss.detach(), correct.float(), norm.detach(), norm_qk])

    def weights(self) -> bytes:
        """The content of a `model.safetensors`."""
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
        return safetensors.torch.save(state)

    def wait(self) -> None:
        """Until the device has done what it was told."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
