"""The command line: one subcommand per stage, which is all that the Snakemake rules call."""

import enum
import io
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError

from attnscale import __version__
from attnscale.checksums import check_checksums, checked
from attnscale.config import (
    AttentionStatisticsSettings,
    Config,
    CorpusSettings,
    EvaluateSettings,
    EvaluationSetSettings,
    ExactSettings,
    FormalSettings,
    Section,
    TheorySettings,
    TokensSettings,
    TrainSettings,
    differing_sections,
    load_config,
)
from attnscale.errors import UserError, sentence_for_os_error
from attnscale.findings import explain
from attnscale.manifest import (
    BY_SOURCE_FILES,
    CORPUS_FILES,
    EVALUATION_SET_FILES,
    TOKENS_FILES,
    tokens_files,
    training_inputs,
    training_outputs,
)
from attnscale.yaml_files import resolved_yaml

# Stages are imported inside their commands: torch alone takes seconds, and `attnscale --help` needs none of them.

app = typer.Typer(
    name="attnscale",
    help="Replicate the comparison of attention scales, stage by stage. `snakemake --cores all` runs all of it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Settings = Annotated[
    str, typer.Option(help="The stage's settings as JSON; `snakemake -n -p` prints each stage's whole command.")
]
TokensDir = Annotated[Path, typer.Option("--tokens", help="Folder of the tokens and evaluation set.")]
Environment = Annotated[Path, typer.Option(help="environment.json of the run.")]
Weights = Annotated[Path, typer.Option(help="model.safetensors of the trained arm.")]
Evaluations = Annotated[list[Path], typer.Argument(help="CSV files of the evaluate stage.")]
CsvFile = Annotated[Path, typer.Option(help="CSV file to write.")]
Configfile = Annotated[Path, typer.Option(help="A configuration file.")]


class _Stopped(BaseException):
    """Ctrl-C or SIGTERM; unlike KeyboardInterrupt it goes past typer, which would end without a word."""


_S = TypeVar("_S", bound=Section)


class Form(enum.StrEnum):
    """Forms in which models come and go."""

    hf = "hf"


def _settings(model: type[_S], text: str) -> _S:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise UserError(
            f"--settings do not fit this stage ({explain(error, model)}); run it through snakemake"
        ) from None


@app.command()
def environment(
    output: Annotated[Path, typer.Option(help="environment.json to write.")],
    lock: Annotated[Path, typer.Option(help="The lock file the environment was made from.")] = Path("envs/run.lock"),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32 or bf16")] = "auto",
    compilation: Annotated[str, typer.Option("--compile", help="auto, on or off")] = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads inside one job", min=1)] = 2,
) -> None:
    """Record versions and hardware, and decide on device, precision and compilation."""
    from attnscale.environment import describe
    from attnscale.files import write_json

    with checked([], [output]):
        write_json(output, describe(lock, device, precision, threads, compilation))


@app.command()
def corpus(settings: Settings, output: Annotated[Path, typer.Option(help="Folder to write.")]) -> None:
    """Download, clean and split the text."""
    from attnscale.corpus import build_corpus

    with checked([], [output / name for name in CORPUS_FILES]):
        build_corpus(_settings(CorpusSettings, settings), output)


@app.command()
def tokens(
    settings: Settings,
    corpus: Annotated[Path, typer.Option(help="Folder of the corpus.")],
    output: Annotated[Path, typer.Option(help="Folder to write.")],
) -> None:
    """Train the tokenizer on the training documents and turn all documents into ids."""
    from attnscale.tokens.build import build_tokens

    with checked([corpus / name for name in CORPUS_FILES], [output / name for name in TOKENS_FILES]):
        build_tokens(_settings(TokensSettings, settings), corpus, output)


@app.command()
def evaluation_set(settings: Settings, tokens: TokensDir) -> None:
    """Cut held-out documents into blocks and draw their masks, once for all arms and lengths."""
    from attnscale.tokens.evaluation_set import build_evaluation_set

    with checked([tokens / name for name in TOKENS_FILES], [tokens / name for name in EVALUATION_SET_FILES]):
        build_evaluation_set(_settings(EvaluationSetSettings, settings), tokens, tokens)


@app.command()
def train(
    settings: Settings,
    tokens: TokensDir,
    environment: Environment,
    output: Annotated[Path, typer.Option(help="Folder of the run.")],
    trunk: Annotated[
        Path | None, typer.Option(help="Folder of the run whose snapshot a branched arm goes on from.")
    ] = None,
    stop_with_parent: Annotated[
        bool, typer.Option("--stop-with-parent", help="Save and stop when the process that started this one ends.")
    ] = False,
) -> None:
    """Train one arm with one seed; stopped by SIGTERM or Ctrl-C it saves its state and can go on later."""
    from attnscale.train import train as run

    given = _settings(TrainSettings, settings)
    with checked(training_inputs(given, tokens, environment, trunk), training_outputs(given, output)):
        run(given, tokens, environment, output, trunk=trunk, stop_with_parent=stop_with_parent)
        # The checkpoint is gone now, and Snakemake deletes what a failed job has written: a signal that
        # arrives before the process has ended would cost the whole training.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


@app.command()
def evaluate(
    settings: Settings,
    tokens: TokensDir,
    weights: Weights,
    environment: Environment,
    output: CsvFile,
) -> None:
    """Count right predictions of one arm and seed at every length."""
    from attnscale.evaluate import evaluate as run

    with checked([*tokens_files(tokens), weights, environment], [output]):
        run(_settings(EvaluateSettings, settings), tokens, weights, environment, output)


@app.command()
def accuracy(
    evaluations: Evaluations,
    output: Annotated[Path, typer.Option(help="accuracy.csv to write.")],
    by_step: Annotated[bool, typer.Option("--by-step", help="Keep the step of the training apart.")] = False,
) -> None:
    """Sum the evaluations of all arms and seeds into one table."""
    from attnscale.accuracy import collect_accuracy

    with checked(evaluations, [output]):
        collect_accuracy(evaluations, output, by_step=by_step)


@app.command()
def attention_statistics(
    settings: Settings,
    tokens: TokensDir,
    weights: Weights,
    environment: Environment,
    output: CsvFile,
) -> None:
    """Measure the attention weights of one arm and seed at every length: entropy, spread of the logits and more."""
    from attnscale.analysis.attention_statistics import attention_statistics as run

    with checked([*tokens_files(tokens), weights, environment], [output]):
        run(_settings(AttentionStatisticsSettings, settings), tokens, weights, environment, output)


@app.command()
def entropy(
    statistics: Annotated[list[Path], typer.Argument(help="CSV files of the attention-statistics stage.")],
    output: Annotated[Path, typer.Option(help="entropy.csv to write.")],
) -> None:
    """Put the attention statistics of all arms and seeds into one table."""
    from attnscale.analysis.attention_statistics import collect_attention_statistics

    with checked(statistics, [output]):
        collect_attention_statistics(statistics, output)


@app.command()
def differences(
    settings: Settings,
    evaluations: Evaluations,
    output: Annotated[Path, typer.Option(help="differences.csv to write.")],
) -> None:
    """Estimate and test the differences between arms."""
    from attnscale.analysis.differences import write_differences
    from attnscale.analysis.settings import DifferencesSettings

    with checked(evaluations, [output]):
        write_differences(_settings(DifferencesSettings, settings), evaluations, output)


@app.command()
def by_source(
    settings: Settings,
    evaluations: Evaluations,
    corpus: Annotated[Path, typer.Option(help="Folder of the corpus.")],
    tokens: TokensDir,
    output: Annotated[Path, typer.Option(help="Folder to write.")],
) -> None:
    """Count right predictions and estimate differences for every source of the text on its own."""
    from attnscale.analysis.by_source import write_by_source
    from attnscale.analysis.settings import DifferencesSettings

    inputs = [*evaluations, *(corpus / name for name in CORPUS_FILES), *tokens_files(tokens)]
    with checked(inputs, [output / name for name in BY_SOURCE_FILES]):
        write_by_source(_settings(DifferencesSettings, settings), evaluations, corpus, tokens, output)


@app.command()
def claims(
    run: Annotated[Path, typer.Argument(help="Folder of a run, results/NAME.")],
    output: Annotated[Path, typer.Option(help="claims.csv to write.")],
) -> None:
    """Decide on every claim by the criteria of the configuration."""
    from attnscale.analysis.claims import write_claims
    from attnscale.manifest import evaluation_file

    check_checksums([run / "config.yaml"])
    config = load_config(run / "config.yaml")
    evaluations = [run / evaluation_file(arm, seed) for arm, seed in config.runs()]
    entropy = run / "entropy.csv" if config.attention_statistics.blocks else None
    histories = {
        (arm, seed): run / "runs" / arm / f"seed{seed}" / "history.csv" for arm, seed in config.runs(trained=True)
    }
    formal = {task: run / f"{task}.csv" for task in config.formal}
    with checked([*evaluations, run / "entropy.csv", *histories.values(), *formal.values()], [output]):
        write_claims(config, evaluations, output, entropy=entropy, histories=histories, formal=formal)


@app.command()
def train_formal(
    settings: Settings,
    output: CsvFile,
    stop_with_parent: Annotated[
        bool, typer.Option("--stop-with-parent", help="Stop when the process that started this one ends.")
    ] = False,
) -> None:
    """Train tiny transformers of one arm on FIRST or PARITY, all lengths and seeds at once, and test them."""
    from attnscale.formal.training import train_arm

    with checked([], [output]):
        train_arm(_settings(FormalSettings, settings), output, stop_with_parent=stop_with_parent)


@app.command()
def formal_table(
    arms: Annotated[list[Path], typer.Argument(help="CSV files of the train-formal stage.")], output: CsvFile
) -> None:
    """Put the tests of all arms on a formal language into one table."""
    from attnscale.formal.tables import collect_arms

    with checked(arms, [output]):
        collect_arms(arms, output)


@app.command()
def exact_networks(settings: Settings, output: CsvFile) -> None:
    """Run the hand-built networks for FIRST or PARITY, without and with layer norm."""
    from attnscale.formal.exact import write_exact

    with checked([], [output]):
        write_exact(_settings(ExactSettings, settings), output)


@app.command()
def theory(settings: Settings, output: Annotated[Path, typer.Option(help="theory.csv to write.")]) -> None:
    """Recompute the derivation of the scale: constants, exact entropies, which law keeps entropy constant."""
    from attnscale.analysis.theory import write_theory

    with checked([], [output]):
        write_theory(output, **_settings(TheorySettings, settings).model_dump())


@app.command()
def report(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run; default: that of --configfile.")] = None,
    configfile: Configfile = Path("config/default.yaml"),
    output: Annotated[Path | None, typer.Option(help="Folder to write; default: report inside the run.")] = None,
) -> None:
    """Write the report of a finished run; trains nothing."""
    from attnscale.manifest import (
        check_inputs,
        imported_files,
        is_imported,
        refresh_manifest,
        report_files,
        report_inputs,
    )

    asked = None
    if run is None:
        asked = load_config(configfile)
        run = Path("results") / asked.name
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run} is no finished run, it has no config.yaml; run the pipeline first or check the path")
    check_inputs(run, ["config.yaml"])
    config = load_config(run / "config.yaml")
    if asked is not None and (others := differing_sections(asked, config)):
        named = ", ".join(others)
        print(
            f"note: {configfile} has changed since that run ({named}); the report is of what was run", file=sys.stderr
        )
    if is_imported(run):
        from attnscale.report.checkpoint import build_checkpoint_report as build

        names = imported_files(run, config)
        outputs = [name for name in names if name.startswith("report/")]
        inputs = [*(name for name in names if name not in outputs), "environment.json"]
    else:
        from attnscale.report.build import build_report as build

        inputs, outputs = report_inputs(config), report_files(config)
    own = output in (None, run / "report")
    check_inputs(run, inputs)
    with checked([], [run / name for name in outputs] if own else []):
        build(run, output or run / "report")
    if own:
        refresh_manifest(run, "report")
        print(f"written: {run / 'report' / 'index.html'}")


@app.command()
def pdf(
    page: Annotated[Path, typer.Argument(help="index.html of a report.")],
    output: Annotated[Path, typer.Option(help="PDF file to write.")],
) -> None:
    """Print a report with an installed Chromium or Chrome."""
    from attnscale.report.pdf import write_pdf

    write_pdf(page, output)


@app.command()
def manifest(run: Annotated[Path, typer.Argument(help="Folder of a finished run, results/NAME.")]) -> None:
    """Write the hashes of all files that two runs must share."""
    from attnscale.manifest import deterministic_files, other_files, write_manifest

    check_checksums([run / "config.yaml"])
    config = load_config(run / "config.yaml")
    # Or the hash of a damaged file would stand there as the right one.
    check_checksums(run / name for name in (*deterministic_files(config), *other_files(config)))
    write_manifest(run, deterministic_files(config))


@app.command()
def verify(run: Annotated[Path, typer.Argument(help="Folder of a finished run, results/NAME.")]) -> None:
    """Compare a run with its manifest.sha256; names every missing or changed file."""
    from attnscale.manifest import check_complete
    from attnscale.manifest import verify as check

    count = check(run)
    check_complete(run)
    print(f"{count} files agree with {run / 'manifest.sha256'}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run, results/NAME.")],
    text: Annotated[str, typer.Argument(help="Text with [MASK] wherever a token is to be predicted.")],
    arm: Annotated[str | None, typer.Option(help="One arm; default: all.")] = None,
    seed: Annotated[int | None, typer.Option(help="One seed; default: the first of each arm.")] = None,
    top: Annotated[int, typer.Option(help="How many tokens to show.", min=1)] = 5,
) -> None:
    """Show the likeliest tokens at every [MASK] of a text, by every arm of a run."""
    from attnscale.predict import predict as run_prediction

    print(run_prediction(run, text, arm=arm, seed=seed, top=top), end="")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run, results/NAME.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must not exist yet.")],
    arm: Annotated[str, typer.Option(help="Which arm.")],
    seed: Annotated[int | None, typer.Option(help="Which seed; default: the first of the arm.")] = None,
    to: Annotated[Form, typer.Option(help="Form of the folder; hf: Hugging Face transformers.")] = Form.hf,
    length: Annotated[
        int | None, typer.Option(help="Fold a scale that changes with n in at this n; default: it follows n.")
    ] = None,
) -> None:
    """Write a finished model as a folder that transformers loads."""
    from attnscale.export import export as run_export

    assert to is Form.hf  # the only one so far
    print(run_export(run, folder, arm=arm, seed=seed, length=length))


@app.command("import")
def import_(
    form: Annotated[Form, typer.Argument(help="Form of the checkpoint; hf: Hugging Face transformers.")],
    folder: Annotated[Path, typer.Argument(help="Folder of a RoFormerForMaskedLM: config.json, weights, tokenizer.")],
    configfile: Configfile,
    lock: Annotated[Path, typer.Option(help="The lock file the environment was made from.")] = Path("envs/run.lock"),
) -> None:
    """Evaluate a finished RoFormer from elsewhere, as it is and with what changes at test time; trains nothing."""
    from attnscale.checkpoint.build import import_checkpoint

    assert form is Form.hf  # the only one so far
    run = import_checkpoint(folder, configfile, lock=lock)
    print(f"written: {run / 'report' / 'index.html'}")


@app.command()
def variants(
    module: Annotated[list[Path], typer.Option(help="A Python file of your own with more variants.")] = [],  # noqa: B006
) -> None:
    """Show all registered attentions with formula, source and parameters."""
    from rich.console import Console
    from rich.table import Table

    from attnscale.attention import load_module, registered
    from attnscale.attention.base import describe

    for path in module:
        load_module(str(path))
    table = Table("name", "factor on q·k", "parameters", "source", title="d: head size, n: real keys of a row")
    for variant in registered().values():
        name, formula, source, parameters = describe(variant)
        table.add_row(name, formula, parameters, source)
    # A table is only as wide as what it holds; in a file every variant has a line of its own.
    Console(width=None if sys.stdout.isatty() else 1000).print(table)


@app.command()
def config(
    configfile: Configfile = Path("config/default.yaml"),
    output: Annotated[Path | None, typer.Option(help="File to write; default: the terminal.")] = None,
) -> None:
    """Check a configuration and show it with every default spelled out."""
    text = resolved_yaml(load_config(configfile))
    _refuse_to_overwrite(configfile, output)
    if output is None:
        print(text, end="")
        return
    from attnscale.files import write_text

    write_text(output, text)


@app.command()
def plan(
    configfile: Configfile = Path("config/default.yaml"),
    times: Annotated[
        Path, typer.Option(help="Benchmarks folder of a finished run, from which times are estimated.")
    ] = Path("results/smoke/benchmarks"),
) -> None:
    """Show what a run will cost before it starts: jobs, longest chain, core-hours, time on any number of machines."""
    from attnscale.plan import describe, make_plan

    config = load_config(configfile)
    for line in describe(config, *make_plan(config, times)):
        print(line)


@app.command()
def resolve(settings: Settings, output: Annotated[Path, typer.Option(help="config.yaml to write.")]) -> None:
    """Write the resolved configuration of a run."""
    from attnscale.files import write_text

    with checked([], [output]):
        write_text(output, resolved_yaml(_settings(Config, settings)))


@app.command()
def partial(
    configfile: Configfile,
    output: Annotated[Path, typer.Option(help="Configuration file to write.")],
) -> None:
    """Write the configuration of what is trained so far, to evaluate and report a run that still goes on."""
    from attnscale.files import write_text
    from attnscale.partial import finished_part

    whole = load_config(configfile)
    _refuse_to_overwrite(configfile, output)
    part = finished_part(whole, Path("results") / whole.name)
    write_text(output, resolved_yaml(part))
    trained, wanted = len(part.runs(trained=True)), len(whole.runs(trained=True))
    formal = "".join(
        f", {len(part.formal[task].arms) if task in part.formal else 0} of {len(section.arms)} arms of {task}"
        for task, section in whole.formal.items()
    )
    print(f"written: {output}, with {trained} of {wanted} trainings{formal}")


@app.command()
def schema(output: Annotated[Path, typer.Option(help="JSON schema to write.")]) -> None:
    """Write the JSON schema of configuration files, for editors."""
    from attnscale.docs import json_schema
    from attnscale.files import write_json

    write_json(output, json_schema())


@app.command()
def docs(output: Annotated[Path, typer.Option(help="Markdown page to write.")]) -> None:
    """Write the page that explains every key of a configuration."""
    from attnscale.docs import configuration_page
    from attnscale.files import write_text

    write_text(output, configuration_page())


@app.command()
def clean(configfile: Configfile = Path("config/default.yaml")) -> None:
    """Remove everything that a configuration's run left; says what it removes."""
    run = Path("results") / load_config(configfile).name
    if run.is_symlink() or run.is_file():
        raise UserError(f"{run} is not the folder that a run makes but a link or file; remove it yourself")
    if not run.is_dir():
        print(f"nothing to remove: {run} does not exist")
        return
    files = [path for path in run.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"removing {run}: {len(files)} files, {size:.1f} MB; downloads in the cache stay")
    shutil.rmtree(run)


@app.command()
def version() -> None:
    """Show the version."""
    print(__version__)


def _refuse_to_overwrite(configfile: Path, output: Path | None) -> None:
    if output is None:
        return
    if output.exists() and output.samefile(configfile):
        raise UserError(f"--output {output} is the configuration itself, which would be lost; give another file")
    if output.resolve().is_relative_to(Path("results").resolve()):
        raise UserError(f"--output {output} lies in results, which holds what runs have written; give another file")


def main() -> None:
    """Run the command line; a problem the user can mend ends in one sentence and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that knows no · or ñ gets a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        app()
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        _fail(sentence_for_os_error(error))
    except _Stopped as stopped:
        number = signal.Signals(stopped.args[0])
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        _fail(f"stopped by {name}; run the same command again", code=128 + number)


def _stop(number: int, _: object) -> None:
    """End the command so that what it has half made is removed."""
    raise _Stopped(number)


def _fail(sentence: str, *, code: int = 1) -> None:
    try:
        print(f"error: {sentence}", file=sys.stderr, flush=True)
    except OSError:  # the log lies on the disk that is full
        print(f"error: {sentence}", flush=True)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
