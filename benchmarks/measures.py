"""What is measured, what it must reach, and how the parts of the benchmark hand over what they found."""

import dataclasses
from typing import NamedTuple


class Measure(NamedTuple):
    """A row of summary.csv. Where the aim is below the must, less is better."""

    text: str
    must: float
    aim: float

    @property
    def more_is_better(self) -> bool:
        return self.aim > self.must

    def times_must(self, value: float) -> float:
        """How far `value` is: 1 at the must, above 1 beyond it, whichever direction is the good one."""
        return value / self.must if self.more_is_better else self.must / value


MEASURES = {
    "train_vs_hf_fp32": Measure("training tokens/s over Hugging Face in fp32", 5, 10),
    "train_vs_hf_bf16": Measure("training tokens/s over Hugging Face under bf16 autocast", 3, 6),
    "train_matrix_rate_fraction": Measure("training FLOP/s over the rate of its matrix products alone", 0.3, 0.5),
    "recipe_tokens_to_43_vs_trial": Measure("time to 43 % at 64 tokens over the trial recipe's", 1 / 1.5, 1 / 3),
    "eval4096_vs_hf": Measure("evaluation at 4096, tokens/s over Hugging Face", 3, 6),
    "eval4096_memory_vs_hf": Measure("peak memory of that evaluation over Hugging Face's", 1 / 4, 1 / 8),
    "pipeline_overhead_share": Measure("share of the workflow's time without training or evaluation", 0.15, 0.08),
}


class Row(NamedTuple):
    """A row of repeats.csv: one number, measured once."""

    group: str
    what: str
    precision: str
    repeat: int
    unit: str
    value: float


@dataclasses.dataclass
class Result:
    """What was found: single numbers, measures by name, what could not be measured and why, and lines to print."""

    rows: list[Row] = dataclasses.field(default_factory=list)
    values: dict[str, float] = dataclasses.field(default_factory=dict)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    lines: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Result") -> None:
        """Take over all that `other` holds."""
        self.rows += other.rows
        self.values |= other.values
        self.left_out |= other.left_out
        self.lines += other.lines
