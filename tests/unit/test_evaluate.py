"""Evaluation: the same targets at every length, whole numbers, independence of batches."""

import pandas as pd
import pytest
import safetensors.torch
import torch

from attnscale.accuracy import collect_accuracy
from attnscale.config import EncoderSettings, EvaluateSettings
from attnscale.errors import UserError
from attnscale.evaluate import COLUMNS, count_correct, evaluate, load_model
from attnscale.tokens.load import load_evaluation_set, load_vocabulary
from attnscale.train import train
from tests.unit.conftest import encoder_settings, train_settings


@pytest.fixture(scope="module")
def weights(tokens_dir, environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    settings = train_settings(training={"tokens": 150 * 64, "learning_rate": 3e-3})
    train(settings, tokens_dir, environment, folder)
    return folder / "model.safetensors"


def evaluate_settings(**changes) -> EvaluateSettings:
    encoder = {key: changes.pop(key) for key in EncoderSettings.model_fields if key in changes}
    values = {
        "arm": "attention_e", "seed": 0, "step": 150, "encoder": encoder_settings(**encoder),
        "lengths": (16, 32, 64), "batch_tokens": 256, "threads": 1, **changes,
    }  # fmt: skip
    return EvaluateSettings.model_validate(values)


def test_counts_agree_with_a_plain_count_window_by_window(tokens_dir, weights, environment, tmp_path):
    lengths = (4, 16, 32, 64)  # 4 is shorter than any training window
    evaluate(evaluate_settings(lengths=lengths), tokens_dir, weights, environment, tmp_path / "e.csv")
    table = pd.read_csv(tmp_path / "e.csv")
    assert tuple(table.columns) == COLUMNS == ("arm", "seed", "step", "length", "block", "correct", "total")
    assert set(table.step) == {150}
    data = load_evaluation_set(tokens_dir)
    model = load_model(evaluate_settings(), load_vocabulary(tokens_dir).size, weights).eval()
    for length in lengths:
        for block, (ids, inputs, masked) in enumerate(zip(data.ids_KN, data.inputs_KN, data.masked_KN, strict=True)):
            correct = 0
            for start in range(0, 64, length):
                window = slice(start, start + length)
                with torch.no_grad():
                    logits = model(torch.from_numpy(inputs[window].astype("int64"))[None])
                hit = logits.argmax(-1).numpy() == ids[window]
                correct += int((hit & masked[window]).sum())
            row = table[(table.length == length) & (table.block == block)].iloc[0]
            assert (row.correct, row.total) == (correct, masked.sum())
    assert table.groupby("length").total.sum().nunique() == 1
    assert 0 < table.correct.sum() < table.total.sum()


@pytest.mark.parametrize("batch_tokens", [64, 100, 100_000])
def test_counts_do_not_depend_on_the_batch_size(tokens_dir, weights, batch_tokens):
    data = load_evaluation_set(tokens_dir)
    model = load_model(evaluate_settings(), load_vocabulary(tokens_dir).size, weights).eval()
    cpu = torch.device("cpu")
    for length in (16, 64):
        first = count_correct(model, data, length, 256, cpu, bf16=False)
        assert count_correct(model, data, length, batch_tokens, cpu, bf16=False) == first


def test_an_arm_that_differs_at_test_time_changes_only_other_lengths(tokens_dir, weights, environment, tmp_path):
    switched = {"name": "attention_e", "parameters": {"base": "training_length"}}
    for name, attention in (("o", {"name": "attention_o"}), ("s", switched), ("acl", {"name": "acl2022"})):
        settings = evaluate_settings(arm=name, attention=attention)
        evaluate(settings, tokens_dir, weights, environment, tmp_path / f"{name}.csv")
    o, s, acl = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("o", "s", "acl"))
    assert list(o[o.length == 16].correct) == list(s[s.length == 16].correct)
    assert list(o[o.length == 64].correct) != list(acl[acl.length == 64].correct)


PLAIN, ACL = {"attention": {"name": "attention_o"}}, {"attention": {"name": "acl2022"}}
OVERRIDES = {
    "band": (PLAIN, {**PLAIN, "positions": {"name": "band"}}),
    "clipped": (PLAIN, {**PLAIN, "positions": {"name": "clipped"}}),
    "ntk": (PLAIN, {**PLAIN, "positions": {"name": "ntk"}}),
    "frozen": (ACL, {**ACL, "n_at_most": 16}),
    "yarn": (PLAIN, {"attention": {"name": "yarn", "parameters": {"slope": 2}}}),
    "log_position": (PLAIN, {"attention": {"name": "log_position", "parameters": {"base": 16}}}),
}


@pytest.mark.parametrize("name", list(OVERRIDES))
def test_every_kind_of_override_changes_lengths_beyond_training_only(tokens_dir, weights, environment, tmp_path, name):
    tables = []
    for changes in OVERRIDES[name]:
        settings = evaluate_settings(lengths=(16, 64), **changes)
        evaluate(settings, tokens_dir, weights, environment, tmp_path / "e.csv")
        tables.append(pd.read_csv(tmp_path / "e.csv"))
    plain, changed = tables
    assert list(plain[plain.length == 16].correct) == list(changed[changed.length == 16].correct)
    assert list(plain[plain.length == 64].correct) != list(changed[changed.length == 64].correct)


def test_weights_without_what_the_attention_learned_do_not_fit(tokens_dir, weights, environment, tmp_path):
    settings = evaluate_settings(attention={"name": "ssmax"})
    with pytest.raises(UserError, match="does not fit"):
        evaluate(settings, tokens_dir, weights, environment, tmp_path / "e.csv")


def test_snapshots_of_one_arm_and_seed_stay_apart_where_the_table_keeps_the_step(tmp_path):
    for step, correct in ((20, 5), (3, 2)):
        rows = "".join(f"o,0,{step},16,{block},{correct},10\n" for block in (0, 1))
        (tmp_path / f"step{step}.csv").write_text(f"{','.join(COLUMNS)}\n{rows}")
    collect_accuracy([tmp_path / "step3.csv", tmp_path / "step20.csv"], tmp_path / "snapshots.csv", by_step=True)
    assert (tmp_path / "snapshots.csv").read_text().splitlines() == [
        "arm,seed,step,length,correct,total,accuracy",
        "o,0,3,16,4,20,0.20000000000000001",
        "o,0,20,16,10,20,0.5",
    ]
    (tmp_path / "old.csv").write_text("arm,seed,length,block,correct,total\no,0,16,0,5,10\n")
    with pytest.raises(UserError, match=r"old\.csv is no evaluation table .*; delete it and run the pipeline again"):
        collect_accuracy([tmp_path / "old.csv"], tmp_path / "snapshots.csv", by_step=True)


def test_the_table_sums_whole_numbers_in_the_order_given(tokens_dir, weights, environment, tmp_path):
    for arm in ("b", "a"):
        evaluate(evaluate_settings(arm=arm), tokens_dir, weights, environment, tmp_path / f"{arm}.csv")
    collect_accuracy([tmp_path / "b.csv", tmp_path / "a.csv"], tmp_path / "accuracy.csv")
    table = pd.read_csv(tmp_path / "accuracy.csv")
    assert list(table.columns) == ["arm", "seed", "length", "correct", "total", "accuracy"]
    assert list(table.arm) == ["b"] * 3 + ["a"] * 3
    assert (table.accuracy == table.correct / table.total).all()
    assert table.total.iloc[0] == load_evaluation_set(tokens_dir).masked_KN.sum()


def test_unusable_inputs_get_a_sentence(tokens_dir, weights, environment, tmp_path):
    with pytest.raises(UserError, match="train this arm first"):
        evaluate(evaluate_settings(), tokens_dir, tmp_path / "none", environment, tmp_path / "e.csv")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(UserError, match="does not fit"):
        evaluate(evaluate_settings(), tokens_dir, cut, environment, tmp_path / "e.csv")
    wide = evaluate_settings(model={"width": 32})
    with pytest.raises(UserError, match="does not fit"):
        evaluate(wide, tokens_dir, weights, environment, tmp_path / "e.csv")
    (tmp_path / "bad.csv").write_text("")
    with pytest.raises(UserError, match="is no evaluation table"):
        collect_accuracy([tmp_path / "bad.csv"], tmp_path / "accuracy.csv")
    assert not (tmp_path / "e.csv").exists()


def test_targets_that_differ_are_refused(tmp_path):
    for name, total in (("a", 10), ("b", 11)):
        (tmp_path / f"{name}.csv").write_text(f"arm,seed,length,block,correct,total\n{name},0,16,0,5,{total}\n")
    with pytest.raises(UserError, match="differ in their targets"):
        collect_accuracy([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "accuracy.csv")


def test_logits_that_are_not_finite_are_no_wrong_answers(tokens_dir, weights, environment, tmp_path):
    tensors = safetensors.torch.load_file(weights)
    tensors["final_norm.weight"][0] = float("nan")
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="attention_e seed 0: its logits are not finite at 16 tokens"):
        evaluate(evaluate_settings(), tokens_dir, tmp_path / "model.safetensors", environment, tmp_path / "e.csv")
    assert not (tmp_path / "e.csv").exists()


def test_arms_may_be_called_like_numbers_or_missing_values(tmp_path):
    names = ["007", "nan", "true", "1e5", "null"]
    for name in names:
        (tmp_path / f"{name}.csv").write_text(f"arm,seed,length,block,correct,total\n{name},0,16,0,5,10\n")
    collect_accuracy([tmp_path / f"{name}.csv" for name in names], tmp_path / "accuracy.csv")
    table = pd.read_csv(tmp_path / "accuracy.csv", dtype=str, keep_default_na=False)
    assert list(table.arm) == names
