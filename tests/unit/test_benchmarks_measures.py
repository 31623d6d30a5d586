"""The benchmark's arithmetic, with known answers, and what it writes."""

import csv
import dataclasses
import re

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from attnscale.config import TrainingConfig, parse_config
from benchmarks import evaluation, peers, pipeline, recipe, run, summary, training
from benchmarks.cases import preset_case
from benchmarks.measures import MEASURES, Result, Row
from benchmarks.turns import median_ratio

RECORD = {"device": "cpu", "precision": "fp32", "compile": False}
MACHINE = {**RECORD, "cpu": "A", "cpu_capability": "B", "python": "3", "cpu_bf16": []}


def rows(path):
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


# Ratios


def test_the_ratio_is_the_median_over_turns_without_the_first():
    assert median_ratio([100.0, 2.0, 6.0, 8.0], [1.0, 1.0, 2.0, 2.0]) == 3.0


def test_training_ratios_are_those_of_the_precision_that_users_get():
    case = preset_case("smoke", 1, steps=2)
    times = {
        "attnscale fp32": [9.0, 4.0], "huggingface fp32": [9.0, 12.0], "matrix_products fp32": [9.0, 2.0],
        "attnscale bf16": [8.0, 2.0], "huggingface bf16": [9.0, 8.0], "matrix_products bf16": [9.0, 1.0],
        "x_transformers bf16": [9.0, 5.0],
    }  # fmt: skip
    records = {"fp32": RECORD, "bf16": {**RECORD, "precision": "bf16", "compile": True}}
    result = training.result_of(case, times, records, "bf16")
    assert result.values == {
        "train_vs_hf_fp32": 6.0,
        "train_vs_hf_bf16": 4.0,
        "train_matrix_rate_fraction": pytest.approx(0.5 * case.step_flops() / case.product_flops()),
    }
    assert Row("training", "x_transformers", "bf16", 1, "tokens/s", 2 * 1024 / 5) in result.rows
    assert Row("training", "attnscale", "bf16", 1, "FLOP/s", case.step_flops()) in result.rows
    assert Row("training", "attnscale", "bf16", 0, "extra seconds of the first turn", 6.0) in result.rows
    assert "our training in bf16: its first turn took 6.0 s more (compiling and first use)" in result.lines
    assert result.left_out == {}


def test_what_cannot_be_measured_is_named_with_its_reason():
    case = preset_case("smoke", 1, steps=1)
    times = {"attnscale fp32": [1.0, 4.0], "matrix_products fp32": [1.0, 2.0]}
    result = training.result_of(case, times, {"fp32": RECORD}, "fp32")
    assert list(result.values) == ["train_matrix_rate_fraction"]
    assert result.left_out == {
        "train_vs_hf_fp32": "transformers is not installed (extra `bench`)",
        "train_vs_hf_bf16": "this CPU does not multiply bf16 natively",
    }


def test_without_transformers_evaluation_is_left_out(monkeypatch):
    monkeypatch.setattr(peers, "installed", dict)
    result = evaluation.measure(preset_case("smoke", 1, steps=1), "fp32", 1)
    assert list(result.left_out) == ["eval4096_vs_hf", "eval4096_memory_vs_hf"]
    assert not result.values


def test_evaluation_ratios_are_of_speed_and_of_what_memory_grew_by():
    result = evaluation.speed({"attnscale": [9.0, 2.0, 4.0], "huggingface": [9.0, 10.0, 12.0]}, "fp32", tokens=8)
    assert result.values == {"eval4096_vs_hf": 4.0}
    assert Row("evaluation", "attnscale", "fp32", 2, "tokens/s", 2.0) in result.rows
    result = evaluation.memory({"attnscale": (100, 150), "huggingface": (200, 600)}, "fp32")
    assert result.values == {"eval4096_memory_vs_hf": 0.125}
    assert Row("evaluation", "huggingface_peak", "fp32", 1, "bytes", 600) in result.rows


# Recipe


def default_config(**changes):
    values = {"name": "default", "arms": {"attention_o": {"attention": "attention_o"}}, **changes}
    return parse_config(values, "test")


def finished(folder, accuracies, **changes):
    """Leave in `folder` what a finished run leaves and the recipe measure reads."""
    folder.mkdir(parents=True)
    resolved = default_config(**changes).model_dump(mode="json")
    (folder / "config.yaml").write_text(yaml.safe_dump(resolved), encoding="utf-8")
    table = [("attention_o", seed, 64, value) for seed, value in enumerate(accuracies)]
    table += [("attention_o", 0, 128, 0.99), ("attention_e", 0, 64, 0.99)]
    frame = pd.DataFrame(table, columns=["arm", "seed", "length", "accuracy"])
    frame.to_csv(folder / "accuracy.csv", index=False)
    return folder


def test_the_recipe_measure_is_tokens_times_seconds_a_token_over_the_trials():
    # 2 s for 100 tokens against 1 s for 100: twice the time a token, for 4 M tokens instead of 16 M.
    times = {"recipe": [9.0, 2.0], "trial_recipe": [9.0, 1.0]}
    result = recipe.ratio(times, {"recipe": 100, "trial_recipe": 100}, 4_000_000, "fp32")
    assert result.values == {"recipe_tokens_to_43_vs_trial": pytest.approx(0.5)}
    # Twice the batch in the same seconds: the same time a token.
    result = recipe.ratio(times, {"recipe": 200, "trial_recipe": 100}, 4_000_000, "fp32")
    assert result.values == {"recipe_tokens_to_43_vs_trial": pytest.approx(0.25)}
    assert Row("recipe", "recipe", "fp32", 1, "seconds/token", 0.01) in result.rows


def test_of_the_runs_that_reached_43_percent_the_one_with_fewest_tokens_counts(tmp_path):
    short = finished(tmp_path / "short", [0.44, 0.429], training={"tokens": 1_000_000})
    long = finished(tmp_path / "long", [0.46], training={"tokens": 2_000_000})
    low = finished(tmp_path / "low", [0.45, 0.40], training={"tokens": 500_000})
    run, reasons = recipe.choose([long, low, short], default_config())
    assert (run.folder, run.accuracy) == (short, pytest.approx(0.4345))
    step = run.config.training.batch_size * 64
    assert run.tokens == -(-1_000_000 // step) * step
    assert reasons == [f"{low} reached 42.5% at 64 tokens, not 43%"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"preset": "smoke"}}, "in its model"),
        ({"tokens": {"kind": "character"}}, "in its tokens"),
        ({"corpus": {"max_documents": 5}}, "in its corpus"),
        ({"evaluation": {"mask_rate": 0.3}}, "another share"),
        ({"training": {"length": 32}}, "at 64 tokens"),
    ],
)
def test_a_run_of_something_else_does_not_count(tmp_path, changes, reason):
    folder = finished(tmp_path / "other", [0.9], **changes)
    run, reasons = recipe.choose([folder], default_config())
    assert run is None
    assert reason in reasons[0]


def test_a_run_whose_settings_this_version_would_have_to_guess_does_not_count(tmp_path):
    folder = finished(tmp_path / "old", [0.9])
    data = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    del data["training"]["mask_rate"]
    (folder / "config.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    assert "of another version" in recipe.choose([folder], default_config())[1][0]


def test_without_a_run_the_measure_is_left_out_and_says_what_to_run(tmp_path):
    unfinished = finished(tmp_path / "unfinished", [0.9])
    (unfinished / "accuracy.csv").unlink()
    result = recipe.measure([unfinished], default_config(), RECORD, 1, 1)
    assert not result.values
    said = result.left_out["recipe_tokens_to_43_vs_trial"]
    assert "unfinished has no readable accuracy.csv" in said
    assert said.endswith("run `make CONFIG=config/reference.yaml` first")


def test_the_trial_recipe_names_every_setting_that_touches_learning():
    free = {"tokens", "log_every", "checkpoint_every", "snapshots"}
    muon_only = {name for name in TrainingConfig.model_fields if name.startswith("muon")}
    assert set(TrainingConfig.model_fields) == recipe.TRIAL.model_fields_set | free | muon_only


# Pipeline


def times(*lines):
    return pd.DataFrame([("workflow", 0.0, 100.0), *lines], columns=["job", "start", "end"])


def test_the_overhead_is_what_neither_trains_nor_evaluates(tmp_path):
    table = times(
        ("corpus", 2.0, 9.0), ("train/attention_o/seed0", 10.0, 60.0), ("evaluate/attention_o/seed0", 60.5, 90.5)
    )
    result = pipeline.share(table, tmp_path)
    assert result.values == {"pipeline_overhead_share": pytest.approx(0.2)}
    assert Row("pipeline", "corpus", "", 1, "seconds", 7.0) in result.rows


def test_jobs_beside_each_other_fill_the_same_time_once(tmp_path):
    assert pipeline.union([(5, 9), (0, 4), (1, 2), (3, 6)]) == 9
    table = times(("train/a/seed0", 10.0, 60.0), ("train/b/seed0", 10.0, 70.0), ("train/c/seed0", 65.0, 90.0))
    assert pipeline.share(table, tmp_path).values == {"pipeline_overhead_share": pytest.approx(0.2)}


def test_an_invocation_that_did_not_run_every_job_does_not_count(tmp_path):
    table = times(("corpus", -500.0, -490.0), ("train/a/seed0", 10.0, 60.0))
    result = pipeline.share(table, tmp_path)
    assert not result.values
    assert "did not run every job" in result.left_out["pipeline_overhead_share"]


def test_the_times_are_read_from_the_run_without_arms_that_it_no_longer_has(tmp_path):
    folder = finished(tmp_path / "default", [0.5])
    assert "workflow.tsv is missing" in pipeline.measure(folder).left_out["pipeline_overhead_share"]
    (folder / "benchmarks").mkdir()
    table = times(("train/attention_o/seed0", 10.0, 90.0), ("train/gone/seed0", -50.0, -10.0))
    table.to_csv(folder / "benchmarks" / "workflow.tsv", sep="\t", index=False)
    assert pipeline.measure(folder).values == {"pipeline_overhead_share": pytest.approx(0.2)}
    (folder / "benchmarks" / "workflow.tsv").write_text("nonsense\n", encoding="utf-8")
    assert "is no table" in pipeline.measure(folder).left_out["pipeline_overhead_share"]
    assert "workflow.tsv is missing" in pipeline.measure(tmp_path / "none").left_out["pipeline_overhead_share"]


# What is written


def test_the_measures_have_the_limits_of_the_project():
    limits = {name: (round(measure.must, 4), round(measure.aim, 4)) for name, measure in MEASURES.items()}
    assert limits == {
        "train_vs_hf_fp32": (5, 10), "train_vs_hf_bf16": (3, 6), "train_matrix_rate_fraction": (0.3, 0.5),
        "recipe_tokens_to_43_vs_trial": (0.6667, 0.3333), "eval4096_vs_hf": (3, 6),
        "eval4096_memory_vs_hf": (0.25, 0.125), "pipeline_overhead_share": (0.15, 0.08),
    }  # fmt: skip
    assert MEASURES["train_vs_hf_fp32"].times_must(10) == 2
    assert MEASURES["eval4096_memory_vs_hf"].times_must(0.125) == 2


def everything():
    values = {name: measure.must for name, measure in MEASURES.items()}
    single = [Row("training", "attnscale", "fp32", number, "tokens/s", 1000.0 * number) for number in (1, 2, 3)]
    return Result(single, values)


def test_the_table_shows_measures_with_limits_and_rates_with_their_spread(capsys):
    summary.show(everything(), "a title")
    printed = capsys.readouterr().out
    assert re.search(r"│ train_vs_hf_fp32 +│ +5 │ +≥ 5 │ +≥ 10 │", printed)
    assert re.search(r"│ pipeline_overhead_share +│ +0.15 │ +≤ 0.15 │ +≤ 0.08 │", printed)
    assert re.search(r"│ +attnscale fp32, tokens/s +│ +2,000 \(1,000–3,000\) │ +│ +│", printed)


def test_the_same_results_leave_the_same_bytes(tmp_path):
    for folder in ("one", "two"):
        summary.write(everything(), tmp_path / folder)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["repeats.csv", "summary.csv", "summary.png", "summary.svg"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert (tmp_path / "one" / "summary.csv").read_text(encoding="utf-8").splitlines()[:2] == [
        "measure,value,must,aim",
        "train_vs_hf_fp32,5,5,10",
    ]


def test_a_figure_without_any_measure_is_still_a_figure():
    assert summary.figure(Result())["svg"].startswith(b"<?xml")


def call(*arguments):
    app = run.typer.Typer()
    app.command()(run.main)
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def _a_machine_without_bf16(monkeypatch):
    monkeypatch.setattr(run, "describe", lambda *_: MACHINE)


@pytest.mark.usefixtures("_a_machine_without_bf16")
def test_a_real_run_writes_rates_of_all_contestants_and_names_what_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "preset_case", lambda preset, threads: preset_case(preset, threads, steps=1))
    # A missing peer makes it quick; what peers compute is tested apart.
    monkeypatch.setattr(peers, "installed", dict)
    out = tmp_path / "bench"
    done = call("--preset", "smoke", "--repeats", 2, "--threads", 1, "--output", out, "--only", "training",
                "--only", "pipeline", "--pipeline-run", tmp_path / "none")  # fmt: skip
    assert done.exit_code == 0, done.output
    repeats, values = rows(out / "repeats.csv"), rows(out / "summary.csv")
    assert tuple(repeats[0]) == ("group", "what", "precision", "repeat", "unit", "value")
    assert [(row["what"], row["repeat"], row["unit"]) for row in repeats] == [
        ("attnscale", "1", "tokens/s"),
        ("attnscale", "1", "FLOP/s"),
        ("attnscale", "2", "tokens/s"),
        ("attnscale", "2", "FLOP/s"),
        ("attnscale", "0", "extra seconds of the first turn"),
        ("matrix_products", "1", "FLOP/s"),
        ("matrix_products", "2", "FLOP/s"),
    ]
    assert all(float(row["value"]) > 0 for row in repeats if "extra" not in row["unit"])
    assert [row["measure"] for row in values] == ["train_matrix_rate_fraction"]
    flops = [float(row["value"]) for row in repeats if row["unit"] == "FLOP/s"]
    expected = (flops[0] / flops[2] + flops[1] / flops[3]) / 2
    assert float(values[0]["value"]) == pytest.approx(expected, abs=1e-4)
    assert "left out: train_vs_hf_bf16: this CPU does not multiply bf16 natively" in done.output
    assert "left out: pipeline_overhead_share: " in done.output
    assert "A (B, without native bf16, so all is fp32), 1 threads" in done.output
    assert "no transformers, no x-transformers" in done.output


@pytest.mark.usefixtures("_a_machine_without_bf16")
def test_an_output_folder_that_cannot_be_made_is_told_in_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    done = call("--preset", "smoke", "--output", tmp_path / "file" / "bench")
    assert done.exit_code == 1
    assert "error: cannot use" in done.output


def test_where_bf16_is_native_both_precisions_are_measured_and_only_ours_for_users_elsewhere(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        training, "measure", lambda case, records, users, repeats: seen.update(records=records, u=users)
    )
    monkeypatch.setattr(run, "describe", lambda lock, device, precision, threads: {**RECORD, "precision": precision})
    case = preset_case("smoke", 1, steps=1)
    run.measure(run.Group.training, case, {**MACHINE, "precision": "bf16"}, 1, [], None)
    assert (list(seen["records"]), seen["u"]) == (["fp32", "bf16"], "bf16")
    assert seen["records"]["bf16"]["precision"] == "bf16"


def test_results_add_up():
    total = Result()
    for number in (1, 2):
        total.add(Result([Row("g", "w", "", number, "s", 1.0)], {f"v{number}": 1.0}, {f"l{number}": "why"}, ["line"]))
    assert dataclasses.astuple(total)[1:] == ({"v1": 1.0, "v2": 1.0}, {"l1": "why", "l2": "why"}, ["line", "line"])
    assert [row.repeat for row in total.rows] == [1, 2]
