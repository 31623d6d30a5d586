"""Accuracy of one arm and seed at every length, on the same targets.

A block of the largest length is cut into windows of each shorter one, so every length predicts the same
masked tokens and only the amount of context differs.

Tensor names end in their shape: K blocks, W windows, B windows of one batch, N tokens of a window, T = B*N,
S masked tokens of the batch, V vocabulary.
"""

import csv
import io
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from attnscale import engine
from attnscale.config import EvaluateSettings
from attnscale.environment import read_environment
from attnscale.errors import UserError
from attnscale.files import write_text
from attnscale.model import Encoder, make_encoder
from attnscale.progress import Reporter
from attnscale.tokens.load import EvaluationSet, load_evaluation_set, load_vocabulary

COLUMNS = ("arm", "seed", "step", "length", "block", "correct", "total")


def evaluate(settings: EvaluateSettings, tokens_dir: Path, weights: Path, environment: Path, output: Path) -> None:
    """Count right predictions and write one row per length and block.

    Beyond the stored blocks (five bytes a token) memory holds one batch of windows at a time, and the
    logits of its masked tokens only, so it does not grow with the number of blocks.

    Args:
        settings: the arm, its attention and the lengths.
        tokens_dir: folder of the tokens and evaluation set.
        weights: model.safetensors of the trained arm.
        environment: the environment record, which decides device and precision.
        output: the CSV file to write.

    Raises:
        UserError: an input is missing, damaged or does not fit the settings.
    """
    record = read_environment(environment)
    engine.prepare(settings.threads)
    device = torch.device(record["device"])
    model = load_model(settings, load_vocabulary(tokens_dir).size, weights).to(device).eval()
    data = load_evaluation_set(tokens_dir)
    write_text(output, evaluation_table(settings, model, data, device, bf16=record["precision"] == "bf16"))


def evaluation_table(
    settings: EvaluateSettings, model: Encoder, data: EvaluationSet, device: torch.device, *, bf16: bool
) -> str:
    """Right predictions of a model, one row per length and block, as the text of a CSV file.

    Args:
        settings: the arm and the lengths.
        model: its encoder in evaluation mode.
        data: blocks with their stored masks.
        device: where the model is.
        bf16: compute in bf16.

    Raises:
        UserError: logits are not finite.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    title = f"evaluate {settings.arm} seed {settings.seed}"
    with Reporter(title, len(settings.lengths), unit="length") as reporter:
        for done, length in enumerate(settings.lengths, start=1):
            try:
                correct_K, total_K = count_correct(model, data, length, settings.batch_tokens, device, bf16=bf16)
            except UserError as error:
                raise UserError(f"{settings.arm} seed {settings.seed}: {error}") from None
            for block, (correct, total) in enumerate(zip(correct_K, total_K, strict=True)):
                writer.writerow((settings.arm, settings.seed, settings.step, length, block, correct, total))
            reporter.update(done, f"{length} tokens: accuracy {sum(correct_K) / sum(total_K):.2%}")
    return stream.getvalue()


def load_model(settings: EvaluateSettings, vocabulary_size: int, weights: Path) -> Encoder:
    """The encoder with finished weights under the attention of `settings`.

    Raises:
        UserError: the weights are missing, damaged or of another shape.
    """
    model = make_encoder(settings.encoder, vocabulary_size)
    load_weights(model, weights, missing="train this arm first", damaged="delete it and run the pipeline again")
    return model


def load_weights(model: Encoder, path: Path, *, missing: str, damaged: str) -> None:
    """Put the weights of a safetensors file into a model.

    Args:
        model: gets them.
        path: the file.
        missing: what to do if it is missing, for the error.
        damaged: what to do if it is damaged or does not fit.

    Raises:
        UserError: the weights are missing, damaged or of another shape.
    """
    try:
        model.load_state_dict(safetensors.torch.load_file(path))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; {missing}") from None
    except (safetensors.SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rstrip(":")
        raise UserError(f"{path} does not fit ({reason}); {damaged}") from None


@torch.inference_mode()
def count_correct(
    model: Encoder, data: EvaluationSet, length: int, batch_tokens: int, device: torch.device, *, bf16: bool
) -> tuple[list[int], list[int]]:
    """Right predictions and targets of every block, when it is read in windows of `length` tokens.

    Args:
        model: the encoder in evaluation mode.
        data: blocks with their stored masks.
        length: N, tokens per window; divides the block length.
        batch_tokens: tokens per forward pass.
        device: where the model is.
        bf16: compute in bf16.

    Returns:
        Two lists with one whole number per block.

    Raises:
        UserError: logits are not finite; counting them as wrong would look like a finding.
    """
    blocks, longest = data.ids_KN.shape
    windows_per_block = longest // length
    inputs_WN, targets_WN, masked_WN = (
        array_KN.reshape(-1, length) for array_KN in (data.inputs_KN, data.ids_KN, data.masked_KN)
    )
    correct_K = torch.zeros(blocks, dtype=torch.int64)
    rows = max(1, batch_tokens // length)
    for first in range(0, len(inputs_WN), rows):
        window = slice(first, first + rows)
        # Converted batch by batch: the stored ids take two bytes each, torch's indices eight.
        inputs_BN = torch.from_numpy(inputs_WN[window].astype(np.int64))
        targets_T = torch.from_numpy(targets_WN[window].astype(np.int64).ravel())
        selected_S = torch.from_numpy(masked_WN[window].ravel().nonzero()[0])
        if not len(selected_S):
            continue
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            logits_SV = model(inputs_BN.to(device), selected_S.to(device))
        if not logits_SV.isfinite().all():
            raise UserError(f"its logits are not finite at {length} tokens; check the attention of this arm")
        hits_S: Tensor = logits_SV.argmax(dim=1).cpu() == targets_T[selected_S]
        block_S = (first + selected_S // length) // windows_per_block
        correct_K += torch.bincount(block_S[hits_S], minlength=blocks)
    return correct_K.tolist(), data.masked_KN.sum(axis=1).tolist()
