"""The part of a run that is finished: a configuration that can be evaluated and reported while the rest is computed."""

from pathlib import Path

from attnscale.config import Config, parse_config
from attnscale.errors import UserError


def finished_part(config: Config, run_dir: Path) -> Config:
    """The same configuration without the arms and seeds that are not trained yet.

    Test-time arms and branched arms stay for the seeds of which all weights that they need are there. Nothing that
    is finished is due again under the result, since no settings of a training change.

    Args:
        config: the whole run.
        run_dir: its folder, results/NAME.

    Raises:
        UserError: no training is finished.
    """
    trained = {
        arm: tuple(seed for seed in config.seeds_of(arm) if _finished(run_dir / "runs" / arm / f"seed{seed}"))
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
    part = config.model_copy(update={"arms": arms, "seeds": run_seeds, "evaluation": evaluation})
    # Copies are not checked.
    return parse_config(part.model_dump(mode="json"), f"the finished part of {run_dir}")


def _finished(run: Path) -> bool:
    return (run / "model.safetensors").is_file() and (run / "run.json").is_file()
