"""The tokens stage: documents to ids."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from attnscale.config import TokensSettings
from attnscale.corpus import Document, read_documents
from attnscale.errors import UserError
from attnscale.files import sha256_of, write_array, write_json, write_text
from attnscale.tokens.load import MANIFEST, DocumentTokens, check_long_enough
from attnscale.tokens.tokenizer import save_text, train_tokenizer
from attnscale.tokens.vocabulary import Vocabulary

SIDES = ("train", "held_out")
DOCUMENTS_AT_ONCE = 32


def build_tokens(settings: TokensSettings, corpus_dir: Path, output_dir: Path) -> None:
    """Train the tokenizer on the training documents and write both sides as ids.

    Documents are stored in the order of their ids, so the order of the corpus files does not matter.

    Args:
        settings: kind and size of the vocabulary, and the training length that must fit.
        corpus_dir: holds `train.jsonl` and `held_out.jsonl`.
        output_dir: gets tokenizer.json, {train,held_out}_{ids,offsets}.npy and manifest.json.

    Raises:
        UserError: a corpus file is missing or damaged, a document is on both sides, or no training
            document is long enough for one window.
    """
    corpora = {side: corpus_dir / f"{side}.jsonl" for side in SIDES}
    tokenizer = train_tokenizer(settings.tokens, (document.text for document in read_documents(corpora["train"])))
    vocabulary = Vocabulary(size=tokenizer.get_vocab_size())
    encoded = {side: _encode(tokenizer, vocabulary, path) for side, path in corpora.items()}
    shared = sorted(set(encoded["train"][0]) & set(encoded["held_out"][0]))
    if shared:
        raise UserError(
            f"{len(shared)} documents are in train.jsonl and in held_out.jsonl, the first is {shared[0]}; "
            "run the corpus stage again"
        )
    check_long_enough(encoded["train"][1].lengths, settings.training_length)

    write_text(output_dir / "tokenizer.json", save_text(tokenizer))
    written = ["tokenizer.json"]
    for side, (_, tokens, _) in encoded.items():
        write_array(output_dir / f"{side}_ids.npy", tokens.ids)
        write_array(output_dir / f"{side}_offsets.npy", tokens.offsets)
        written += [f"{side}_ids.npy", f"{side}_offsets.npy"]
    manifest: dict[str, Any] = {
        "kind": settings.tokens.kind,
        "vocabulary_size": vocabulary.size,
        "mask_id": vocabulary.mask_id,
        "pad_id": vocabulary.pad_id,
        "unknown_id": vocabulary.unknown_id,
        "special_count": vocabulary.special_count,
        "documents_on_both_sides": len(shared),
        "files": {name: sha256_of(output_dir / name) for name in written},
    }
    for side, (document_ids, tokens, characters) in encoded.items():
        manifest |= {
            f"{side}_documents": len(document_ids),
            f"{side}_characters": characters,
            f"{side}_tokens": len(tokens.ids),
            f"{side}_unknown_tokens": int(np.count_nonzero(tokens.ids == vocabulary.unknown_id)),
            f"{side}_longest_document": int(tokens.lengths.max(initial=0)),
        }
    write_json(output_dir / MANIFEST, manifest)


def _encode(tokenizer: Tokenizer, vocabulary: Vocabulary, path: Path) -> tuple[list[str], DocumentTokens, int]:
    """Ids of the documents of a file in the order of their names, their tokens, and their characters in all."""
    parts: list[tuple[str, npt.NDArray[Any]]] = []
    characters = 0
    documents: Iterator[Document] = iter(read_documents(path))
    while group := list(itertools.islice(documents, DOCUMENTS_AT_ONCE)):
        texts = [document.text for document in group]
        characters += sum(len(text) for text in texts)
        for document, encoding in zip(group, tokenizer.encode_batch_fast(texts), strict=True):
            parts.append((document.id, np.asarray(encoding.ids, dtype=vocabulary.dtype)))
    parts.sort(key=lambda part: part[0])
    return [name for name, _ in parts], _join((ids for _, ids in parts), vocabulary), characters


def _join(documents: Iterable[npt.NDArray[Any]], vocabulary: Vocabulary) -> DocumentTokens:
    arrays = [np.empty(0, dtype=vocabulary.dtype), *documents]
    # The empty array in front gives the leading zero, and keeps the type where there is no document.
    offsets = np.cumsum([len(array) for array in arrays], dtype=np.int64)
    return DocumentTokens(np.concatenate(arrays), offsets)
