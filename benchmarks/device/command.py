"""The command: arguments, and the parts in their order."""

import argparse
import functools
import itertools
import sys
from pathlib import Path

import torch

from attnscale import engine
from attnscale.errors import UserError, sentence_for_os_error
from benchmarks.device import arms, checks, speed
from benchmarks.device.bench import Bench
from benchmarks.device.findings import SUMMARY, Findings
from benchmarks.device.settings import parse_change, presets

ABOUT = "Check, time and use the training on a GPU, within a budget of minutes; every part writes what it found."

# Shares of the budget after which a part does not start any more, so that what comes later keeps its time.
COMPARE_UNTIL, DETERMINISM_UNTIL, SPEED_UNTIL, PROFILE_UNTIL = 0.2, 0.35, 0.5, 0.6


def parse(argv: list[str]) -> argparse.Namespace:
    """Arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python benchmarks/gpu.py", description=ABOUT, allow_abbrev=False)
    add = parser.add_argument
    add("--tokens", type=Path, required=True, metavar="FOLDER", help="results/NAME/tokens of a run of the pipeline")
    add("--output", type=Path, required=True, metavar="FOLDER", help="gets summary.json, accuracy.csv, runs/ ...")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--minutes", type=_positive(float), default=8.0, help="budget of the whole command (default 8)")
    add("--preset", choices=sorted(presets()), default="small", help="size of the encoder")
    add("--precision", choices=("bf16", "fp32"), default="bf16", help="of speed, determinism and training")
    add("--compile", choices=("auto", "off"), default="auto", help="auto: where torch can compile")
    add("--batch-size", type=_positive(int), default=512, help="windows of a training step (default 512)")
    add("--speed-sizes", type=_sizes, default=[256, 512, 1024, 2048], help="default 256,512,1024,2048 windows")
    add("--speed-steps", type=_positive(int), default=10, help="steps of a turn (default 10)")
    add("--turns", type=_positive(int), default=5, help="turns that count (default 5)")
    add("--compare-steps", type=_positive(int), default=20, help="steps of the loss curves (default 20)")
    add("--repeat-steps", type=_positive(int), default=30, help="steps that are done twice (default 30)")
    add("--train-tokens", type=_positive(int), help="of each training (default 100 million, or what fits)")
    add("--first-seed", type=int, default=0, help="for a second call that goes on where the first one ended")
    add("--seeds", type=int, help="at most that many (default: as many as there is time for)")
    add("--keep-weights", action="store_true", help="write runs/ARM/seedS/model.safetensors too")
    add("--threads", type=_positive(int), default=torch.get_num_threads(), help="CPU threads")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a training setting, such as mask_rate=0.2")
    return parser.parse_args(argv)


def _positive(kind: type) -> "functools.partial[float]":
    return functools.partial(_read_positive, kind)


def _read_positive(kind: type, text: str) -> float:
    try:
        number: float = kind(text)
    except ValueError:
        number = 0
    if not 0 < number < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a {'whole ' if kind is int else ''}number above 0")
    return number


def _sizes(text: str) -> list[int]:
    return [int(_read_positive(int, part)) for part in text.split(",")]


def main(argv: list[str], started: float) -> int:
    """Run all parts.

    Args:
        argv: arguments without the name of the program.
        started: what `time.monotonic()` said when the program started.

    Returns:
        The exit code: 0, or 1 after one sentence on stderr.
    """
    arguments = parse(argv)
    try:
        findings = Findings(arguments.output, arguments.minutes, started)
        _run(arguments, findings)
        if findings.problems:
            raise UserError("; ".join(findings.problems))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {sentence_for_os_error(error)}", file=sys.stderr)
    else:
        findings.say(f"all done, see {arguments.output}")
        return 0
    return 1


def _run(arguments: argparse.Namespace, findings: Findings) -> None:
    if (findings.folder / SUMMARY).exists():
        raise UserError(f"{findings.folder} holds the results of an earlier call; choose another --output")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no GPU here; give --device cpu with --preset smoke to try the script")
    changes = dict(parse_change(text) for text in arguments.set)
    engine.prepare(arguments.threads)
    torch.set_float32_matmul_precision("highest")  # no TF32: fp32 is what the CPU is compared with
    compiled = arguments.compile == "auto" and engine.can_compile(arguments.device)
    if compiled:
        import torch._dynamo.config as dynamo

        # Every machine compiles the same function for itself; beyond the usual 8 torch would run it uncompiled.
        dynamo.recompile_limit = 64
    bench = Bench(
        arguments.tokens, arguments.preset, arguments.device, bf16=arguments.precision == "bf16", compiled=compiled,
        batch_size=arguments.batch_size, changes=changes,
    )  # fmt: skip
    findings.write()  # a folder that cannot be written shows before the minutes, not after
    if arguments.compile == "auto" and not compiled:
        findings.say("torch cannot compile here, so nothing is compiled")

    last = None if arguments.seeds is None else arguments.first_seed + arguments.seeds
    seeds = itertools.count(arguments.first_seed) if last is None else range(arguments.first_seed, last)
    part = findings.part
    part("environment", 1.0, lambda found: checks.environment(bench, found, findings))
    part("compare", COMPARE_UNTIL, lambda found: checks.compare(
        bench, found, findings, steps=arguments.compare_steps, until=COMPARE_UNTIL))  # fmt: skip
    part("determinism", DETERMINISM_UNTIL, lambda found: checks.determinism(
        bench, found, findings, steps=arguments.repeat_steps))  # fmt: skip
    part("speed", SPEED_UNTIL, lambda found: speed.measure(
        bench, found, findings, sizes=arguments.speed_sizes, steps=arguments.speed_steps, turns=arguments.turns,
        until=SPEED_UNTIL))  # fmt: skip
    part("profile", PROFILE_UNTIL, lambda found: speed.profile(bench, found, findings))
    part("training", 1.0, lambda found: arms.train_all(
        bench, found, findings, tokens=arguments.train_tokens, seeds=seeds, keep=arguments.keep_weights))  # fmt: skip
