"""Hashes of every file that must be the same in two runs."""

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from attnscale.checksums import check_checksums, checksum_file
from attnscale.config import Config, TrainSettings, load_config
from attnscale.counts import step_at
from attnscale.errors import UserError
from attnscale.files import sha256_of, write_text
from attnscale.snapshots import snapshot_files, snapshot_steps

NAME = "manifest.sha256"
TABLES = ("accuracy",)


def deterministic_files(config: Config) -> list[str]:
    """Files of a run that the manifest covers, relative to its folder, sorted.

    Wall-clock numbers live in history.csv, run.json, environment.json and report/durations.*, which are
    left out.
    """
    trained = [f"runs/{arm}/seed{seed}" for arm, seed in config.runs(trained=True)]
    files = [
        "config.yaml",
        *(f"corpus/{name}" for name in CORPUS_FILES),
        *(f"tokens/{name}" for name in TOKENS_FILES + EVALUATION_SET_FILES),
        *(f"{run}/model.safetensors" for run in trained),
        *snapshots(config),
        *(evaluation_file(arm, seed) for arm, seed in config.runs()),
        *(evaluation_file(*run) for run in config.snapshot_runs()),
        "accuracy.csv",
        *attention_statistics_files(config),
        *(["entropy.csv"] if config.attention_statistics.blocks else []),
        "differences.csv",
        "claims.csv",
        *by_source_files(config),
        "theory.csv",
        *(["snapshots.csv"] if config.snapshot_runs() else []),
        *formal_files(config),
        "report/index.html",
        "report/report.md",
        *(f"report/figures/{name}.{kind}" for name in figures(config) for kind in ("png", "svg")),
        *(f"report/tables/{name}.csv" for name in TABLES),
    ]
    return sorted(files)


def figures(config: Config) -> tuple[str, ...]:
    """Names of the report's figures, exactly those that the configuration implies data for."""
    # Late: it needs the registry of attentions, which the rest of this module does not.
    from attnscale.report.arms import figure_names

    return figure_names(config)


def formal_files(config: Config) -> list[str]:
    """Results of the formal languages that are on, relative to the run's folder."""
    return [name for task in config.formal for name in (*formal_arm_files(config, task), *formal_tables(config, task))]


def formal_arm_files(config: Config, task: str) -> list[str]:
    """Tests of each arm on a formal language, relative to the run's folder; none if it is off."""
    sections = [section for name, section in config.formal.items() if name == task]
    return [formal_arm_file(task, arm) for section in sections for arm in section.arms]


def formal_arm_file(task: str, arm: str) -> str:
    """Tests of one arm on a formal language, relative to the run's folder."""
    return f"formal/{task}/{arm}.csv"


def formal_tables(config: Config, task: str) -> list[str]:
    """Tables of a formal language, relative to the run's folder: its trainings, its hand-built networks."""
    return [f"{task}.csv", f"exact_{task}.csv"] if task in config.formal else []


def by_source_files(config: Config) -> list[str]:
    """Results of each source of the text, relative to the run's folder; none if there is one source only."""
    several = len(config.source_names) > 1
    return list(BY_SOURCE_FILES) if several else []


def snapshots(config: Config) -> list[str]:
    """Weights and optimizer states that trainings keep on their way, relative to the run's folder."""
    return [
        str(file)
        for arm, seed in config.runs(trained=True)
        if config.snapshots_of(arm)
        for step in snapshot_steps(config.training)
        for file in snapshot_files(Path("runs", arm, f"seed{seed}"), step)
    ]


def evaluation_file(arm: str, seed: int, step: int | None = None) -> str:
    """The counts of one arm and seed, relative to the run's folder: at the end of the training or after a step."""
    return f"evaluations/{arm}/seed{seed}.csv" if step is None else f"evaluations/{arm}/seed{seed}/step{step}.csv"


def attention_statistics_files(config: Config) -> list[str]:
    """Attention statistics of all arms and seeds, in the order of the result table; none if they are off."""
    runs = config.runs() if config.attention_statistics.blocks else ()
    return [f"attention/{arm}/seed{seed}.csv" for arm, seed in runs]


def other_files(config: Config) -> list[str]:
    """Files of a run that hold wall-clock numbers or tell of the machine, relative to its folder, sorted."""
    records = [
        f"runs/{arm}/seed{seed}/{name}"
        for arm, seed in config.runs(trained=True)
        for name in ("history.csv", "run.json")
    ]
    return sorted(["environment.json", "report/durations.html", "report/durations.md", *records])


def is_imported(run: Path) -> bool:
    """Whether a run holds a checkpoint from elsewhere and has trained nothing."""
    return (run / IMPORTED).is_file()


def report_files(config: Config) -> list[str]:
    """Files of the report that the manifest covers, relative to the run's folder."""
    return [name for name in deterministic_files(config) if name.startswith("report/")]


def report_inputs(config: Config) -> list[str]:
    """Tables and records that the numbers of a report come from, relative to the run's folder."""
    names = [*deterministic_files(config), *other_files(config)]
    return [name for name in names if name.endswith((".csv", ".json", ".yaml")) and not name.startswith("report/")]


def refuse_imported(run: Path) -> None:
    """Keep the pipeline out of a folder that holds an imported checkpoint, whose files it would take for its own.

    Raises:
        UserError: it holds one.
    """
    if is_imported(run):
        raise UserError(f"{run} holds an imported checkpoint; give the configuration another name, or remove {run}")


def imported_figures(config: Config) -> list[str]:
    """Names of the figures in the report of an imported checkpoint: none of a training, which it has not had here."""
    return [name for name in figures(config) if name in ("accuracy_by_length", "repairs", "entropy")]


def imported_files(run: Path, config: Config) -> list[str]:
    """Files of an imported checkpoint that its manifest covers, relative to its folder, sorted."""
    # Older checkpoints have a vocabulary in lines, which is not kept.
    tokenizer = ["tokenizer.json"] if (run / "tokens" / "tokenizer.json").is_file() else []
    files = [
        IMPORTED,
        "config.yaml",
        *(f"corpus/{name}" for name in CORPUS_FILES),
        *(f"tokens/{name}" for name in (*IMPORTED_TOKENS_FILES, *tokenizer, *EVALUATION_SET_FILES)),
        *(f"runs/{arm}/seed{seed}/model.safetensors" for arm, seed in config.runs(trained=True)),
        *(evaluation_file(arm, seed) for arm, seed in config.runs()),
        "accuracy.csv",
        *attention_statistics_files(config),
        *(["entropy.csv"] if config.attention_statistics.blocks else []),
        "differences.csv",
        "report/index.html",
        "report/report.md",
        *(f"report/figures/{name}.{kind}" for name in imported_figures(config) for kind in ("png", "svg")),
    ]
    return sorted(files)


def tokens_files(folder: Path) -> list[Path]:
    """Tokens and evaluation set in a folder."""
    return [folder / name for name in (*TOKENS_FILES, *EVALUATION_SET_FILES)]


def training_inputs(settings: TrainSettings, tokens: Path, environment: Path, trunk: Path | None) -> list[Path]:
    """Files that a training reads."""
    share = settings.branch_at
    start = [] if trunk is None or share is None else snapshot_files(trunk, step_at(settings.training, share))
    return [*(tokens / name for name in TOKENS_FILES), environment, *start]


def training_outputs(settings: TrainSettings, folder: Path) -> list[Path]:
    """Files that a training leaves in its folder."""
    kept = [file for step in snapshot_steps(settings.training) for file in snapshot_files(folder, step)]
    return [*(folder / name for name in ("model.safetensors", "history.csv", "run.json")), *kept]


IMPORTED = "checkpoint.json"
"""What an imported checkpoint is; no other run has it."""
BY_SOURCE_FILES = ("accuracy_by_source.csv", "differences_by_source.csv")
CORPUS_FILES = ("manifest.json", "train.jsonl", "held_out.jsonl")
TOKENS_FILES = (
    "tokenizer.json",
    "train_ids.npy",
    "train_offsets.npy",
    "held_out_ids.npy",
    "held_out_offsets.npy",
    "manifest.json",
)
IMPORTED_TOKENS_FILES = ("held_out_ids.npy", "held_out_offsets.npy", "checkpoint_ids.npy", "manifest.json")
EVALUATION_SET_FILES = ("evaluation_ids.npy", "evaluation_inputs.npy", "evaluation_masked.npy", "evaluation.json")


def write_manifest(run_dir: Path, files: Sequence[str]) -> None:
    """Write `manifest.sha256` in the format of `sha256sum`.

    Args:
        run_dir: folder of the run.
        files: paths relative to it.

    Raises:
        UserError: one of them is missing.
    """
    missing = [name for name in files if not (run_dir / name).is_file()]
    if missing:
        raise UserError(f"{run_dir / missing[0]} is missing; finish the run before its manifest is written")
    lines = [f"{sha256_of(run_dir / name)}  {name}\n" for name in sorted(files)]
    write_text(run_dir / NAME, "".join(lines))


def refresh_manifest(run_dir: Path, folder: str) -> None:
    """Bring the manifest's lines of one folder up to date and leave the others as they are.

    Args:
        run_dir: folder of the run; without a manifest nothing happens.
        folder: folder inside it whose files were written again, such as `report`.
    """
    path = run_dir / NAME
    if not path.is_file():
        return
    entries = (
        (sha256_of(run_dir / name) if name.startswith(f"{folder}/") and (run_dir / name).is_file() else digest, name)
        for digest, name in read_manifest(path)
    )
    write_text(path, "".join(f"{digest}  {name}\n" for digest, name in entries))


def check_inputs(run_dir: Path, names: Iterable[str]) -> None:
    """Refuse files of a run that are not those that were written; one that is missing passes.

    A file is compared with the checksum beside it, which is as new as the file while a run goes on; one whose checksum
    was lost, as by a copy without hidden files, with the manifest.

    Args:
        run_dir: folder of the run.
        names: files relative to it.

    Raises:
        UserError: one has another sha256.
    """
    names, path = list(names), run_dir / NAME
    check_checksums(run_dir / name for name in names)
    if not path.is_file():
        return
    digests = {name: digest for digest, name in read_manifest(path)}
    for name in names:
        file = run_dir / name
        alone = name in digests and file.is_file() and not checksum_file(file).exists()
        if alone and sha256_of(file) != digests[name]:
            raise UserError(
                f"{file} is not the file that {path} names, so one of them is damaged or older; put back the right "
                "file, or delete both and run the pipeline again"
            )


def verify(run_dir: Path) -> int:
    """Compare a run with its manifest.

    Args:
        run_dir: folder of the run, `results/NAME`.

    Returns:
        Number of files checked, all of them equal.

    Raises:
        UserError: files are missing or changed; all of them are named.
    """
    entries = read_manifest(run_dir / NAME)
    problems = []
    for digest, name in entries:
        if not (run_dir / name).is_file():
            problems.append(f"missing: {name}")
        elif sha256_of(run_dir / name) != digest:
            problems.append(f"changed: {name}")
    if problems:
        raise UserError(
            f"{len(problems)} of {len(entries)} files in {run_dir} differ from its manifest: " + "; ".join(problems)
        )
    return len(entries)


def check_complete(run_dir: Path) -> None:
    """Refuse a manifest that leaves out files of its run; every run's own `config.yaml` says which there must be.

    Args:
        run_dir: folder of the run, whose files agree with the manifest as far as it goes.

    Raises:
        UserError: files are left out.
    """
    path = run_dir / NAME
    if not (run_dir / "config.yaml").is_file():
        raise UserError(f"{run_dir} has no config.yaml, which tells whether {path} is whole; finish the run")
    config = load_config(run_dir / "config.yaml")
    wanted = imported_files(run_dir, config) if is_imported(run_dir) else deterministic_files(config)
    listed = {name for _, name in read_manifest(path)}
    if lacking := [name for name in wanted if name not in listed]:
        raise UserError(
            f"{path} leaves out {len(lacking)} of {len(wanted)} files that config.yaml beside it stands for, such as "
            f"{lacking[0]}; it was cut, or another version of attnscale wrote it: run the pipeline again to write it "
            "anew"
        )


def read_manifest(path: Path) -> list[tuple[str, str]]:
    """Sha256 and name of every file that a manifest lists.

    Args:
        path: the manifest.

    Raises:
        UserError: it is missing, damaged or empty, or names a file twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path} is missing; finish the run, or check the folder's name") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is damaged; run the pipeline again to write it anew") from None
    entries: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        digest, gap, name = line.partition("  ")
        inside = not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
        if len(digest) != 64 or not gap or not name or not inside or name in entries:
            raise UserError(f"line {number} of {path} is damaged; run the pipeline again to write it anew")
        entries[name] = digest
    if not entries:
        raise UserError(f"{path} is empty; run the pipeline again to write it anew")
    return [(digest, name) for name, digest in entries.items()]
