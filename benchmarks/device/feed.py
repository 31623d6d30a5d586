"""Batches on the device: the pipeline's own, with the ids gathered where they are used.

Tensor names end in their shape: A ids of all documents, B windows, N tokens of a window, T = B*N, S masked tokens.
"""

import collections
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from attnscale.tokens.batches import TrainingBatches

AHEAD = 3  # batches that are drawn before they are needed, each in a thread; NumPy sorts without Python's lock


def feed(batches: TrainingBatches, ids_A: Tensor, length: int, steps: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """All batches in order, drawn ahead in threads.

    Args:
        batches: where the pipeline's training takes its batches from.
        ids_A: the training documents' ids, on the device.
        length: N, tokens of a window.
        steps: how many batches.

    Yields:
        inputs_BN, selected_S and targets_S, equal to those of `TrainingBatches.batch`, on the device of `ids_A`.
    """
    device = ids_A.device
    offsets_N = torch.arange(length, device=device)
    with ThreadPoolExecutor(AHEAD) as pool:
        waiting = collections.deque(pool.submit(_draw, batches, step, device) for step in range(min(AHEAD, steps)))
        for step in range(steps):
            starts_B, selected_S, shown_S = (
                array.to(device, non_blocking=True) for array in waiting.popleft().result()
            )
            if step + AHEAD < steps:
                waiting.append(pool.submit(_draw, batches, step + AHEAD, device))
            inputs_T = ids_A[(starts_B[:, None] + offsets_N).flatten()].long()
            targets_S = inputs_T[selected_S]
            inputs_T[selected_S] = shown_S
            yield inputs_T.view(-1, length), selected_S, targets_S


def _draw(batches: TrainingBatches, step: int, device: torch.device) -> list[Tensor]:
    """Starts of the windows, chosen positions, and what the model sees there: all that is random in a batch."""
    batch = batches.batch(step)
    shown_S = batch.inputs_BN.reshape(-1)[batch.selected_S]
    drawn = [torch.from_numpy(array) for array in (batches.window_starts(step), batch.selected_S, shown_S)]
    # From pageable memory a copy would wait for the device.
    return [array.pin_memory() for array in drawn] if device.type == "cuda" else drawn
