"""The speed benchmark: what it counts and what it writes, never how fast it is."""

import csv

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnscale.attention import make_variant
from attnscale.model import Encoder
from benchmarks import training as benchmark

FP32 = ["attnscale_fp32", "huggingface_fp32", "matrix_products_fp32"]


@pytest.fixture(autouse=True)
def _one_step_a_turn_and_torch_as_before(monkeypatch):
    monkeypatch.setattr(benchmark, "STEPS", 1)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


def rows(path):
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_flops_of_a_step_equal_the_count_by_hand():
    # 16 windows of 64 are 1024 tokens, 154 of them masked; width 64, feed-forward 128, 2 blocks, 1024 ids.
    # First block: (192 + 64 + 2 * 128) * 64 weights see 1024 tokens                           33,554,432
    # Second block: 192 * 64 weights see 1024 tokens, (64 + 2 * 128) * 64 see 154              15,736,832
    # Head: 64 * 1024 weights see 154                                                          10,092,544
    # Attention, two products of 64 * 64 for each of 1024 tokens, in 2 blocks                  16,777,216
    assert benchmark.Case("smoke", 1).step_flops() == 6 * 76_161_024


@pytest.mark.parametrize("preset", ["smoke", "compact"])
def test_flops_of_a_step_equal_what_torch_counts_in_the_real_model(preset):
    case = benchmark.Case(preset, 1)
    model = Encoder(case.model, case.vocabulary_size, make_variant("attention_o", {}), case.training.length).to("meta")
    batch = case.batch(0)
    with FlopCounterMode(display=False) as counter:
        logits_SV = model(*(torch.from_numpy(array).to("meta") for array in (batch.inputs_BN, batch.selected_S)))
        logits_SV.sum().backward()
    assert counter.get_total_flops() == case.step_flops()


def test_the_peer_gets_the_same_sizes_vocabulary_and_targets(monkeypatch):
    case = benchmark.Case("smoke", 1)
    seen = {}
    real = benchmark.transformers.RoFormerForMaskedLM.forward

    def watching(self, input_ids, labels):
        seen.update(config=self.config, input_ids=input_ids.clone(), labels=labels.clone())
        return real(self, input_ids=input_ids, labels=labels)

    monkeypatch.setattr(benchmark.transformers.RoFormerForMaskedLM, "forward", watching)
    next(benchmark.huggingface_work(case, "fp32"))
    batch, config = case.batch(0), seen["config"]
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 2, 2)
    assert (config.intermediate_size, config.vocab_size, config.embedding_size) == (128, 1024, 64)
    assert (seen["input_ids"].numpy() == batch.inputs_BN).all()
    labels_T = seen["labels"].flatten().numpy()
    assert (labels_T[batch.selected_S] == batch.targets_S).all()
    assert (labels_T != -100).sum() == len(batch.targets_S) == 154


def test_a_run_writes_positive_rates_of_every_measure_and_their_ratios(tmp_path, capsys, monkeypatch):
    native_fp32 = {"cpu": "A", "cpu_capability": "B", "python": "3", "cpu_bf16": [], "precision": "fp32"}
    monkeypatch.setattr(benchmark, "describe", lambda *_: native_fp32)
    benchmark.main(benchmark.Preset.smoke, repeats=1, threads=1, output=tmp_path / "bench")
    repeats, summary = rows(tmp_path / "bench" / "repeats.csv"), rows(tmp_path / "bench" / "summary.csv")
    assert [tuple(row) for row in repeats] == [("measure", "repeat", "tokens_per_second", "flops")] * 3
    assert [(row["measure"], row["repeat"]) for row in repeats] == [(name, "1") for name in FP32]
    ours, peer, products = repeats
    assert float(ours["tokens_per_second"]) > 0
    assert float(peer["tokens_per_second"]) > 0
    assert float(products["flops"]) > 0
    assert (peer["flops"], products["tokens_per_second"]) == ("", "")
    assert [tuple(row) for row in summary] == [("measure", "value")] * 2
    values = {row["measure"]: float(row["value"]) for row in summary}
    speedup = float(ours["tokens_per_second"]) / float(peer["tokens_per_second"])
    fraction = float(ours["flops"]) / float(products["flops"])
    assert values == pytest.approx({"train_vs_hf_fp32": speedup, "train_matrix_rate_fraction": fraction}, abs=1e-4)
    assert "bf16 is not native on this CPU and was left out" in capsys.readouterr().out


def test_with_native_bf16_both_precisions_are_compared_and_the_fraction_is_that_of_bf16():
    case = benchmark.Case("smoke", 1)
    frame = benchmark.measure(case, ["fp32", "bf16"], 1)
    assert list(frame["measure"]) == [*FP32, *(name.replace("fp32", "bf16") for name in FP32)]
    ratios = benchmark.ratios(frame, ["fp32", "bf16"]).loc[1]
    assert list(ratios.index) == ["train_vs_hf_fp32", "train_vs_hf_bf16", "train_matrix_rate_fraction"]
    flops = frame.set_index("measure")["flops"]
    assert ratios["train_matrix_rate_fraction"] == flops["attnscale_bf16"] / flops["matrix_products_bf16"]


def test_without_transformers_it_says_so_and_measures_the_rest(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "transformers", None)
    benchmark.main(benchmark.Preset.smoke, repeats=1, threads=1, output=tmp_path)
    assert "no transformers (extra `bench`): no peer" in capsys.readouterr().out
    measures = [row["measure"] for row in rows(tmp_path / "repeats.csv")]
    assert measures[:2] == ["attnscale_fp32", "matrix_products_fp32"]
    assert [row["measure"] for row in rows(tmp_path / "summary.csv")] == ["train_matrix_rate_fraction"]


def test_an_output_folder_that_cannot_be_made_is_told_in_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"error: cannot use .*file"):
        benchmark.main(benchmark.Preset.smoke, repeats=1, threads=1, output=tmp_path / "file" / "bench")
