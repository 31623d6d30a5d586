"""The command line: what it shows, and that every mishap ends in one sentence and exit code 1."""

import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attnscale import __version__, cli, files
from attnscale.attention import registered
from attnscale.config import load_config
from attnscale.manifest import write_manifest
from tests.unit.conftest import train_settings
from tests.unit.test_partial import finish

ROOT = Path(__file__).parents[2]
STAGES = [
    "environment", "corpus", "tokens", "evaluation-set", "train", "evaluate", "accuracy", "attention-statistics",
    "entropy", "differences", "claims", "theory", "report",
]  # fmt: skip
OTHERS = ["manifest", "verify", "variants", "config", "resolve", "schema", "docs", "clean", "version"]
GOOD = "name: mine\narms: {o: {attention: attention_o}}\n"


@pytest.fixture
def attnscale(monkeypatch, capsys):
    """Run the command line inside this process: exit code, standard output, standard error."""
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["attnscale", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out, captured.err

    yield run
    for number, handler in signals.items():
        signal.signal(number, handler)


def assert_one_sentence(code: int, error: str, *words: str) -> None:
    assert code == 1
    assert error.startswith("error: "), error
    assert error.endswith("\n"), error
    assert len(error.splitlines()) == 1, error
    assert "Traceback" not in error
    for word in words:
        assert word in error, error


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_installed_command_ends_a_bad_configuration_in_one_line(tmp_path):
    (tmp_path / "bad.yaml").write_text(GOOD + "sead: 1\n")
    command = [sys.executable, "-m", "attnscale.cli", "config", "--configfile", "bad.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: bad.yaml: unknown key sead; did you mean seeds?\n"


def test_help_needs_no_torch():
    code = "import sys, attnscale.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_stage_and_every_helper_has_a_subcommand_with_words(attnscale):
    names = {command.name or command.callback.__name__.replace("_", "-") for command in cli.app.registered_commands}
    assert set(STAGES) | set(OTHERS) <= names
    code, out, _ = attnscale("--help")
    assert code == 0
    for command in cli.app.registered_commands:
        assert command.callback.__doc__, command.callback
        assert (command.name or command.callback.__name__.replace("_", "-")) in out


def test_version_is_that_of_the_package(attnscale):
    assert attnscale("version") == (0, f"{__version__}\n", "")


def test_variants_shows_every_registered_attention_with_formula_source_and_parameters(attnscale):
    code, out, err = attnscale("variants")
    assert (code, err) == (0, "")
    for name, variant in registered().items():
        (line,) = [line for line in out.splitlines() if f" {name} " in line]
        assert variant.formula in line
        assert variant.source in line
    assert "base=512" in out
    assert "kappa=1.0" in out
    assert max(map(len, out.splitlines())) < 240


def test_variants_shows_those_of_a_users_file_too(attnscale, tmp_path, monkeypatch):
    from attnscale import attention

    monkeypatch.setattr(attention, "_REGISTRY", dict(attention._REGISTRY))
    path = tmp_path / "mine.py"
    path.write_text(
        "import dataclasses\n"
        "from attnscale.attention import Attention, register\n"
        "@register('my_own')\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Mine(Attention):\n"
        "    formula = '42'\n"
        "    source = 'nowhere'\n"
    )
    code, out, _ = attnscale("variants", "--module", path)
    assert code == 0
    assert "my_own" in out
    assert "42" in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["cannot", "mine.py"]),
        ("import nonsense_that_is_not_there\n", ["mine.py", "does not import", "nonsense_that_is_not_there"]),
        ("def broken(:\n", ["mine.py", "does not import", "SyntaxError"]),
    ],
)
def test_a_users_file_that_does_not_import_gets_one_sentence(attnscale, tmp_path, text, words):
    path = tmp_path / "mine.py"
    if text is None:
        words = ["mine.py is no Python file; give the path of a .py file"]
    else:
        path.write_text(text)
    code, _, err = attnscale("variants", "--module", path)
    assert_one_sentence(code, err, *words)


# Configuration


def test_config_shows_every_default(attnscale, tmp_path):
    (tmp_path / "mine.yaml").write_text(GOOD)
    code, out, err = attnscale("config", "--configfile", tmp_path / "mine.yaml")
    assert (code, err) == (0, "")
    for key in ("seeds:", "learning_rate: 0.003", "width: 256", "lengths: [64, 128", "device: auto"):
        assert key in out
    code, shown, _ = attnscale("config", "--configfile", tmp_path / "mine.yaml", "--output", tmp_path / "out.yaml")
    assert (code, shown) == (0, "")
    assert (tmp_path / "out.yaml").read_text(encoding="utf-8") == out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sead: 1\n", ["unknown key sead", "seeds"]),
        ("model: {heads: 3}\n", ["model: width 256", "3 heads"]),
        ("model: {preset: [a]}\n", ["model.preset"]),
        ("name: twice\n", ["line 3", "the key name stands twice"]),
        ("seeds: [\n", ["no valid YAML"]),
        ("seeds: 2026-13-45\n", ["line 3"]),
    ],
)
def test_a_bad_configuration_ends_in_one_sentence(attnscale, tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD + text)
    code, out, err = attnscale("config", "--configfile", path)
    assert out == ""
    assert_one_sentence(code, err, str(path), *words)


def test_a_configuration_that_is_missing_a_folder_or_no_text_ends_in_one_sentence(attnscale, tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xff")
    for path, word in [
        (tmp_path / "nowhere.yaml", "does not exist"),
        (tmp_path, "is a folder"),
        (tmp_path / "bytes.yaml", "is not UTF-8"),
        (tmp_path / "bytes.yaml" / "below.yaml", "is a file, not a folder"),
    ]:
        code, _, err = attnscale("config", "--configfile", path)
        assert_one_sentence(code, err, str(path), word)


SETTINGS = [
    ("", ["no JSON"]),
    ("{", ["no JSON"]),
    ("[]", ["map of keys and values"]),
    ("{}", ["corpus is missing"]),
    ('{"corpus": {}, "tokens": {}}', ["unknown key tokens"]),
    ('{"corpus": {"min_characters": 0}}', ["corpus.min_characters must be at least 1, not 0"]),
    ('{"corpus": {"max_documents": "all"}}', ["corpus.max_documents must be a whole number, not 'all'"]),
]


@pytest.mark.parametrize(("settings", "words"), SETTINGS)
def test_bad_settings_of_a_stage_end_in_one_sentence(attnscale, tmp_path, settings, words):
    code, _, err = attnscale("corpus", "--settings", settings, "--output", tmp_path / "corpus")
    assert_one_sentence(code, err, "--settings do not fit this stage", "run it through snakemake", *words)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["tokens", "--corpus", "c", "--output", "o"],
        ["evaluation-set", "--tokens", "t"],
        ["train", "--tokens", "t", "--environment", "e", "--output", "o"],
        ["evaluate", "--tokens", "t", "--weights", "w", "--environment", "e", "--output", "o"],
        ["resolve", "--output", "o"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_stage_refuses_settings_of_another_one(attnscale, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    code, _, err = attnscale(*arguments, "--settings", '{"corpus": {}, "zzz": 1}')
    assert_one_sentence(code, err, "--settings do not fit this stage")
    assert names_in(tmp_path) == []


def test_the_trunk_of_a_branch_reaches_the_training(attnscale, tokens_dir, environment, tmp_path):
    settings = train_settings(arm="late", branch_at=0.5)
    arguments = ["--tokens", tokens_dir, "--environment", environment, "--output", tmp_path / "run"]
    train = ["train", "--settings", settings.canonical(), *arguments]
    code, _, err = attnscale(*train)
    assert_one_sentence(code, err, "late seed 0 is a branch and needs --trunk")
    code, _, err = attnscale(*train, "--trunk", tmp_path / "nowhere")
    assert_one_sentence(code, err, f"{tmp_path / 'nowhere'} has no snapshot of step 6", "train the arm")
    assert names_in(tmp_path / "run") == []


def test_accuracy_keeps_steps_apart_only_if_asked(attnscale, tmp_path):
    for step in (3, 6):
        (tmp_path / f"{step}.csv").write_text(f"arm,seed,step,length,block,correct,total\no,0,{step},16,0,{step},10\n")
    inputs = [tmp_path / "3.csv", tmp_path / "6.csv"]
    assert attnscale("accuracy", *inputs, "--output", tmp_path / "table.csv", "--by-step")[0] == 0
    assert (tmp_path / "table.csv").read_text().splitlines()[:2] == [
        "arm,seed,step,length,correct,total,accuracy",
        "o,0,3,16,3,10,0.29999999999999999",
    ]
    assert attnscale("accuracy", tmp_path / "6.csv", "--output", tmp_path / "table.csv")[0] == 0
    assert (tmp_path / "table.csv").read_text().splitlines() == [
        "arm,seed,length,correct,total,accuracy",
        "o,0,16,6,10,0.59999999999999998",
    ]


def test_what_the_schema_and_docs_commands_write_is_what_is_committed(attnscale, tmp_path):
    assert attnscale("schema", "--output", tmp_path / "schema.json")[0] == 0
    assert attnscale("docs", "--output", tmp_path / "configuration.md")[0] == 0
    assert (tmp_path / "schema.json").read_bytes() == (ROOT / "config" / "schema.json").read_bytes()
    assert (tmp_path / "configuration.md").read_bytes() == (ROOT / "docs" / "configuration.md").read_bytes()


# A finished run


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "results" / "mine"
    (folder / "report").mkdir(parents=True)
    (folder / "accuracy.csv").write_text("arm,seed\n")
    (folder / "report" / "index.html").write_bytes(bytes(range(256)))
    write_manifest(folder, ["accuracy.csv", "report/index.html"])
    return folder


@pytest.mark.parametrize("command", ["config", "partial"])
@pytest.mark.parametrize("kind", ["itself", "symlink", "hard link", "other spelling"])
def test_no_command_overwrites_the_configuration_that_it_reads(
    attnscale, tmp_path, monkeypatch, configfile, command, kind
):
    monkeypatch.chdir(tmp_path)
    before, output = configfile.read_bytes(), tmp_path / "other.yaml"
    if kind == "itself":
        output = configfile
    elif kind == "symlink":
        output.symlink_to(configfile)
    elif kind == "hard link":
        os.link(configfile, output)
    else:
        output = configfile.parent / "." / ".." / configfile.parent.name / configfile.name
    config = load_config(configfile)
    finish(tmp_path / "results" / config.name, "o 0", config=config)
    code, _, err = attnscale(command, "--configfile", configfile, "--output", output)
    assert_one_sentence(code, err, f"--output {output} is the configuration itself", "give another file")
    assert configfile.read_bytes() == before
    code, _, _ = attnscale(command, "--configfile", configfile, "--output", tmp_path / "third.yaml")
    assert code == 0
    record = Path("results") / config.name / "config.yaml"
    code, _, err = attnscale(command, "--configfile", configfile, "--output", record)
    assert_one_sentence(code, err, f"--output {record} lies in results", "give another file")
    assert not record.exists()
    assert load_config(tmp_path / "third.yaml").runs() == load_config(configfile).runs()


def test_a_configuration_in_a_pipe_is_refused_and_not_waited_for(attnscale, tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    code, _, err = attnscale("config", "--configfile", tmp_path / "pipe.yaml")
    assert_one_sentence(code, err, "pipe.yaml is a pipe or device; give a regular file")


def test_verify_does_not_take_a_folder_without_a_configuration_for_a_whole_run(attnscale, run_dir):
    code, out, err = attnscale("verify", run_dir)
    assert out == ""
    assert_one_sentence(code, err, f"{run_dir} has no config.yaml", "finish the run")


def test_verify_finds_a_flipped_byte_and_a_missing_file_and_says_which(attnscale, run_dir):
    page = run_dir / "report" / "index.html"
    data = bytearray(page.read_bytes())
    data[100] ^= 0xFF
    page.write_bytes(data)
    code, out, err = attnscale("verify", run_dir)
    assert out == ""
    assert_one_sentence(code, err, "1 of 2 files", "changed: report/index.html")
    assert "accuracy.csv" not in err
    (run_dir / "accuracy.csv").unlink()
    code, _, err = attnscale("verify", run_dir)
    assert_one_sentence(code, err, "2 of 2 files", "missing: accuracy.csv", "changed: report/index.html")


def test_verify_of_a_folder_without_manifest_ends_in_one_sentence(attnscale, tmp_path):
    code, _, err = attnscale("verify", tmp_path)
    assert_one_sentence(code, err, "manifest.sha256 is missing")


def test_manifest_of_an_unfinished_run_names_what_is_missing(attnscale, tmp_path):
    run = tmp_path / "results" / "mine"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(GOOD)
    code, _, err = attnscale("manifest", run)
    assert_one_sentence(code, err, "accuracy.csv is missing", "finish the run")
    assert names_in(run) == ["config.yaml"]


def test_clean_says_what_it_removes_and_removes_no_more(attnscale, run_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(GOOD)
    other = tmp_path / "results" / "other"
    shutil.copytree(run_dir, other)
    code, out, err = attnscale("clean", "--configfile", "mine.yaml")
    assert (code, err) == (0, "")
    assert out == "removing results/mine: 3 files, 0.0 MB; downloads in the cache stay\n"
    assert names_in(tmp_path / "results") == ["other"]
    assert names_in(other) == ["accuracy.csv", "manifest.sha256", "report"]
    code, out, _ = attnscale("clean", "--configfile", "mine.yaml")
    assert (code, out) == (0, "nothing to remove: results/mine does not exist\n")


def test_clean_with_a_bad_configuration_removes_nothing(attnscale, run_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(GOOD.replace("mine", "..") + "seeds: [0]\n")
    code, _, err = attnscale("clean", "--configfile", "mine.yaml")
    assert_one_sentence(code, err, "name must be")
    assert names_in(run_dir) == ["accuracy.csv", "manifest.sha256", "report"]


# A file system that refuses. Root may write everywhere, so permissions are tried in ways that bind root too.


@pytest.fixture
def configfile(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    return path


def test_an_output_below_a_regular_file_ends_in_one_sentence(attnscale, configfile):
    output = configfile / "deep" / "out.yaml"
    code, _, err = attnscale("config", "--configfile", configfile, "--output", output)
    assert_one_sentence(code, err, "mine.yaml", "is a file, not a folder", "check the path")
    assert configfile.read_text() == GOOD


def test_an_output_that_is_a_folder_ends_in_one_sentence(attnscale, configfile, tmp_path):
    (tmp_path / "folder").mkdir()
    code, _, err = attnscale("config", "--configfile", configfile, "--output", tmp_path / "folder")
    assert_one_sentence(code, err, str(tmp_path / "folder"))
    assert names_in(tmp_path) == ["folder", "mine.yaml"]
    assert names_in(tmp_path / "folder") == []


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc here")
def test_an_output_in_a_folder_where_nobody_may_write_ends_in_one_sentence(attnscale, configfile):
    code, _, err = attnscale("config", "--configfile", configfile, "--output", "/proc/self/out.yaml")
    assert_one_sentence(code, err, "cannot use /proc/self/")


REFUSALS = [
    ("replace", errno.EACCES, "no permission; check the owner and mode"),
    ("replace", errno.EROFS, "read-only; choose a folder that can be written"),
    ("replace", errno.ENOSPC, "the disk is full; free some space"),
    ("fsync", errno.ENOSPC, "the disk is full; free some space"),
    ("fsync", errno.EDQUOT, "quota is used up; free some space"),
    ("fsync", errno.EIO, "input/output error"),
]


@pytest.mark.parametrize(("step", "number", "words"), REFUSALS)
def test_a_refused_write_ends_in_one_sentence_and_keeps_the_old_file(
    attnscale, configfile, tmp_path, monkeypatch, step, number, words
):
    output = tmp_path / "out.yaml"
    output.write_text("old")

    def refuse(*arguments, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, step, refuse)
    code, _, err = attnscale("config", "--configfile", configfile, "--output", output)
    assert_one_sentence(code, err, words)
    assert output.read_text() == "old"
    assert names_in(tmp_path) == ["mine.yaml", "out.yaml"]


def test_a_disk_that_fills_up_half_way_ends_in_one_sentence_and_keeps_the_old_file(
    attnscale, configfile, tmp_path, monkeypatch
):
    output = tmp_path / "out.yaml"
    output.write_text("old")
    real_open = Path.open

    def open_on_a_full_disk(path, *arguments, **options):
        stream = real_open(path, *arguments, **options)
        if path.suffix == ".part" and "w" in str(arguments):
            write = stream.write

            def write_some(text):
                write(text[:10])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            stream.write = write_some
        return stream

    monkeypatch.setattr(files.Path, "open", open_on_a_full_disk)
    code, _, err = attnscale("config", "--configfile", configfile, "--output", output)
    assert_one_sentence(code, err, "the disk is full; free some space and run the same command again")
    assert output.read_text() == "old"
    assert names_in(tmp_path) == ["mine.yaml", "out.yaml"]


def namespace() -> list[str]:
    """A command prefix that runs with mounts of its own, which vanish with it; empty where that is not allowed."""
    if shutil.which("unshare") is None:
        return []
    for prefix in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        trial = [*prefix, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
        if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
            return prefix
    return []


@pytest.mark.parametrize(
    ("obstacle", "words"),
    [
        ("dd if=/dev/zero of={disk}/ballast bs=4k 2>/dev/null", "the disk is full; free some space"),
        ("touch {disk}/ballast; mount -o remount,ro {disk}", "the file system is read-only; choose a folder"),
    ],
    ids=["full", "read-only"],
)
def test_a_real_full_or_read_only_disk_ends_in_one_sentence_and_keeps_the_old_file(
    tmp_path, configfile, obstacle, words
):
    prefix = namespace()
    if not prefix:
        pytest.skip("no mounts of our own allowed here; the tests above play the file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    quoted = shlex.quote(str(disk))
    script = f"""
        mount -t tmpfs -o size=64k tmpfs {quoted} && echo old > {quoted}/out.yaml || exit 99
        {obstacle.format(disk=quoted)}
        {shlex.join([sys.executable, "-m", "attnscale.cli", "config"])} \\
            --configfile {shlex.quote(str(configfile))} --output {quoted}/out.yaml
        code=$?
        cat {quoted}/out.yaml
        ls -A {quoted}
        exit $code
    """
    done = subprocess.run([*prefix, "sh", "-c", script], capture_output=True, text=True, check=False)
    assert_one_sentence(done.returncode, done.stderr, words)
    assert done.stdout.split() == ["old", "ballast", "out.yaml"]
    assert names_in(disk) == []  # the mount was the command's own


def test_a_failing_command_never_shows_a_traceback_of_ours(attnscale, tmp_path):
    for arguments in (
        ["accuracy", tmp_path / "nowhere.csv", "--output", tmp_path / "accuracy.csv"],
        ["report", tmp_path / "nowhere"],
        ["manifest", tmp_path / "nowhere"],
    ):
        code, _, err = attnscale(*arguments)
        assert_one_sentence(code, err, "nowhere")
    assert names_in(tmp_path) == []
