"""The benchmark's contestants: what they compute and that all get the same. Never how fast they are."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnscale.attention import make_variant
from attnscale.config import PRESETS
from attnscale.errors import UserError
from attnscale.model import Encoder
from benchmarks import evaluation, ours, peers, training, turns
from benchmarks.cases import TRIAL, preset_case

EAGER = {"device": "cpu", "precision": "fp32", "compile": False}


def test_flops_of_a_step_equal_the_count_by_hand():
    # 16 windows of 64 are 1024 tokens, 154 of them masked; width 64, feed-forward 128, 2 blocks, 1024 ids.
    # First block: (192 + 64 + 2 * 128) * 64 weights see 1024 tokens                           33,554,432
    # Second block: 192 * 64 weights see 1024 tokens, (64 + 2 * 128) * 64 see 154              15,736,832
    # Head: 64 * 1024 weights see 154                                                          10,092,544
    # Attention, two products of 64 * 64 for each of 1024 tokens, in 2 blocks                  16,777,216
    assert preset_case("smoke", 1, steps=1).step_flops() == 6 * 76_161_024


@pytest.mark.parametrize("preset", ["smoke", "compact"])
def test_flops_of_a_step_equal_what_torch_counts_in_the_real_model(preset):
    case = preset_case(preset, 1, steps=1)
    model = Encoder(case.model, case.vocabulary_size, make_variant("attention_o", {}), case.training.length).to("meta")
    batch = case.batch(0)
    with FlopCounterMode(display=False) as counter:
        logits_SV = model(*(torch.from_numpy(array).to("meta") for array in (batch.inputs_BN, batch.selected_S)))
        logits_SV.sum().backward()
    assert counter.get_total_flops() == case.step_flops()


def test_the_matrix_products_have_the_flops_that_are_counted():
    case = preset_case("smoke", 1, steps=1)
    work = training.matrix_products(case, "fp32")
    next(work)
    with FlopCounterMode(display=False) as counter:
        next(work)
    assert counter.get_total_flops() == case.product_flops()


def test_every_turn_of_ours_is_the_asked_number_of_real_steps():
    case = preset_case("smoke", 1, steps=2)
    seen = []
    case.batch = lambda step: seen.append(step) or case.batches[step % 2]
    work = ours.training(case, EAGER)
    for _ in range(3):
        next(work)
    assert seen == [0, 1, 2, 3]


def test_a_recipe_with_snapshots_writes_none_in_a_race(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = preset_case("smoke", 1, steps=2, training=TRIAL.model_copy(update={"snapshots": (0.25, 0.5, 0.75)}))
    work = ours.training(case, EAGER)
    for _ in range(3):
        next(work)
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.skipif("huggingface" not in peers.installed(), reason="needs transformers")
def test_hugging_face_gets_the_same_sizes_vocabulary_and_targets(monkeypatch):
    import transformers

    case = preset_case("smoke", 1, steps=1)
    seen = {}
    real = transformers.RoFormerForMaskedLM.forward

    def watching(self, input_ids, labels):
        seen.update(config=self.config, input_ids=input_ids.clone(), labels=labels.clone())
        return real(self, input_ids=input_ids, labels=labels)

    monkeypatch.setattr(transformers.RoFormerForMaskedLM, "forward", watching)
    work = peers.huggingface_training(case, "fp32")
    next(work)
    next(work)
    batch, config = case.batch(0), seen["config"]
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 2, 2)
    assert (config.intermediate_size, config.vocab_size, config.embedding_size) == (128, 1024, 64)
    assert (seen["input_ids"].numpy() == batch.inputs_BN).all()
    labels_T = seen["labels"].flatten().numpy()
    assert (labels_T[batch.selected_S] == batch.targets_S).all()
    assert (labels_T != -100).sum() == len(batch.targets_S) == 154


@pytest.mark.skipif("x_transformers" not in peers.installed(), reason="needs x-transformers")
@pytest.mark.parametrize("preset", ["smoke", "compact"])
def test_the_encoder_of_x_transformers_has_as_many_weights_in_matrices_as_ours(preset):
    case = preset_case(preset, 1, steps=1)
    ours = Encoder(case.model, case.vocabulary_size, make_variant("attention_o", {}), case.training.length)
    theirs = peers.encoder(case)
    sizes = [
        sum(parameter.numel() for parameter in model.parameters() if parameter.ndim >= 2) for model in (ours, theirs)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.skipif("x_transformers" not in peers.installed(), reason="needs x-transformers")
def test_x_transformers_learns_the_masked_tokens_in_its_turns():
    case = preset_case("smoke", 1, steps=4)
    losses = []
    real = peers.functional.cross_entropy

    def watching(logits, labels):
        assert (labels != -100).sum() == 154
        losses.append(real(logits, labels))
        return losses[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers.functional, "cross_entropy", watching)
        work = peers.x_transformers_training(case, "fp32")
        for _ in range(4):
            next(work)
    assert len(losses) == 12
    assert losses[-1] < losses[0]


def test_evaluation_blocks_have_the_exact_share_of_masks_and_ordinary_ids():
    case = preset_case("smoke", 1, steps=1)
    data = evaluation.blocks(case, length=200, count=3)
    assert data.ids_KN.shape == data.inputs_KN.shape == data.masked_KN.shape == (3, 200)
    assert data.masked_KN.sum(axis=1).tolist() == [30, 30, 30]
    changed_KN = data.ids_KN != data.inputs_KN
    assert changed_KN.any()
    assert not (changed_KN & ~data.masked_KN).any()
    assert data.ids_KN.min() >= 3
    assert not (data.masked_KN[0] == data.masked_KN[1]).all()


@pytest.mark.parametrize("name", list(evaluation.WORKS))
def test_both_evaluations_read_every_block_alone_and_whole(name, monkeypatch):
    if name not in ("attnscale", *peers.installed()):
        pytest.skip(f"needs {name}")
    case = preset_case("smoke", 1, steps=1)
    data = evaluation.blocks(case, length=128, count=2)
    read = []

    def watching(module, inputs):
        if isinstance(module, torch.nn.Embedding) and torch.is_tensor(inputs[0]) and inputs[0].any():
            read.append(inputs[0].flatten().tolist())

    hook = torch.nn.modules.module.register_module_forward_pre_hook(watching)
    try:
        work = evaluation.WORKS[name](case, "fp32", data)
        next(work)
        next(work)
    finally:
        hook.remove()
    assert read == data.inputs_KN.tolist()


@pytest.mark.skipif(not evaluation.CLEAR.exists(), reason="needs /proc")
def test_the_peak_counts_what_the_evaluation_takes_and_not_what_building_took(monkeypatch):
    million = 2**20

    def greedy(*_):
        np.ones(300 * million, dtype=np.uint8)
        yield
        np.ones(100 * million, dtype=np.uint8)
        yield

    monkeypatch.setitem(evaluation.WORKS, "greedy", greedy)
    work = evaluation.peak("greedy", preset_case("smoke", 1, steps=1), "fp32", None)
    next(work)
    before, highest = next(work)
    assert 95 * million < highest - before < 150 * million


def test_contestants_take_turns_in_processes_of_their_own():
    times = turns.race(
        {"one": turns.Entry(itertools.count, (1,)), "two": turns.Entry(itertools.count, (2,))}, repeats=2
    )
    assert {name: len(seconds) for name, seconds in times.items()} == {"one": 3, "two": 3}
    assert all(second >= 0 for seconds in times.values() for second in seconds)
    assert turns.once("three", turns.Entry(itertools.count, (3,))) == 4


def test_a_contestant_that_breaks_is_named_in_a_sentence(capfd):
    with pytest.raises(UserError, match="the process of breaker ended early"):
        turns.once("breaker", turns.Entry(map, (int, ["1", "two"])))
    assert "invalid literal" in capfd.readouterr().err


def test_an_unknown_preset_is_refused():
    assert "huge" not in PRESETS
    with pytest.raises(ValueError, match="huge"):
        preset_case("huge", 1)
