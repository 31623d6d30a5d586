"""The whole benchmark: `make bench`, or `python -m benchmarks.run` in the project's folder.

It needs an otherwise idle machine. Only ratios mean anything, and those of one call: contestants work by turns.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from attnscale.config import PRESETS, ComputeConfig, load_config
from attnscale.environment import describe
from attnscale.errors import UserError, sentence_for_os_error
from benchmarks import evaluation, peers, pipeline, recipe, summary, training
from benchmarks.cases import Case, preset_case
from benchmarks.measures import Result

Preset = StrEnum("Preset", list(PRESETS))  # type: ignore[misc]
COMPACT = Preset("compact")
DEFAULT = Path("config/default.yaml")


class Group(StrEnum):
    """What can be measured alone."""

    training = training.GROUP
    evaluation = evaluation.GROUP
    recipe = recipe.GROUP
    pipeline = pipeline.GROUP


def main(
    preset: Annotated[Preset, typer.Option(help="Size of the model in training and evaluation.")] = COMPACT,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each contestant; medians are over these.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = ComputeConfig().threads,
    output: Annotated[Path, typer.Option(help="Folder for the two CSV files and the figure.")] = Path("results/bench"),
    only: Annotated[list[Group] | None, typer.Option(help="Measure only this group; may be repeated.")] = None,
    recipe_run: Annotated[
        Path | None, typer.Option(help="Finished run that tells the tokens to 43 %; default: the best in results/.")
    ] = None,
    pipeline_run: Annotated[Path, typer.Option(help="Finished run of the whole workflow.")] = Path("results/default"),
) -> None:
    """Measure training, evaluation, recipe and workflow against peers, the machine and the aims."""
    try:
        output.mkdir(parents=True, exist_ok=True)  # before the minutes, not after
        machine = describe(Path("envs/run.lock"), "cpu", "auto", threads)
        case = preset_case(preset, threads)
        recipe_runs = (
            [recipe_run] if recipe_run else sorted(path.parent for path in Path("results").glob("*/accuracy.csv"))
        )
        result = Result()
        for group in only or list(Group):
            print(f"measuring {group} ...", file=sys.stderr, flush=True)
            result.add(measure(group, case, machine, repeats, recipe_runs, pipeline_run))
        summary.write(result, output)
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    except OSError as error:
        raise SystemExit(f"error: {sentence_for_os_error(error)}") from None
    for line in [*about(machine, case), *result.lines]:
        print(line)
    for name, reason in result.left_out.items():
        print(f"left out: {name}: {reason}")
    summary.show(result, f"preset {preset}, {machine['precision']}, {threads} threads, medians of {repeats} turns")
    print(f"written to {output}: summary.csv, repeats.csv, summary.svg, summary.png")


def measure(
    group: Group, case: Case, machine: dict[str, Any], repeats: int, recipe_runs: list[Path], pipeline_run: Path
) -> Result:
    """What one group finds."""
    users = machine["precision"]
    if group == Group.training:
        records = {
            precision: describe(Path("envs/run.lock"), "cpu", precision, case.threads)
            for precision in (["fp32", "bf16"] if users == "bf16" else ["fp32"])
        }
        return training.measure(case, records, users, repeats)
    if group == Group.evaluation:
        return evaluation.measure(case, users, repeats)
    if group == Group.recipe:
        return recipe.measure(recipe_runs, load_config(DEFAULT), machine, case.threads, repeats)
    return pipeline.measure(pipeline_run)


def about(machine: dict[str, Any], case: Case) -> list[str]:
    """The machine, the versions and what is computed."""
    bf16 = "with native bf16" if machine["cpu_bf16"] else "without native bf16, so all is fp32"
    here = peers.installed()
    versions = [
        f"{package} {here[name]}" if name in here else f"no {package}" for name, package in peers.PACKAGES.items()
    ]
    return [
        f"{machine['cpu']} ({machine['cpu_capability']}, {bf16}), {case.threads} threads",
        f"Python {machine['python']}, torch {torch.__version__}, {', '.join(versions)}",
        f"our training: {machine['precision']}, {'compiled' if machine['compile'] else 'not compiled'}, "
        f"{case.step_flops() / 1e9:.1f} GFLOP a step of {case.tokens} tokens",
    ]


if __name__ == "__main__":
    typer.run(main)
