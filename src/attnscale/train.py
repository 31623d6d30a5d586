"""Training of one arm with one seed: one visible loop.

Data order, masks and initial weights are functions of (seed, step) and of nothing else, so all arms of a
seed see the same batches, and a resumed run is equal bit for bit to an uninterrupted one.

Tensor names end in their shape: B rows, N tokens of a row, S masked tokens of a batch, V vocabulary.
"""

import contextlib
import csv
import fcntl
import hashlib
import io
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional

from attnscale import counts, engine
from attnscale.attention import source_file
from attnscale.code_files import module_files
from attnscale.config import TrainSettings
from attnscale.environment import read_environment
from attnscale.errors import UserError
from attnscale.files import sha256_of, write_bytes, write_json, write_text
from attnscale.model import make_encoder
from attnscale.optimizers import make_optimizers, state_shapes
from attnscale.progress import Reporter, log
from attnscale.rng import Stream
from attnscale.snapshots import snapshot_files, snapshot_steps
from attnscale.tokens.batches import TrainingBatches
from attnscale.tokens.load import load_training_tokens, load_vocabulary

HISTORY_COLUMNS = ("step", "tokens", "loss", "accuracy", "grad_norm", "grad_norm_qk", "tokens_per_second")
CHECKPOINT = "resume.pt"


def train(
    settings: TrainSettings,
    tokens_dir: Path,
    environment: Path,
    output_dir: Path,
    *,
    trunk: Path | None = None,
    stop_with_parent: bool = False,
) -> None:
    """Train and write `model.safetensors`, `history.csv` and `run.json` to `output_dir`, and its snapshots.

    A snapshot is the weights, and beside them the state of the optimizers, after a share of the training; a branched
    arm goes on from one.

    While it runs, `output_dir` also holds a resume checkpoint and a lock. SIGTERM and SIGINT make it save
    a checkpoint and stop; the next call with equal settings, data, code and environment goes on from there.

    Args:
        settings: what to train.
        tokens_dir: folder of the tokens stage.
        environment: the environment record, which decides device and precision.
        output_dir: folder of this run.
        trunk: folder of the run whose snapshot a branched arm goes on from.
        stop_with_parent: stop as on SIGTERM when the process that started this one is gone, so that a
            killed workflow leaves nobody behind who writes into its folder.

    Raises:
        UserError: another process trains into the folder, the loss is not finite, the training was
            stopped, or an input is unusable.
        OSError: a file cannot be written.
    """
    with _only_one(output_dir):
        record = read_environment(environment)
        engine.prepare(settings.threads)
        batches = TrainingBatches(
            *load_training_tokens(tokens_dir),
            load_vocabulary(tokens_dir),
            settings.training,
            settings.seed,
            settings.training_lengths,
        )
        run = _Run(settings, record, load_vocabulary(tokens_dir).size)
        if (trunk is None) != (settings.branch_at is None):
            raise UserError(
                f"{run.title} is a branch and needs --trunk, the folder of the run that it goes on from"
                if trunk is None
                else f"{run.title} is no branch; leave out --trunk"
            )
        if trunk is not None:
            run.branch_from(trunk)
        run.fingerprint = _fingerprint(settings, tokens_dir, environment, trunk)
        run.resume_from(output_dir / CHECKPOINT)
        with _Interruption(stop_with_parent) as interruption:
            _loop(run, batches, output_dir, interruption)
        _write_results(run, output_dir)


class _Run:
    """Everything that changes while training: model, optimizers, step, history.

    Args:
        settings: what to train.
        record: `device`, `precision` and `compile` of the environment record.
        vocabulary_size: V.
    """

    def __init__(self, settings: TrainSettings, record: dict[str, Any], vocabulary_size: int) -> None:
        self.settings = settings
        self.device = torch.device(record["device"])
        self.precision = record["precision"]
        self.compile = record["compile"]
        self.model = make_encoder(settings.encoder, vocabulary_size)
        self.model.initialise(settings.seed)
        self.model.to(self.device).train()
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        self.optimizers = make_optimizers(self.model, settings.training, dtype)
        self.predict = engine.compiled(self._predict) if self.compile else self._predict
        self.step = self.first_step = 0
        self.fingerprint = ""
        self.history: list[tuple[int, int, float, float, float, float, float]] = []
        # Per step since the last row: loss, right predictions, targets, gradient norm, that of queries and keys.
        self.recent: list[tuple[float, float, float, float, float]] = []
        self.recent_seconds = 0.0
        self.seconds = 0.0
        self.resumed_from: list[int] = []
        self.started = _now()

    def _predict(self, inputs_BN: Tensor, selected_S: Tensor, targets_S: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss over the targets, and how many of them are right; one graph where it is compiled."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            logits_SV = self.model(inputs_BN, selected_S)
        loss = functional.cross_entropy(logits_SV.float(), targets_S)
        return loss, (logits_SV.detach().argmax(dim=1) == targets_S).sum()

    @property
    def title(self) -> str:
        return f"{self.settings.arm} seed {self.settings.seed}"

    def save_snapshot(self, folder: Path) -> None:
        """Write weights, and beside them the state of the optimizers, under names that the end of the training mends.

        Snakemake removes the outputs of a job that was stopped, and a resumed training would not pass here again.
        """
        states = {
            f"{number}/{key}/{name}": value
            for number, optimizer in enumerate(self.optimizers)
            for key, state in optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }
        weights, optimizers = snapshot_files(folder, self.step)
        write_bytes(_unfinished(weights), _packed(self.model.state_dict()))
        write_bytes(_unfinished(optimizers), _packed(states))

    def branch_from(self, trunk: Path) -> None:
        """Take over the weights and optimizers of a snapshot; what only this arm learns keeps its initial values.

        Args:
            trunk: folder of the run that is branched from.

        Raises:
            UserError: a file is missing, damaged or of another shape.
        """
        training, share = self.settings.training, self.settings.branch_at
        assert share is not None
        self.first_step = self.step = counts.step_at(training, share)
        weights, optimizers = snapshot_files(trunk, self.step)
        try:
            saved, states = _read_snapshot(weights), _read_snapshot(optimizers)
        except FileNotFoundError:
            raise UserError(
                f"{trunk} has no snapshot of step {self.step}; train the arm that is branched from"
            ) from None
        try:
            missing, unexpected = self.model.load_state_dict(saved, strict=False)
        except RuntimeError as error:
            raise _misfit(weights, str(error)) from None
        if misfits := [*unexpected, *(name for name in missing if ".learned." not in name)]:
            raise _misfit(weights, f"only one of the two models has {misfits[0]}")
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for number, optimizer in enumerate(self.optimizers):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            # The trunk numbered its parameters in the same order, without those that only the branch has.
            shared = [key for key, p in enumerate(parameters) if names[id(p)] in saved]
            state = optimizer.state_dict()
            for place, key in enumerate(shared):
                prefix, parameter = f"{number}/{place}/", parameters[key]
                found = {name: states.pop(name) for name in list(states) if name.startswith(prefix)}
                state["state"][key] = {name.removeprefix(prefix): value for name, value in found.items()}
                shapes = {name: value.shape for name, value in state["state"][key].items()}
                if shapes != state_shapes(optimizer, parameter):
                    name = names[id(parameter)]
                    raise _misfit(optimizers, f"the optimizer state of {name} is missing or misshapen")
            optimizer.load_state_dict(state)
        if states:
            raise _misfit(optimizers, f"no parameter has the optimizer state {min(states)}")

    def save_checkpoint(self, path: Path) -> None:
        """Write all that is needed to go on, in one step."""
        state = {
            "fingerprint": self.fingerprint,
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "history": self.history,
            "recent": self.recent,
            "recent_seconds": self.recent_seconds,
            "seconds": self.seconds,
            "resumed_from": self.resumed_from,
            "started": self.started,
        }
        # Through memory: torch reports a full disk as a RuntimeError without a file name.
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_bytes(path, buffer.getvalue())

    def _read_checkpoint(self, path: Path) -> tuple[dict[str, Any], str]:
        """What a checkpoint holds, and why it cannot be used, or an empty text."""
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:  # torch raises many kinds for a damaged file
            return {}, f"the resume checkpoint of {self.title} is damaged ({type(error).__name__})"
        if state.get("fingerprint") != self.fingerprint:
            return state, f"settings, data, code or environment of {self.title} changed"
        passed = [step for step in snapshot_steps(self.settings.training) if step <= state["step"]]
        if not all(_unfinished(file).exists() for step in passed for file in snapshot_files(path.parent, step)):
            return state, f"a snapshot of {self.title} is missing"
        return state, ""

    def resume_from(self, path: Path) -> None:
        """Go on from a checkpoint if there is one that fits; otherwise stay at the start and say why."""
        if not path.exists():
            return
        state, misfit = self._read_checkpoint(path)
        if misfit:
            log(f"{misfit}; starting from step {self.step}")
            # Snapshots that this training is going to write would not be those of the checkpoint.
            path.unlink()
            return
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step = state["step"]
        self.history = [tuple(row) for row in state["history"]]
        self.recent = [tuple(row) for row in state["recent"]]
        self.recent_seconds, self.seconds, self.started = state["recent_seconds"], state["seconds"], state["started"]
        self.resumed_from = [*state["resumed_from"], self.step]
        log(f"{self.title} goes on from step {self.step}")


def _loop(run: _Run, batches: TrainingBatches, output_dir: Path, interruption: "_Interruption") -> None:
    training, checkpoint = run.settings.training, output_dir / CHECKPOINT
    steps = counts.steps(training)
    snapshots = snapshot_steps(run.settings.training)
    drops = run.model.dropout.p > 0
    unread: list[Tensor] = []  # as _Run.recent, left on the device until somebody needs the numbers
    with Reporter(f"train {run.title}", steps, done=run.step) as reporter:
        clock = time.perf_counter()
        while run.step < steps:
            batch = batches.batch(run.step)
            inputs_BN = torch.from_numpy(batch.inputs_BN).to(run.device, non_blocking=True)
            selected_S = torch.from_numpy(batch.selected_S).to(run.device, non_blocking=True)
            targets_S = torch.from_numpy(batch.targets_S).to(run.device, non_blocking=True)
            if drops:
                # Dropout is the only user of torch's own generator; keyed by the step, it needs no saving.
                torch.manual_seed(int(Stream("dropout", run.settings.seed, run.step).words(1)[0] >> 1))

            loss, correct = run.predict(inputs_BN, selected_S, targets_S)
            loss.backward()  # type: ignore[no-untyped-call]
            norm_qk = run.model.grad_norm_qk()
            norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), training.clip_norm)
            for optimizer in run.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * counts.schedule(training, run.step)
                optimizer.step()
            run.model.zero_grad(set_to_none=True)

            targets = torch.full_like(correct, len(targets_S))
            unread.append(torch.stack([x.detach().double() for x in (loss, correct, targets, norm, norm_qk)]))
            run.step += 1
            if run.step in snapshots:
                run.save_snapshot(output_dir)

            stop = interruption.reason()
            row_due = run.step % training.log_every == 0 or run.step == steps
            checkpoint_due = run.step % training.checkpoint_every == 0 and run.step < steps
            if not (row_due or checkpoint_due or stop):
                continue
            _read(run, unread)
            now = time.perf_counter()
            run.recent_seconds += now - clock
            clock = now
            if row_due:
                _add_row(run)
                row = run.history[-1]
                note = f"loss {row[2]:.3f}, accuracy {row[3]:.1%}, {row[-1]:,.0f} tokens/s"
                reporter.update(run.step, note)
            if stop and run.step < steps:
                run.save_checkpoint(checkpoint)
                raise UserError(
                    f"training of {run.title} was stopped by {stop} at step {run.step} of {steps}; "
                    "run the same command again and it goes on from there"
                )
            if checkpoint_due:
                run.save_checkpoint(checkpoint)
                clock = time.perf_counter()


def _read(run: _Run, unread: list[Tensor]) -> None:
    """Fetch the figures of the last steps from the device and make sure that they are numbers."""
    for offset, (loss, correct, targets, norm, norm_qk) in enumerate(torch.stack(unread).tolist() if unread else []):
        if not (math.isfinite(loss) and math.isfinite(norm)):
            step = run.step - len(unread) + offset + 1
            what = "loss" if not math.isfinite(loss) else "gradient"
            raise UserError(
                f"the {what} of {run.title} is not finite at step {step}; lower training.learning_rate or raise "
                "training.warmup_fraction, or mend the attention if it is your own"
            )
        run.recent.append((loss, correct, targets, norm, norm_qk))
    unread.clear()


def _add_row(run: _Run) -> None:
    """Close a row of the history: means over the steps since the last one."""
    training, size = run.settings.training, len(run.recent)
    loss = math.fsum(row[0] for row in run.recent) / size
    accuracy = math.fsum(row[1] for row in run.recent) / math.fsum(row[2] for row in run.recent)
    norm, norm_qk = (math.fsum(row[column] for row in run.recent) / size for column in (3, 4))
    speed = size * counts.tokens_per_step(training) / run.recent_seconds
    tokens = run.step * counts.tokens_per_step(training)
    run.history.append((run.step, tokens, loss, accuracy, norm, norm_qk, round(speed, 1)))
    run.seconds += run.recent_seconds
    run.recent, run.recent_seconds = [], 0.0


def _write_results(run: _Run, output_dir: Path) -> None:
    write_bytes(output_dir / "model.safetensors", _packed(run.model.state_dict()))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(HISTORY_COLUMNS)
    writer.writerows(run.history)
    write_text(output_dir / "history.csv", stream.getvalue())
    settings, last = run.settings, run.history[-1]
    facts: dict[str, Any] = {
        "arm": settings.arm,
        "seed": settings.seed,
        "attention": settings.encoder.attention.model_dump(mode="json"),
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "first_step": run.first_step,
        "steps": run.step,
        "tokens": last[1],
        "final_loss": last[2],
        "final_accuracy": last[3],
        "seconds": round(run.seconds, 1),
        "tokens_per_second": round(
            (run.step - run.first_step) * counts.tokens_per_step(settings.training) / run.seconds, 1
        ),
        "device": str(run.device),
        "precision": run.precision,
        "compile": run.compile,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "git_commit": _git_commit(),
        "resumed_from_steps": run.resumed_from,
        "started": run.started,
        "finished": _now(),
    }
    write_json(output_dir / "run.json", facts)
    for step in snapshot_steps(run.settings.training):
        for path in snapshot_files(output_dir, step):
            os.replace(_unfinished(path), path)
    (output_dir / CHECKPOINT).unlink(missing_ok=True)


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    # No metadata: with two keys of it, safetensors writes its header in random order.
    return safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def _read_snapshot(path: Path) -> dict[str, Tensor]:
    """The tensors of one file of a snapshot.

    Raises:
        FileNotFoundError: there is none.
        UserError: the file is damaged, or holds numbers that are not finite.
    """
    try:
        tensors = safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise
    except (safetensors.SafetensorError, RuntimeError, ValueError, OSError) as error:
        raise _misfit(path, str(error)) from None
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise _misfit(path, f"{name} holds numbers that are not finite")
    return tensors


def _misfit(path: Path, reason: str) -> UserError:
    line = next(iter(reason.splitlines()), "unreadable").rstrip(":")
    return UserError(f"the snapshot {path} does not fit ({line}); delete it and run the pipeline again")


def _fingerprint(settings: TrainSettings, tokens_dir: Path, environment: Path, trunk: Path | None) -> str:
    """Hash of all that a resumed run must share with the run it continues."""
    attention = settings.encoder.attention
    code = [*module_files("attnscale.train"), source_file(attention.name, attention.module)]
    data = [tokens_dir / "train_ids.npy", tokens_dir / "train_offsets.npy", tokens_dir / "tokenizer.json"]
    start = [] if trunk is None else snapshot_files(trunk, counts.step_at(settings.training, settings.branch_at or 0.0))
    parts = [settings.canonical(), *(sha256_of(path) for path in [*code, *data, environment, *start])]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class _Interruption:
    """Asks the loop to stop: on SIGTERM, on SIGINT, or when the parent process is gone."""

    def __init__(self, stop_with_parent: bool) -> None:
        self._parent = os.getppid() if stop_with_parent else None
        self._signal: str | None = None

    def __enter__(self) -> "_Interruption":
        self._old = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: object) -> None:
        self._signal = signal.Signals(number).name

    def reason(self) -> str | None:
        """Why to stop, or None."""
        if self._signal is None and self._parent is not None and os.getppid() != self._parent:
            return "the end of the workflow that started it"
        return self._signal


@contextlib.contextmanager
def _only_one(output_dir: Path) -> Iterator[None]:
    """Hold a lock on the folder, so that a process left over from a killed workflow cannot interfere."""
    output_dir.mkdir(parents=True, exist_ok=True)
    path = output_dir / ".lock"
    with path.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.seek(0)
            owner = stream.read().strip() or "unknown"
            raise UserError(
                f"process {owner} is still training into {output_dir}; wait for it, or stop it with `kill {owner}` "
                "(it saves its state), and run again"
            ) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _git_commit() -> str | None:
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
