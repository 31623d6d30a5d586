"""The plan against cases computed by hand."""

import json
from pathlib import Path

import pytest

from attnscale.checksums import write_checksums
from attnscale.cli import resolved_yaml
from attnscale.config import parse_config
from attnscale.errors import UserError
from attnscale.flops import forward_flops
from attnscale.plan import Job, Plan, Speed, describe, duration, jobs_of, make_plan, training_work

TINY = {
    "name": "tiny",
    "seeds": [0, 1],
    "arms": {
        "one": {"attention": "attention_o"},
        "late": {"attention": "attention_o", "branch": {"of": "one", "at": 0.5}},
        "again": {"weights_of": "one", "attention": "attention_e"},
    },
    "model": {"width": 8, "layers": 2, "heads": 1, "feed_forward": 16},
    "tokens": {"vocabulary_size": 300},
    "training": {"length": 8, "batch_size": 4, "tokens": 320, "mask_rate": 0.25, "snapshots": [0.5]},
    "evaluation": {"lengths": [8, 16], "max_blocks": 2, "snapshot_arms": ["one"]},
    "attention_statistics": {"blocks": 1},
    "compute": {"threads": 2},
}


ENVIRONMENT = {
    "python": "3", "platform": "wood", "cpu": "beads", "cpu_capability": "ten", "device": "cpu",
    "device_name": "abacus", "precision": "fp32", "compile": False, "threads": 2, "packages": {}, "lock_sha256": None,
}  # fmt: skip


def tiny(**changes):
    return parse_config({**TINY, **changes}, "test")


def write_times(run: Path, config, seconds) -> Path:
    """A finished run with the given seconds per rule; its trainings took two of theirs to start."""
    run.mkdir()
    (run / "config.yaml").write_text(resolved_yaml(config), encoding="utf-8")
    (run / "tokens").mkdir()
    evaluation_set = {"blocks": 2, "blocks_available": 7, "targets": 8, "documents": 1}
    (run / "tokens" / "evaluation.json").write_text(json.dumps(evaluation_set))
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT))
    for job in jobs_of(config, 2):
        words = job.name.split()
        folder = {"branch": "train", "evaluate_snapshot": "evaluate", "render": "report"}.get(job.rule, job.rule)
        parts = [
            folder,
            *words[1:2],
            *(["seed" + words[3]] if len(words) > 3 else []),
            *("step" + w for w in words[5:6]),
        ]
        file = run / "benchmarks" / ("/".join(parts) + ".tsv")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"s\th:m:s\tmax_rss\n{seconds[job.rule]}\t0:00:00\t1.0\n")
        if folder == "train":
            record = run / "runs" / words[1] / f"seed{words[3]}" / "run.json"
            record.parent.mkdir(parents=True)
            facts = {
                "arm": words[1], "seed": int(words[3]), "parameters": 1, "steps": 10, "tokens": 320,
                "seconds": seconds[job.rule] - 2.0, "tokens_per_second": 16.0, "device": "cpu", "precision": "fp32",
                "compile": False, "threads": 2,
            }  # fmt: skip
            record.write_text(json.dumps(facts))
    return run / "benchmarks"


SECONDS = {
    "config": 1.0, "environment": 1.0, "corpus": 5.0, "tokens": 4.0, "evaluation_set": 3.0, "theory": 2.0,
    "train": 22.0, "branch": 12.0, "evaluate": 6.0, "evaluate_snapshot": 6.0, "attention_statistics": 4.0,
    "accuracy": 1.2, "snapshot_accuracy": 1.0, "differences": 6.0, "entropy": 3.0, "claims": 3.0, "render": 9.0,
    "manifest": 0.6,
}  # fmt: skip


def test_flops_of_a_forward_pass_are_those_counted_by_hand():
    model = tiny().model
    # First block: 32 tokens through 8x24, 8x8, 8x16, 16x8. Last: 32 through 8x24, then 8 masked ones. Head: 8x300.
    products = 32 * (192 + 64 + 128 + 128) + 32 * 192 + 8 * (64 + 128 + 128) + 8 * 8 * 300
    attention = 2 * 2 * (32 * 8 * 8)  # queries with keys and weights with values, 8 keys each, in two blocks
    found = forward_flops(model, tokens=32, masked=8, length=8, vocabulary_size=300)
    assert found == 2 * products + 2 * attention


def test_jobs_by_rule_are_those_of_the_configuration():
    jobs = jobs_of(tiny(), 2)
    count = {rule: sum(job.rule == rule for job in jobs) for rule in {job.rule for job in jobs}}
    many = {"train": 2, "branch": 2, "evaluate": 6, "evaluate_snapshot": 2, "attention_statistics": 6}
    assert count == {rule: many.get(rule, 1) for rule in SECONDS}
    assert all(needed < index for index, job in enumerate(jobs) for needed in job.needs)
    assert {job.cores for job in jobs if job.rule in ("train", "evaluate")} == {2}
    branch = next(job for job in jobs if job.name == "branch late seed 1")
    assert "train one seed 1" in [jobs[index].name for index in branch.needs]


def test_a_run_like_the_measured_one_costs_what_was_measured(tmp_path):
    plan, _ = make_plan(tiny(), write_times(tmp_path / "run", tiny(), SECONDS))
    for job, seconds in zip(plan.jobs, plan.seconds, strict=True):
        assert seconds == pytest.approx(SECONDS[job.rule]), job.name
    # environment, corpus, tokens, evaluation set, trunk, branch, evaluation, differences, claims, page, manifest
    assert plan.finish()[0] == pytest.approx(1 + 5 + 4 + 3 + 22 + 12 + 6 + 6 + 3 + 9 + 0.6)
    wide = 2 * (2 * 22 + 2 * 12 + 6 * 6 + 2 * 6 + 6 * 4)  # on two cores each
    single = 1 + 1 + 5 + 4 + 3 + 2 + 1.2 + 1 + 6 + 3 + 3 + 9 + 0.6
    assert plan.core_hours() == pytest.approx((wide + single) / 3600)
    assert plan.finish(1)[0] == pytest.approx(sum(plan.seconds))


def test_steps_are_scaled_and_the_start_of_a_job_is_not(tmp_path):
    times = write_times(tmp_path / "run", tiny(), SECONDS)
    longer = tiny(training={**TINY["training"], "tokens": 3200})
    assert training_work(longer, "one") == 10 * training_work(tiny(), "one")
    plan, _ = make_plan(longer, times)
    train = next(s for job, s in zip(plan.jobs, plan.seconds, strict=True) if job.rule == "train")
    assert train == pytest.approx(2 + 10 * 20)
    # 2 seconds of start, and twice the blocks.
    more, _ = make_plan(tiny(evaluation={**TINY["evaluation"], "max_blocks": 4}), times)
    evaluate = next(s for job, s in zip(more.jobs, more.seconds, strict=True) if job.rule == "evaluate")
    assert evaluate == pytest.approx(2 + 2 * 4)
    # Twice the seeds: the table of accuracies has twice the rows.
    wider, _ = make_plan(tiny(seeds=[0, 1, 2, 3]), times)
    accuracy = next(s for job, s in zip(wider.jobs, wider.seconds, strict=True) if job.rule == "accuracy")
    assert accuracy == pytest.approx(2.4)


def test_ten_arms_and_ten_seeds_take_as_long_as_one_where_there_are_machines(tmp_path):
    arms = {f"arm{number}": {"attention": "attention_o"} for number in range(10)}
    config = tiny(arms=arms, seeds=list(range(10)), evaluation={"lengths": [8, 16], "max_blocks": 2})
    plan, _ = make_plan(config, write_times(tmp_path / "run", tiny(), SECONDS))
    chain = [plan.jobs[index] for index in plan.longest_chain()]
    assert [job.rule for job in chain][:6] == ["environment", "corpus", "tokens", "evaluation_set", "train", "evaluate"]
    assert chain[4].name == "train arm0 seed 0"  # the first of equals
    shortest, most = plan.finish()
    assert shortest == pytest.approx(sum(plan.seconds[index] for index in plan.longest_chain()))
    assert most == 200  # evaluation and attention statistics of every training
    assert plan.finish(10)[0] > 10 * (22 + 4)  # a tenth of the trainings and evaluations one after the other
    assert plan.finish(200)[0] == pytest.approx(shortest)


def job(*needs, cores=1):
    return Job("rule", "name", None, cores, needs)


def test_chain_width_and_finish_of_a_small_graph_are_those_drawn_by_hand():
    # 0 (1 s) before 1 (5 s) and 2 (2 s); 3 (2 s) after both; 4 (3 s) alone.
    plan = Plan([job(), job(0), job(0), job(1, 2), job(cores=3)], [1.0, 5.0, 2.0, 2.0, 3.0])
    assert plan.longest_chain() == [0, 1, 3]
    assert plan.finish() == (8.0, 3)
    assert plan.finish(1) == (13.0, 1)
    assert plan.finish(2) == (8.0, 2)
    assert plan.core_hours() == pytest.approx((1 + 5 + 2 + 2 + 9) / 3600)


def test_a_speed_adds_the_start_to_the_work():
    assert Speed(2.0, 0.5).seconds(Job("train", "", 8.0, 1, ())) == 6.0
    assert Speed(2.0, 0.5).seconds(job()) == 2.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.2 s"), (119.9, "119.9 s"), (120, "2.0 min"), (7199, "120.0 min"), (7200, "2.0 h")]
)
def test_durations_have_the_unit_that_suits_them(seconds, text):
    assert duration(seconds) == text


def test_the_output_says_that_it_estimates_from_what_and_scaled_by_what(tmp_path):
    times = write_times(tmp_path / "run", tiny(), SECONDS)
    other = tiny(model={"preset": "compact"}, compute={"threads": 1, "device": "cuda"}, corpus={"max_documents": 5})
    text = "\n".join(describe(other, *make_plan(other, times)))
    for words in (
        "an estimate", "abacus", "scaled by FLOPs", "another size", "1 thread(s) per job, which nothing", "for GPUs",
        "corpus or tokenizer differ", "Critical path:", "at most", "jobs at once",
    ):  # fmt: skip
        assert words in text, words
    same = "\n".join(describe(tiny(), *make_plan(tiny(), times)))
    assert "another size" not in same
    assert "for GPUs" not in same


def test_missing_and_damaged_times_are_refused_with_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"holds no times of a finished run; run `make smoke`"):
        make_plan(tiny(), tmp_path / "results" / "benchmarks")
    times = write_times(tmp_path / "run", tiny(), SECONDS)
    (times / "corpus.tsv").write_text("nonsense\n")
    with pytest.raises(UserError, match=r"corpus\.tsv is no benchmark file of Snakemake"):
        make_plan(tiny(), times)
    (times / "corpus.tsv").unlink()
    with pytest.raises(UserError, match=r"corpus\.tsv is missing; finish that run"):
        make_plan(tiny(), times)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("tokens/evaluation.json", text) for text in ("{}", "[]", "null", '{"blocks": "x"}', '{"blocks": -1}')),
        *(("environment.json", text) for text in ("{}", "[]", "null", "[" * 100_000)),
        *(("runs/one/seed0/run.json", f'{{"seconds": {text}}}') for text in ("null", '"a"', "-5", "NaN", "Infinity")),
        *(("benchmarks/corpus.tsv", f"s\n{text}\n") for text in ("nan", "-3", "inf", "-", "")),
        ("benchmarks/corpus.tsv", "h\ts\n1"),
    ],
)
def test_nothing_is_planned_from_records_that_make_no_sense(tmp_path, name, content):
    times = write_times(tmp_path / "run", tiny(), SECONDS)
    path = tmp_path / "run" / name
    if content.startswith("{") and content != "{}":
        right = json.loads(path.read_text())
        content = json.dumps({**right, **json.loads(content)})
    path.write_text(content)
    with pytest.raises(UserError, match=rf"{path.name} is (damaged|no valid JSON|no benchmark file)"):
        make_plan(tiny(), times)


def test_nothing_is_planned_from_a_record_that_disagrees_with_its_checksum(tmp_path):
    times = write_times(tmp_path / "run", tiny(), SECONDS)
    record = tmp_path / "run" / "runs" / "one" / "seed0" / "run.json"
    write_checksums([record])
    record.write_text(record.read_text().replace("20.0", "90.0"))
    with pytest.raises(UserError, match=r"run\.json and its checksum .* disagree"):
        make_plan(tiny(), times)


def test_a_rule_that_was_not_measured_is_named(tmp_path):
    plain = tiny(attention_statistics={"blocks": 0})
    times = write_times(tmp_path / "run", plain, SECONDS)
    with pytest.raises(UserError, match="has no times of attention_statistics, entropy"):
        make_plan(tiny(), times)
