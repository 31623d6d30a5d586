"""The part of a run that is finished: a configuration that can be evaluated and reported while the rest is computed."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from attnscale.checksums import check_checksums
from attnscale.config import Config, FormalConfig, Task, parse_config
from attnscale.counts import steps, tokens_per_step
from attnscale.errors import UserError
from attnscale.formal.tables import read_complete, read_tests
from attnscale.manifest import formal_arm_file
from attnscale.records import RunRecord, TokensManifest, read_record


def finished_part(config: Config, run_dir: Path) -> Config:
    """The same configuration without the arms and seeds that are not trained yet.

    A training of other settings, as far as its record tells them, is not finished but due again. Test-time arms and
    branched arms stay for the seeds of which all weights that they need are there. Nothing that is finished is due
    again under the result, since no settings of a training change. Of a formal language the arms stay that are trained;
    without one it is off.

    Args:
        config: the whole run.
        run_dir: its folder, results/NAME.

    Raises:
        UserError: no training is finished, or the record or weights of one are damaged.
    """
    trained = {
        arm: tuple(seed for seed in config.seeds_of(arm) if _finished(config, run_dir, arm, seed))
        for arm in config.trained_arms
    }
    for name in config.trained_arms:
        if branch := config.arms[name].branch:
            # Weights of a trunk that is trained anew are not those that a finished branch went on from.
            trained[name] = tuple(seed for seed in trained[name] if seed in trained[branch.of])
    arms = {}
    for name, arm in config.arms.items():
        seeds = tuple(seed for seed in config.seeds_of(name) if seed in trained[config.weights_of(name)])
        if seeds:
            arms[name] = arm.model_copy(update={"seeds": seeds})
    if not arms:
        raise UserError(f"no training in {run_dir} is finished yet; run the pipeline, or wait for its first training")
    run_seeds = tuple(seed for seed in config.seeds if any(seed in (arm.seeds or ()) for arm in arms.values()))
    snapshot_arms = tuple(name for name in config.evaluation.snapshot_arms if name in arms)
    evaluation = config.evaluation.model_copy(update={"snapshot_arms": snapshot_arms})
    formal: dict[str, Any] = {task: _formal_part(task, section, run_dir) for task, section in config.formal.items()}
    part = config.model_copy(update={"arms": arms, "seeds": run_seeds, "evaluation": evaluation, **formal})
    # Copies are not checked.
    return parse_config(part.model_dump(mode="json"), f"the finished part of {run_dir}")


def _finished(config: Config, run_dir: Path, arm: str, seed: int) -> bool:
    """Whether a training has ended, and is the one that the configuration asks for as far as its record tells.

    Raises:
        UserError: its record or weights are damaged.
    """
    folder = run_dir / "runs" / arm / f"seed{seed}"
    weights, path = folder / "model.safetensors", folder / "run.json"
    if not (weights.is_file() and path.is_file()):
        return False
    check_checksums([weights, path])
    record, total = read_record(path, RunRecord), steps(config.training)
    attention = config.arms[arm].attention.model_dump(mode="json")
    wanted = (arm, seed, attention, total, total * tokens_per_step(config.training))
    if (record.arm, record.seed, record.attention or attention, record.steps, record.tokens) != wanted:
        return False
    manifest = run_dir / "tokens" / "manifest.json"
    if not manifest.is_file():
        return True
    tokens, limit = read_record(manifest, TokensManifest), config.tokens
    return (
        tokens.kind == limit.kind
        and tokens.vocabulary_size <= limit.vocabulary_size
        and tokens.vocabulary_size == _vocabulary_size(weights)
    )


def _formal_part(task: Task, section: FormalConfig, run_dir: Path) -> FormalConfig | None:
    """The section of a formal language with the arms whose tests are there as it asks for them; None without one.

    Raises:
        UserError: the tests of an arm are damaged.
    """
    arms = {}
    for name, arm in section.arms.items():
        path = run_dir / formal_arm_file(task, name)
        if not path.is_file():
            continue
        check_checksums([path])
        read_tests(path)
        try:
            read_complete(path, section.model_copy(update={"arms": {name: arm}}))
        except UserError:
            continue  # of other seeds, lengths or epochs
        arms[name] = arm
    return section.model_copy(update={"arms": arms}) if arms else None


def _vocabulary_size(weights: Path) -> int | None:
    """Rows of the embedding in a file of weights; None if it has none."""
    try:
        with safe_open(weights, "numpy") as file:
            return int(file.get_slice("embedding.weight").get_shape()[0])
    except SafetensorError:
        return None
