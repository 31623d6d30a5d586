"""Results of each source of the text, from blocks whose documents are known."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attnscale.analysis.by_source import documents_of_blocks, write_by_source
from attnscale.analysis.settings import DifferencesSettings
from attnscale.config import EvaluationSetSettings, StatisticsConfig, TokensConfig, TokensSettings
from attnscale.corpus.documents import Document, content_hash, write_documents
from attnscale.errors import UserError
from attnscale.files import sha256_of, write_array, write_json
from attnscale.tokens.build import build_tokens
from attnscale.tokens.evaluation_set import build_evaluation_set

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LENGTHS = (16, 32)


def text(number: int, length: int) -> str:
    return "".join(ALPHABET[int(value)] for value in np.random.default_rng(number).integers(26, size=length))


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Five held-out documents: laws of 70, 40 and 20 tokens, novels of 100 and 33; the one of 20 holds no block."""
    root = tmp_path_factory.mktemp("by_source")
    held_out = [("law", 70), ("novel", 100), ("law", 40), ("law", 20), ("novel", 33)]
    for side, parts in (("train", [("law", 200), ("novel", 200), ("poem", 50)]), ("held_out", held_out)):
        texts = [(source, text(place + 10 * len(parts), length)) for place, (source, length) in enumerate(parts)]
        documents = [Document(content_hash(words), source, "title", words) for source, words in texts]
        write_documents(root / f"{side}.jsonl", sorted(documents, key=lambda document: document.id))
    write_json(root / "manifest.json", {"sources": [{"name": name} for name in ("novel", "poem", "law", "novel")]})
    tokens = root / "tokens"
    build_tokens(
        TokensSettings(tokens=TokensConfig(kind="character", vocabulary_size=300), training_length=16), root, tokens
    )
    build_evaluation_set(EvaluationSetSettings(lengths=LENGTHS, mask_rate=0.25, max_blocks=None), tokens, tokens)
    return root, tokens


def evaluations(folder: Path, sources: list[str]) -> list[Path]:
    """Arm b is right in every target of the novels and in none of the laws, arm a the other way round."""
    paths = []
    for arm, good in (("a", "law"), ("b", "novel")):
        for seed in (0, 1):
            rows = [
                (arm, seed, 7, length, block, 8 if source == good else seed, 8)
                for length in LENGTHS
                for block, source in enumerate(sources)
            ]
            path = folder / f"{arm}{seed}.csv"
            columns = ["arm", "seed", "step", "length", "block", "correct", "total"]
            pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
            paths.append(path)
    return paths


def settings(**change: object) -> DifferencesSettings:
    return DifferencesSettings(
        comparisons=(("b", "a"),), training_length=16, statistics=StatisticsConfig(resamples=200), **change
    )


def test_every_block_is_given_the_document_that_its_tokens_are_from(stages: tuple[Path, Path]) -> None:
    corpus, tokens = stages
    table = documents_of_blocks(corpus, tokens)
    held_out = [json.loads(line) for line in (corpus / "held_out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sorted(table["source"]) == ["law"] * 3 + ["novel"] * 4
    vocabulary = json.loads((tokens / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    letters = {index: letter for letter, index in vocabulary.items()}
    for row, ids in zip(table.to_dict("records"), np.load(tokens / "evaluation_ids.npy"), strict=True):
        document = held_out[row["document"]]
        assert "".join(letters[int(index)] for index in ids) in document["text"]
        assert document["source"] == row["source"]


def test_counts_and_differences_are_those_of_one_source_at_a_time(stages: tuple[Path, Path], tmp_path: Path) -> None:
    corpus, tokens = stages
    sources = documents_of_blocks(corpus, tokens)["source"].tolist()
    write_by_source(settings(), evaluations(tmp_path, sources), corpus, tokens, tmp_path / "out")
    accuracy = pd.read_csv(tmp_path / "out/accuracy_by_source.csv")
    # In the order of the corpus' manifest; the poems are not held out.
    assert accuracy["source"].unique().tolist() == ["novel", "law"]
    counted = accuracy.drop_duplicates("source").set_index("source")[["documents", "blocks", "total"]]
    assert counted.to_dict("index") == {
        "novel": {"documents": 2, "blocks": 4, "total": 32},
        "law": {"documents": 2, "blocks": 3, "total": 24},
    }
    found = accuracy.set_index(["source", "arm", "seed", "length"]).sort_index()["accuracy"]
    assert (found["novel", "b"] == 1).all()
    assert (found["law", "a"] == 1).all()
    assert found["law", "b", 1, 32] == 1 / 8
    differences = pd.read_csv(tmp_path / "out/differences_by_source.csv")
    means = differences.set_index(["source", "arm", "baseline", "length"])["mean"]
    assert means["novel", "b", "a", 16] == pytest.approx(100 * (1 - 1 / 16))
    assert means["law", "b", "a", 32] == pytest.approx(-100 * (1 - 1 / 16))
    assert "p" not in differences


def test_evaluations_of_other_blocks_and_text_of_another_run_are_refused(
    stages: tuple[Path, Path], tmp_path: Path
) -> None:
    corpus, tokens = stages
    sources = documents_of_blocks(corpus, tokens)["source"].tolist()
    with pytest.raises(UserError, match=r"a0\.csv has 6 blocks where .* has 7; evaluate again"):
        write_by_source(settings(), evaluations(tmp_path, sources[:-1]), corpus, tokens, tmp_path / "out")
    lines = (corpus / "held_out.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "held_out.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(UserError, match="are not of the same text"):
        documents_of_blocks(tmp_path, tokens)
    for path in tokens.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ids = np.load(tokens / "evaluation_ids.npy")
    ids[3] = ids[3, ::-1]
    write_array(tmp_path / "evaluation_ids.npy", ids)
    record = json.loads((tokens / "evaluation.json").read_text(encoding="utf-8"))
    record["files"]["evaluation_ids.npy"] = sha256_of(tmp_path / "evaluation_ids.npy")
    write_json(tmp_path / "evaluation.json", record)
    with pytest.raises(UserError, match="are not of its documents; cut them again"):
        documents_of_blocks(corpus, tmp_path)
    assert not (tmp_path / "out").exists()
