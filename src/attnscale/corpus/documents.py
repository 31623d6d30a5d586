"""A document, and the JSONL files that carry documents from this stage to the next."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from attnscale.errors import UserError
from attnscale.files import replacing

FIELDS = ("id", "source", "title", "text")


def content_hash(text: str) -> str:
    """Hex sha256 of the UTF-8 bytes of a cleaned text: a document's id."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


@dataclass(frozen=True, slots=True)
class Document:
    """One cleaned document.

    Attributes:
        id: `content_hash` of the text.
        source: name of the source in the configuration.
        title: name of the file or member; for tables the file name and line or row, or the row alone.
        text: the cleaned text.
    """

    id: str
    source: str
    title: str
    text: str


def write_documents(path: Path, documents: Iterable[Document]) -> None:
    """Write documents as JSONL, one a line in the given order, in one step.

    Raises:
        OSError: the file system refused.
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
        for document in documents:
            record = {field: getattr(document, field) for field in FIELDS}
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a file that `write_documents` made, checking each id against its text.

    Raises:
        UserError: the file is missing, a line is no document, or a text does not belong to its id.
    """
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run the corpus stage, or the whole pipeline") from None
    with stream:
        for number, line in enumerate(stream, start=1):
            try:
                document = Document(**json.loads(line))
                intact = document.id == content_hash(document.text)
            except (ValueError, TypeError, AttributeError, RecursionError):
                intact = False
            if not intact:
                raise UserError(f"{path} is damaged at line {number}; delete it and run the pipeline again")
            yield document
