"""JSON files of a run, as far as anyone but the stages reads them: the report, plans, finished models."""

from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from attnscale.errors import UserError


class Record(BaseModel):
    """A JSON file of the run; keys that nobody needs are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


_AnyRecord = TypeVar("_AnyRecord", bound=Record)


def read_record(path: Path, model: type[_AnyRecord], again: str = "delete it and run the pipeline again") -> _AnyRecord:
    """Read a JSON file of a run.

    Args:
        path: the file.
        model: what it must hold.
        again: what to do if it is damaged, for the error.

    Raises:
        UserError: it is missing, is no JSON, or holds something else.
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run the stage that makes it, or the whole pipeline") from None
    except ValidationError as error:
        finding = error.errors(include_url=False)[0]
        if finding["type"] == "json_invalid":
            raise UserError(f"{path} is no valid JSON ({finding['ctx']['error']}); {again}") from None
        where = ".".join(str(part) for part in finding["loc"]) or "the whole file"
        raise UserError(f"{path} is damaged ({where}: {finding['msg'].lower()}); {again}") from None


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
    attention: dict[str, Any] | None = None
    parameters: int = Field(ge=1)
    steps: int = Field(ge=1)
    tokens: int = Field(ge=1)
    seconds: float = Field(ge=0)
    tokens_per_second: float = Field(ge=0)
    device: str
    precision: str
    compile: bool
    threads: int
    cpu_capability: str | None = None
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


class VocabularyRecord(Record):
    """`tokens/manifest.json`, as far as it says which ids there are and what the files beside it are."""

    kind: str
    vocabulary_size: int
    special_count: int
    mask_id: int = Field(ge=0)
    pad_id: int = Field(ge=0)
    unknown_id: int = Field(ge=0)
    files: dict[str, str]

    @model_validator(mode="after")
    def _check_ids(self) -> Self:
        if not max(self.mask_id, self.pad_id, self.unknown_id) < self.special_count <= self.vocabulary_size:
            raise ValueError("ids beyond the vocabulary")
        return self


class EvaluationRecord(Record):
    """`tokens/evaluation.json`."""

    blocks: int = Field(ge=1)
    blocks_available: int | None = Field(default=None, ge=1)
    targets: int = Field(ge=1)
    documents: int = Field(ge=1)
