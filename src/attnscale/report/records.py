"""JSON files of a run, as far as the report reads them."""

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """A JSON file of the run; keys that the report does not need are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Environment(Record):
    """`environment.json`."""

    python: str
    platform: str
    cpu: str
    cpu_capability: str
    device: str
    device_name: str
    precision: str
    compile: bool
    threads: int
    packages: dict[str, str]
    lock_sha256: str | None


class RunRecord(Record):
    """`runs/TRAINED/seedS/run.json`; only `parameters`, `tokens` and `steps` are the same in every rerun."""

    arm: str
    seed: int
    parameters: int = Field(ge=1)
    steps: int = Field(ge=1)
    tokens: int = Field(ge=1)
    seconds: float = Field(ge=0)
    tokens_per_second: float = Field(ge=0)
    device: str
    precision: str
    compile: bool
    threads: int
    git_commit: str | None = None
    resumed_from_steps: tuple[int, ...] = ()
    started: str | None = None
    finished: str | None = None


class SourceRecord(Record):
    """One source of the corpus, as `corpus/manifest.json` counts it."""

    kind: str
    name: str
    version: str | None = None
    licence: str
    sha256: str | None = None
    documents_read: int = Field(ge=0)
    documents_after_cutting_and_joining: int | None = Field(default=None, ge=0)
    documents_kept: int = Field(ge=0)
    characters: int = Field(ge=0)

    @property
    def documents_made(self) -> int:
        """Documents that could be kept or dropped: those read, or what cutting and joining made of them."""
        made = self.documents_after_cutting_and_joining
        return self.documents_read if made is None else made


class SideRecord(Record):
    """Documents on one side of the split."""

    documents: int = Field(ge=1)
    characters: int = Field(ge=1)


class SplitRecord(Record):
    """Both sides of the split, and how many documents are on both."""

    train: SideRecord
    held_out: SideRecord
    overlap: int = Field(ge=0, le=0)


class CorpusManifest(Record):
    """`corpus/manifest.json`."""

    sources: tuple[SourceRecord, ...] = Field(min_length=1)
    split: SplitRecord


class TokensManifest(Record):
    """`tokens/manifest.json`."""

    kind: str
    vocabulary_size: int = Field(ge=1)
    train_tokens: int = Field(ge=0)
    held_out_tokens: int = Field(ge=1)
    held_out_unknown_tokens: int = Field(default=0, ge=0)


class EvaluationRecord(Record):
    """`tokens/evaluation.json`."""

    blocks: int = Field(ge=1)
    targets: int = Field(ge=1)
    documents: int = Field(ge=1)
