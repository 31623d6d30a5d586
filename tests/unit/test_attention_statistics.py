"""Attention statistics: known rows, hand examples, the model's own weights, parts of any size, refusals."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

from attnscale import attention
from attnscale.analysis.attention_statistics import (
    COLUMNS,
    SATURATED,
    STATISTICS,
    Recorder,
    attention_statistics,
    collect_attention_statistics,
    has_logits,
    logits_in_parts,
    measure,
    query_statistics,
)
from attnscale.attention import Attention, register, registered
from attnscale.attention.positions import POSITIONS
from attnscale.config import AttentionStatisticsSettings, EncoderSettings, parse_config
from attnscale.errors import UserError
from attnscale.model import make_encoder
from attnscale.tokens.load import load_evaluation_set, load_vocabulary
from tests.unit.conftest import LENGTH

CPU = torch.device("cpu")
TREATMENTS = [None, *POSITIONS]
OWN_MIX = (
    "import dataclasses, torch\n"
    "from attnscale.attention import Attention, register\n"
    "@register('own_mix')\n"
    "@dataclasses.dataclass(frozen=True)\n"
    "class OwnMix(Attention):\n"
    "    'The mean of the values, whatever the queries are.'\n"
    "    formula, source = 'none', 'a test'\n"
    "    def mix(self, q, k, v, context, dropout):\n"
    "        return v.mean(2, keepdim=True).expand_as(v)\n"
)


@pytest.fixture(autouse=True)
def _one_thread():
    """Tensors are too small here for a second one."""
    torch.set_num_threads(1)


def encoder_settings(name="attention_e", positions=None, **changes) -> EncoderSettings:
    values = {
        "attention": {"name": name}, "positions": positions and {"name": positions}, "n_at_least": None,
        "n_at_most": None, "model": {"preset": "smoke"}, "training_length": LENGTH, **changes,
    }  # fmt: skip
    return EncoderSettings.model_validate(values)


def make_model(name="attention_e", positions=None, vocabulary=300, sharpen=8.0):
    """An encoder whose attention is far from uniform, as after training."""
    model = make_encoder(encoder_settings(name, positions), vocabulary).eval().requires_grad_(False)
    model.initialise(0)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight *= sharpen
    return model


def stage_settings(**changes) -> AttentionStatisticsSettings:
    values = {
        "arm": "attention_e", "seed": 0, "step": 12, "encoder": encoder_settings(), "lengths": (16, 32, 64),
        "batch_tokens": 256, "threads": 1, "blocks": 2, **changes,
    }  # fmt: skip
    return AttentionStatisticsSettings.model_validate(values)


def windows(length, count=3):
    return np.random.default_rng(0).integers(5, 300, size=(count, length), dtype=np.uint16)


def statistics_of(logits, length=LENGTH):
    """Statistics by name of queries 0, 1, ... over the keys 0, 1, ..."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    queries, keys = logits.shape
    distance = (torch.arange(queries)[:, None] - torch.arange(keys)[None, :]).abs().double()
    return dict(zip(STATISTICS, query_statistics(logits[None, None], distance, length)[:, 0, 0], strict=True))


@pytest.fixture(scope="module")
def weights(tokens_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    safetensors.torch.save_file(make_model(vocabulary=load_vocabulary(tokens_dir).size).state_dict(), path)
    return path


@pytest.mark.parametrize("level", [0.0, -3.5, 80.0])
@pytest.mark.parametrize("keys", [2, 64, 1000])
def test_uniform_rows_give_log_n_and_no_spread(keys, level):
    found = statistics_of(torch.full((3, keys), level))
    np.testing.assert_allclose(found["entropy"], math.log(keys), rtol=1e-14)
    np.testing.assert_allclose(found["entropy_ratio"], 1.0, rtol=1e-14)
    assert found["logit_std"].tolist() == [0.0] * 3
    np.testing.assert_allclose(found["max_weight"], 1 / keys, rtol=1e-14)
    assert found["saturated"].tolist() == [0.0] * 3


def test_one_hot_rows_give_no_entropy_and_weight_one():
    logits = torch.zeros(3, 50)
    logits[torch.arange(3), torch.tensor([7, 1, 40])] = 1000.0
    found = statistics_of(logits)
    assert found["entropy"].tolist() == found["entropy_ratio"].tolist() == [0.0] * 3
    assert found["max_weight"].tolist() == found["saturated"].tolist() == [1.0] * 3
    assert found["distance"].tolist() == [7.0, 0.0, 38.0]
    assert found["beyond"].tolist() == [0.0, 0.0, 1.0]
    np.testing.assert_allclose(found["logit_std"], 1000 * math.sqrt(0.02 * 0.98), rtol=1e-12)


def test_statistics_of_a_small_example_by_hand():
    # Weights 1/2, 1/4, 1/4 for query 1: distances 1, 0, 1; and 1/4, 1/4, 1/2 for query 2: distances 2, 1, 0.
    found = statistics_of(torch.log(torch.tensor([[1.0, 1, 1], [2, 1, 1], [1, 1, 2]])), length=2)
    entropy = 1.5 * math.log(2)
    np.testing.assert_allclose(found["entropy"][1:], entropy, rtol=1e-7)
    np.testing.assert_allclose(found["entropy_ratio"][1:], entropy / math.log(3), rtol=1e-7)
    np.testing.assert_allclose(found["max_weight"], [1 / 3, 1 / 2, 1 / 2], rtol=1e-7)
    np.testing.assert_allclose(found["distance"], [1.0, 0.75, 0.75], rtol=1e-7)
    np.testing.assert_allclose(found["beyond"], [1 / 3, 0.0, 0.25], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(found["logit_std"][1:], math.log(2) * math.sqrt(2) / 3, rtol=1e-6)


def test_a_query_is_saturated_just_above_the_threshold():
    for weight, saturated in ((SATURATED + 1e-4, 1.0), (SATURATED - 1e-4, 0.0)):
        assert statistics_of([[math.log(weight), math.log(1 - weight)]])["saturated"].tolist() == [saturated]


def test_keys_that_are_not_seen_do_not_count():
    seen = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    hidden = torch.cat([seen, torch.full((4, 30), -math.inf)], dim=1)
    for name, values in statistics_of(seen).items():
        torch.testing.assert_close(statistics_of(hidden)[name], values, rtol=1e-13, atol=1e-15)


def test_a_query_with_a_single_key_has_no_ratio():
    found = statistics_of([[3.0, -math.inf], [1.0, 1.0]])
    assert found["entropy"][0] == found["logit_std"][0] == 0.0
    assert found["max_weight"][0] == 1.0
    assert found["entropy_ratio"].isnan().tolist() == [True, False]
    means = measure(make_model(), windows(1), 3, CPU, bf16=False)
    assert np.isnan(means[STATISTICS.index("entropy_ratio")]).all()
    assert (means[STATISTICS.index("entropy")] == 0).all()


def plain_statistics(logits, training_length):
    """Of one query and its visible keys, [(distance, logit), ...], one number after the other."""
    top = max(logit for _, logit in logits)
    total = math.fsum(math.exp(logit - top) for _, logit in logits)
    weighted = [(distance, math.exp(logit - top) / total) for distance, logit in logits]
    mean = math.fsum(logit for _, logit in logits) / len(logits)
    entropy = -math.fsum(p * math.log(p) for _, p in weighted if p > 0)
    largest = max(p for _, p in weighted)
    return [
        entropy,
        entropy / math.log(len(logits)),
        math.sqrt(math.fsum((logit - mean) ** 2 for _, logit in logits) / len(logits)),
        largest,
        float(largest > SATURATED),
        math.fsum(distance * p for distance, p in weighted),
        math.fsum(p for distance, p in weighted if distance >= training_length),
    ]


class Kept(Recorder):
    """Also keeps what each layer mixed and was given, to be compared."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.calls = []

    def mix(self, q_BHND, k_BHMD, v_BHMD, context, dropout):
        mixed = super().mix(q_BHND, k_BHMD, v_BHMD, context, dropout)
        self.calls.append((q_BHND, k_BHMD, v_BHMD, context, mixed))
        return mixed


@torch.inference_mode()
def run_kept(model, inputs, key_mask=None, logits_at_once=10_000):
    kept = Kept(model.variant, len(model.blocks), model.config.heads, CPU, logits_at_once)
    variant, model.variant = model.variant, kept
    logits = model(torch.from_numpy(inputs.astype(np.int64)), None, key_mask)
    model.variant = variant
    return kept, logits


@pytest.mark.parametrize("positions", TREATMENTS)
def test_means_equal_a_plain_count_with_padding_and_treatments_of_positions(positions):
    inputs = windows(24, count=2)
    real = [24, 19]
    key_mask = torch.arange(24)[None, :] < torch.tensor(real)[:, None]
    model = make_model(positions=positions)
    kept, _ = run_kept(model, inputs, key_mask)
    means = kept.means()
    for layer, (q, k, _, context, _) in enumerate(kept.calls):
        logits = model.variant.logits(model.variant.queries(q, context), k, context, 0).tolist()
        for head in range(2):
            rows = []
            for row in range(2):
                for query in range(real[row]):
                    reach = LENGTH if positions == "band" else 24
                    seen = [key for key in range(real[row]) if abs(query - key) < reach]
                    values = [(abs(query - key), logits[row][head][query][key]) for key in seen]
                    rows.append(plain_statistics(values, LENGTH))
            np.testing.assert_allclose(means[:, layer, head], np.mean(rows, axis=0), rtol=1e-10, atol=1e-12)
    if positions == "band":
        assert (means[STATISTICS.index("beyond")] == 0).all()
    assert means[STATISTICS.index("logit_std")].min() > 0.1  # the rows are far from uniform, so this tests something


@pytest.mark.parametrize("positions", TREATMENTS)
@pytest.mark.parametrize("name", list(registered()))
class TestEveryVariantAndTreatment:
    def test_recorded_logits_give_what_the_model_mixes(self, name, positions):
        model = make_model(name, positions)
        if not has_logits(model.variant):
            pytest.skip("it mixes in its own way")
        for length in (16, 144):  # explicit products and the fused kernel
            kept, _ = run_kept(model, windows(length, count=2))
            assert len(kept.calls) == len(model.blocks)
            for q, k, v, context, mixed in kept.calls:
                parts = logits_in_parts(model.variant, q, k, context, 5000)
                weights = torch.cat([torch.softmax(logits, dim=-1) for _, logits in parts], dim=2)
                torch.testing.assert_close(weights @ v, mixed, rtol=1e-4, atol=1e-5)

    def test_recording_changes_no_bit_of_the_models_logits(self, name, positions):
        model = make_model(name, positions)
        inputs = windows(40)
        _, recorded = run_kept(model, inputs)
        with torch.inference_mode():
            assert torch.equal(model(torch.from_numpy(inputs.astype(np.int64))), recorded)

    def test_parts_of_queries_give_the_same_as_the_whole(self, name, positions):
        model = make_model(name, positions)
        whole, parts = (run_kept(model, windows(40), logits_at_once=size)[0].means() for size in (10**9, 3000))
        assert np.isfinite(whole).all()
        np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("logits_at_once", [1, 3 * 2 * 50, 10_000, 10**9])
def test_no_part_holds_more_logits_than_allowed_beyond_one_query(logits_at_once):
    model = make_model()
    kept, _ = run_kept(model, windows(50), logits_at_once=logits_at_once)
    q, k, _, context, _ = kept.calls[0]
    parts = list(logits_in_parts(model.variant, q, k, context, logits_at_once))
    assert all(logits.numel() <= max(logits_at_once, 3 * 2 * 50) for _, logits in parts)
    sizes = [logits.shape[2] for _, logits in parts]
    assert [first for first, _ in parts] == [sum(sizes[:place]) for place in range(len(sizes))]
    assert sum(sizes) == 50
    whole, _ = run_kept(model, windows(50), logits_at_once=10**9)
    np.testing.assert_allclose(kept.means(), whole.means(), rtol=1e-5, atol=1e-7)


def test_the_result_does_not_depend_on_the_windows_at_once():
    model = make_model()
    first, *others = (measure(model, windows(32, count=7), rows, CPU, bf16=False) for rows in (7, 3, 1))
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-5)
    assert first.shape == (len(STATISTICS), 2, 2)
    assert isinstance(model.variant, Attention)


def test_with_bf16_the_logits_are_made_in_fp32():
    model = make_model()
    fine, coarse = (measure(model, windows(32), 3, CPU, bf16=bf16) for bf16 in (False, True))
    np.testing.assert_allclose(coarse, fine, rtol=0.05, atol=0.01)
    assert (coarse != fine).any()


def test_the_stage_writes_a_row_per_layer_head_and_length(tokens_dir, weights, environment, tmp_path):
    output = tmp_path / "a.csv"
    attention_statistics(stage_settings(), tokens_dir, weights, environment, output)
    table = pd.read_csv(output)
    assert tuple(table.columns) == COLUMNS
    keys = table[["layer", "head", "length"]].to_records(index=False).tolist()
    assert keys == [(layer, head, length) for layer in (0, 1) for head in (0, 1) for length in (16, 32, 64)]
    assert set(table.arm) == {"attention_e"}
    assert (table.entropy > 0).all()
    assert (table.entropy_ratio < 1).all()
    assert (table[table.length == 16].beyond == 0).all()
    assert (table[table.length == 64].beyond > 0).all()
    # The same windows and masked inputs as the evaluation: the first blocks, cut.
    data = load_evaluation_set(tokens_dir)
    model = make_model(vocabulary=load_vocabulary(tokens_dir).size)
    expected = measure(model, data.inputs_KN[:2].reshape(-1, 32), 1, CPU, bf16=False)
    for layer in range(2):
        for head in range(2):
            row = table[(table.layer == layer) & (table["head"] == head) & (table.length == 32)]
            np.testing.assert_allclose(row[list(STATISTICS)].to_numpy()[0], expected[:, layer, head], rtol=1e-5)
    attention_statistics(stage_settings(), tokens_dir, weights, environment, tmp_path / "b.csv")
    assert (tmp_path / "b.csv").read_bytes() == output.read_bytes()


def test_only_the_first_blocks_count(tokens_dir, weights, environment, tmp_path):
    for blocks in (1, 2, 10_000):
        attention_statistics(
            stage_settings(blocks=blocks, lengths=(64,)), tokens_dir, weights, environment, tmp_path / f"{blocks}.csv"
        )
    one, two, all_ = (pd.read_csv(tmp_path / f"{blocks}.csv").entropy for blocks in (1, 2, 10_000))
    assert (one != two).all()
    assert (two != all_).all()


def test_a_variant_that_mixes_in_its_own_way_has_no_rows_and_says_so(
    tokens_dir, weights, environment, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(attention, "_REGISTRY", dict(registered()))
    path = tmp_path / "own_mix.py"
    path.write_text(OWN_MIX)
    own = encoder_settings(attention={"name": "own_mix", "module": str(path)})
    attention_statistics(
        stage_settings(arm="mine", encoder=own), tokens_dir, weights, environment, tmp_path / "mine.csv"
    )
    assert (tmp_path / "mine.csv").read_text() == ",".join(COLUMNS) + "\n"
    assert capsys.readouterr().err == "mine seed 0: own_mix mixes in its own way, so nothing is measured\n"
    attention_statistics(stage_settings(), tokens_dir, weights, environment, tmp_path / "e.csv")
    collect_attention_statistics([tmp_path / "mine.csv", tmp_path / "e.csv"], tmp_path / "entropy.csv")
    assert (tmp_path / "entropy.csv").read_bytes() == (tmp_path / "e.csv").read_bytes()


def test_a_bias_that_excludes_keys_counts_as_a_mask(monkeypatch):
    monkeypatch.setattr(attention, "_REGISTRY", dict(registered()))

    @register("causal")
    @dataclasses.dataclass(frozen=True)
    class Causal(Attention):
        """Sees no key after the query."""

        formula = "1 / sqrt(d)"
        source = "a test"

        def bias(self, context):
            size = len(context.positions_N)
            return torch.full((size, size), -math.inf).triu(1)

    means = measure(make_model("causal", sharpen=0.0), windows(20), 3, CPU, bf16=False)
    np.testing.assert_allclose(means[0], np.mean([math.log(n) for n in range(1, 21)]), rtol=1e-12)
    np.testing.assert_allclose(means[1], 1.0, rtol=1e-12)
    np.testing.assert_allclose(means[STATISTICS.index("distance")], np.mean(np.arange(20) / 2), rtol=1e-12)


def test_tables_keep_order_digits_and_odd_names(tmp_path):
    names = ["b", "007", "nan", "a", "null"]
    for name in names:
        row = f"{name},0,0,1,16,0.10000000000000001,,1e-300,1,0,2.5,0"
        (tmp_path / f"{name}.csv").write_text(",".join(COLUMNS) + f"\n{row}\n")
    collect_attention_statistics([tmp_path / f"{name}.csv" for name in names], tmp_path / "entropy.csv")
    lines = (tmp_path / "entropy.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["arm", *names]
    assert lines[1] == "b,0,0,1,16,0.10000000000000001,,1e-300,1,0,2.5,0"


def a_table(path, arm="a", layers=2, heads=2, lengths=(16, 64)):
    rows = [(layer, head, n) for layer in range(layers) for head in range(heads) for n in lengths]
    lines = [f"{arm},0,{layer},{head},{n},1.5,0.5,1,0.25,0,2.5,0.125" for layer, head, n in rows]
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[: text.rindex("a,0,1,1,64") + 14], "fields, not 12"),
        (lambda text: text[:-4], "is cut off in its last row"),
        (lambda text: text[: text.rindex("a,0,1,1,64")], "lacks rows, it is cut off"),
        (lambda text: text[: text.index("a,0,1,0,16")], "differ in layers, heads or lengths"),
        (lambda text: text.replace("2.5,0.125\n", "2.5,0.125,1\n", 1), "row 2 has 13 fields, not 12"),
        (lambda text: text.replace("a,0,1,1,64", "a,0,1,1,16"), "repeats rows"),
        (lambda text: text.replace("a,0,", "b,0,"), "repeats rows"),
        (lambda text: text.replace("a,0,0,0,16", ",0,0,0,16"), "an arm has no name"),
        (lambda text: text.replace("1.5", "inf", 1), "entropy is no finite number"),
        (lambda text: text.replace("0,16,1.5", "0,16,", 1), "entropy is no finite number"),
        (lambda text: text.replace("a,0,1,1,64", "a,0,1,1.0,64"), "head '1.0' is no whole number"),
    ],
)
def test_damaged_tables_and_tables_given_twice_are_refused(tmp_path, damage, words):
    good, bad = a_table(tmp_path / "good.csv", "b"), a_table(tmp_path / "bad.csv")
    collect_attention_statistics([good, bad], tmp_path / "entropy.csv")
    (tmp_path / "entropy.csv").unlink()
    bad.write_text(damage(bad.read_text()))
    with pytest.raises(UserError, match=words) as told:
        collect_attention_statistics([good, bad], tmp_path / "entropy.csv")
    assert "bad.csv" in str(told.value)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "entropy.csv").exists()


def test_unusable_inputs_get_a_sentence(tokens_dir, weights, environment, tmp_path):
    output = tmp_path / "a.csv"
    with pytest.raises(UserError, match="train this arm first"):
        attention_statistics(stage_settings(), tokens_dir, tmp_path / "none", environment, output)
    with pytest.raises(UserError, match="blocks is 0, so there is nothing to measure"):
        attention_statistics(stage_settings(blocks=0), tokens_dir, weights, environment, output)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(UserError, match="does not fit"):
        attention_statistics(stage_settings(), tokens_dir, cut, environment, output)
    tensors = safetensors.torch.load_file(weights)
    tensors["blocks.1.attention.qkv.weight"][3, 3] = float("nan")
    safetensors.torch.save_file(tensors, tmp_path / "nan.safetensors")
    with pytest.raises(UserError) as caught:
        attention_statistics(stage_settings(), tokens_dir, tmp_path / "nan.safetensors", environment, output)
    assert str(caught.value) == (
        "attention_e seed 0: the logits of attention layer 1 are not finite; check the attention of this arm"
    )
    assert not output.exists()
    for content in ("", "arm,seed\na,0\n", "\0\n"):
        (tmp_path / "bad.csv").write_text(content)
        with pytest.raises(UserError, match=r"bad\.csv is no table of attention statistics .*; delete it"):
            collect_attention_statistics([tmp_path / "bad.csv"], output)
    with pytest.raises(UserError, match="run the attention statistics first"):
        collect_attention_statistics([tmp_path / "none.csv"], output)


def test_the_configuration_gives_the_settings_of_the_stage():
    config = parse_config({"name": "x", "arms": {"a": {"attention": "attention_o"}}}, "x.yaml")
    settings = config.attention_statistics_settings("a", 0)
    assert settings.blocks == 4
    assert settings.lengths == config.evaluation.lengths
    assert AttentionStatisticsSettings.model_validate_json(settings.canonical()) == settings
    with pytest.raises(UserError, match=r"attention_statistics\.blocks"):
        parse_config(
            {"name": "x", "arms": {"a": {"attention": "attention_o"}}, "attention_statistics": {"blocks": -1}}, "x.yaml"
        )
