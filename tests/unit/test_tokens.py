"""The tokens stage: tokenizer, training batches, evaluation blocks, masks."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attnscale.config import EvaluationSetSettings, TokensConfig, TokensSettings, TrainingConfig
from attnscale.corpus.documents import Document, content_hash, read_documents, write_documents
from attnscale.errors import UserError
from attnscale.files import read_array, read_json, sha256_of, write_array, write_json
from attnscale.rng import Stream
from attnscale.tokens.batches import TrainingBatches
from attnscale.tokens.build import build_tokens
from attnscale.tokens.evaluation_set import build_evaluation_set
from attnscale.tokens.load import (
    load_evaluation_set,
    load_held_out_tokens,
    load_training_tokens,
    load_vocabulary,
)
from attnscale.tokens.masks import mask_tokens
from attnscale.tokens.tokenizer import load_tokenizer, save_text, train_tokenizer
from attnscale.tokens.vocabulary import Vocabulary

WORDS = (
    "the",
    "union",
    "of",
    "states",
    "has",
    "given",
    "its",
    "consent",
    "to",
    "a",
    "treaty,",
    "naïve",
    "自由",
    "hope.",
)
BPE = TokensConfig(kind="bpe", vocabulary_size=300)
CHARACTER = TokensConfig(kind="character", vocabulary_size=300)


def sample_text(key: int, words: int) -> str:
    return " ".join(WORDS[index] for index in Stream("test text", key).integers(words, len(WORDS)))


def write_corpus(folder: Path, train: list[str], held_out: list[str]) -> Path:
    for side, texts in (("train", train), ("held_out", held_out)):
        documents = [Document(content_hash(text), "source", "title", text) for text in texts]
        write_documents(folder / f"{side}.jsonl", documents)
    return folder


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    train = [sample_text(key, 60 + 40 * key) for key in range(8)]
    held_out = [sample_text(100 + key, 100 + 90 * key) for key in range(5)]
    return write_corpus(tmp_path_factory.mktemp("corpus"), train, held_out)


@pytest.fixture(scope="module")
def tokens_dir(corpus_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    build_tokens(TokensSettings(tokens=BPE, training_length=16), corpus_dir, folder)
    return folder


def evaluation_settings(max_blocks: int | None, rate: float = 0.15) -> EvaluationSetSettings:
    return EvaluationSetSettings(lengths=(16, 32, 64), mask_rate=rate, max_blocks=max_blocks)


# Tokenizer


@pytest.mark.parametrize("kind", ["bpe", "character"])
def test_two_processes_with_different_thread_counts_write_the_same_bytes(
    kind: str, corpus_dir: Path, tmp_path: Path
) -> None:
    script = (
        "import sys; from pathlib import Path; from attnscale.config import *; from attnscale.tokens.build import *;"
        f"tokens = TokensConfig(kind={kind!r}, vocabulary_size=400);"
        "build_tokens(TokensSettings(tokens=tokens, training_length=16), Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    for threads in ("1", "2"):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        command = [sys.executable, "-c", script, str(corpus_dir), str(tmp_path / threads)]
        subprocess.run(command, env=environment, check=True)
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert "tokenizer.json" in names
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name


def test_order_of_the_corpus_lines_changes_nothing(corpus_dir: Path, tokens_dir: Path, tmp_path: Path) -> None:
    for side in ("train", "held_out"):
        lines = (corpus_dir / f"{side}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / f"{side}.jsonl").write_text("".join(reversed(lines)), encoding="utf-8")
    build_tokens(TokensSettings(tokens=BPE, training_length=16), tmp_path, tmp_path / "out")
    assert (tmp_path / "out/manifest.json").read_bytes() == (tokens_dir / "manifest.json").read_bytes()


@pytest.mark.parametrize("settings_", [BPE, CHARACTER], ids=["bpe", "character"])
def test_literal_names_of_special_tokens_are_ordinary_text(settings_: TokensConfig, tmp_path: Path) -> None:
    text = "[MASK] [PAD][UNK] x[MASK]x [MASK]\n[MASK]\r\n"
    tokenizer = train_tokenizer(settings_, [text] * 50)
    (tmp_path / "tokenizer.json").write_text(save_text(tokenizer), encoding="utf-8")
    for each in (tokenizer, load_tokenizer(tmp_path / "tokenizer.json")):
        ids = each.encode(text).ids
        assert min(ids) >= 3
        assert each.decode(ids) == text
        assert [each.token_to_id(token) for token in ("[PAD]", "[UNK]", "[MASK]")] == [0, 1, 2]


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_byte_level_tokenizer_gives_any_text_back_without_special_ids(text: str) -> None:
    ids = SMALL_BPE.encode(text).ids
    assert SMALL_BPE.decode(ids) == text
    assert all(3 <= index < SMALL_BPE.get_vocab_size() for index in ids)


SMALL_BPE = train_tokenizer(BPE, [sample_text(0, 500)])


def test_bpe_vocabulary_has_the_size_asked_for_unless_the_text_is_too_poor_for_it() -> None:
    assert SMALL_BPE.get_vocab_size() == 300
    # Three special tokens, all bytes, and the one pair that occurs more than once.
    assert train_tokenizer(BPE, ["xyz", "xy", "uv"]).get_vocab_size() == 3 + 256 + 1


def test_characters_are_ranked_by_frequency_then_code_point_and_the_rest_is_unknown() -> None:
    rare = "".join(chr(0x4E00 + index) for index in range(400))
    tokenizer = train_tokenizer(CHARACTER, ["ccc\n\nbbaa", rare])
    assert tokenizer.get_vocab_size() == 300
    assert tokenizer.encode("c\nab").ids == [3, 4, 5, 6]
    # 293 places are left for the rare ones, which are equally frequent.
    assert tokenizer.encode(chr(0x4E00) + chr(0x4E00 + 292) + chr(0x4E00 + 293) + "x").ids == [7, 299, 1, 1]


def test_only_training_text_shapes_the_vocabulary(corpus_dir: Path, tokens_dir: Path, tmp_path: Path) -> None:
    train = (corpus_dir / "train.jsonl").read_bytes()
    write_corpus(tmp_path, [], ["quite different words " * 50])
    (tmp_path / "train.jsonl").write_bytes(train)
    build_tokens(TokensSettings(tokens=BPE, training_length=16), tmp_path, tmp_path / "out")
    for name in ("tokenizer.json", "train_ids.npy"):
        assert (tmp_path / "out" / name).read_bytes() == (tokens_dir / name).read_bytes()


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match=r"tokenizer.json is missing"):
        load_tokenizer(path)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer.json is no tokenizer"):
        load_tokenizer(path)


# Files of the stage


def test_stored_ids_are_the_documents_in_order_of_their_names(corpus_dir: Path, tokens_dir: Path) -> None:
    tokenizer = load_tokenizer(tokens_dir / "tokenizer.json")
    for side, tokens in (("train", load_training_tokens(tokens_dir)), ("held_out", load_held_out_tokens(tokens_dir))):
        texts = {document.id: document.text for document in read_documents(corpus_dir / f"{side}.jsonl")}
        parts = np.split(tokens.ids, tokens.offsets[1:-1])
        assert [tokenizer.decode(part.tolist()) for part in parts] == [texts[name] for name in sorted(texts)]
        assert tokens.ids.dtype == np.uint16
        assert tokens.offsets.dtype == np.int64


def test_manifest_counts_and_hashes_what_was_written(corpus_dir: Path, tokens_dir: Path) -> None:
    manifest = read_json(tokens_dir / "manifest.json")
    held_out = load_held_out_tokens(tokens_dir)
    assert {name: value for name, value in manifest.items() if name.startswith("held_out_")} == {
        "held_out_documents": 5,
        "held_out_characters": sum(len(document.text) for document in read_documents(corpus_dir / "held_out.jsonl")),
        "held_out_tokens": len(held_out.ids),
        "held_out_unknown_tokens": 0,
        "held_out_longest_document": max(held_out.lengths),
    }
    assert manifest["documents_on_both_sides"] == 0
    assert load_vocabulary(tokens_dir) == Vocabulary(size=300, mask_id=2, pad_id=0, unknown_id=1, special_count=3)
    written = {path.name for path in tokens_dir.iterdir()} - {"manifest.json"}
    assert set(manifest["files"]) == written
    assert all(digest == sha256_of(tokens_dir / name) for name, digest in manifest["files"].items())


def test_a_document_on_both_sides_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    texts = [sample_text(key, 200) for key in range(3)]
    write_corpus(tmp_path, texts[:2], texts[1:])
    message = f"^1 documents are in train.jsonl and in held_out.jsonl, the first is {content_hash(texts[1])}; run"
    with pytest.raises(UserError, match=message):
        build_tokens(TokensSettings(tokens=BPE, training_length=16), tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("train", "longest"), [(["short text"], r"[1-9]\d*"), ([], "0")])
def test_training_text_without_one_whole_window_is_refused(train: list[str], longest: str, tmp_path: Path) -> None:
    write_corpus(tmp_path, train, [sample_text(1, 100)])
    with pytest.raises(UserError, match=f"training.length = 64 tokens, the longest has {longest}; lower"):
        build_tokens(TokensSettings(tokens=BPE, training_length=64), tmp_path, tmp_path / "out")


def test_ids_take_two_bytes_up_to_65536_different_ones() -> None:
    assert Vocabulary(size=65536).dtype == np.uint16
    assert Vocabulary(size=65537).dtype == np.uint32
    assert np.asarray([65535], dtype=Vocabulary(size=65536).dtype)[0] == 65535


def test_a_vocabulary_beyond_two_bytes_survives_the_round_trip(tmp_path: Path) -> None:
    # 65533 characters and 3 special ids just fit; one more does not.
    characters = "".join(chr(code) for code in range(0x10000, 0x10000 + 65534))
    for count, dtype in ((65533, np.uint16), (65534, np.uint32)):
        out = tmp_path / str(count)
        write_corpus(out, [characters[:count]], ["other"])
        config = TokensConfig(kind="character", vocabulary_size=70_000)
        build_tokens(TokensSettings(tokens=config, training_length=16), out, out)
        ids = load_training_tokens(out).ids
        assert ids.dtype == dtype
        assert np.array_equal(ids, np.arange(3, count + 3))


@pytest.mark.parametrize("name", ["train_ids.npy", "train_offsets.npy"])
def test_a_changed_cut_or_missing_file_is_named(name: str, tokens_dir: Path, tmp_path: Path) -> None:
    for path in tokens_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    content = bytearray((tmp_path / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is damaged: its sha256"):
        load_training_tokens(tmp_path)
    (tmp_path / name).write_bytes(content[:-20])
    with pytest.raises(UserError, match=f"{name} is damaged"):
        load_training_tokens(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        load_training_tokens(tmp_path)


@pytest.mark.parametrize("manifest", [{}, [], {"vocabulary_size": 3}, {"vocabulary_size": "many"}])
def test_a_manifest_of_another_kind_is_named(manifest: object, tokens_dir: Path, tmp_path: Path) -> None:
    write_array(tmp_path / "train_ids.npy", np.zeros(3, dtype=np.uint16))
    write_json(tmp_path / "manifest.json", manifest)
    with pytest.raises(UserError, match=r"manifest.json is damaged: it does not describe a vocabulary"):
        load_vocabulary(tmp_path)
    with pytest.raises(UserError, match=r"manifest.json is damaged: it does not name train_ids.npy"):
        load_training_tokens(tmp_path)


def test_offsets_of_another_text_are_refused(tmp_path: Path) -> None:
    write_array(tmp_path / "train_ids.npy", np.zeros(3, dtype=np.uint16))
    write_array(tmp_path / "train_offsets.npy", np.array([0, 4]))
    names = ("train_ids.npy", "train_offsets.npy")
    write_json(tmp_path / "manifest.json", {"files": {name: sha256_of(tmp_path / name) for name in names}})
    with pytest.raises(UserError, match=r"train_offsets.npy is damaged: it does not fit train_ids.npy"):
        load_training_tokens(tmp_path)


# Masks


@given(
    ids=st.lists(st.integers(0, 40), min_size=1, max_size=200),
    count=st.integers(1, 250),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=300, deadline=None)
def test_masks_are_exact_sorted_and_ordinary(ids: list[int], count: int, seed: int) -> None:
    vocabulary = Vocabulary(size=41)
    ids_T = np.array(ids, dtype=np.int64)
    before = ids_T.copy()
    inputs_T, selected_S = mask_tokens(ids_T, count, Stream("test", seed), vocabulary)
    assert np.array_equal(ids_T, before)
    ordinary = int((ids_T >= 3).sum())
    assert len(selected_S) == min(count, ordinary)
    assert (np.diff(selected_S) > 0).all()
    assert (ids_T[selected_S] >= 3).all()
    untouched = np.setdiff1d(np.arange(len(ids)), selected_S)
    assert np.array_equal(inputs_T[untouched], ids_T[untouched])
    shown = inputs_T[selected_S]
    assert ((shown == vocabulary.mask_id) | (shown >= 3)).all()
    assert (shown < vocabulary.size).all()


def test_fates_are_80_10_10_and_replacements_uniform_by_chi_square() -> None:
    vocabulary = Vocabulary(size=103)
    ids_T = np.full(400_000, 3)
    inputs_T, selected_S = mask_tokens(ids_T, 200_000, Stream("test", 1), vocabulary)
    shown = inputs_T[selected_S]
    masked, same = int((shown == vocabulary.mask_id).sum()), int((shown == 3).sum())
    changed = len(shown) - masked - same
    # A random replacement is the original one time in a hundred here.
    expected = np.array([0.8, 0.1 + 0.1 / 100, 0.1 * 99 / 100]) * len(shown)
    assert stats.chisquare([masked, same, changed], expected).pvalue > 0.01
    drawn = np.bincount(shown[shown > 3], minlength=vocabulary.size)[4:]
    assert stats.chisquare(drawn).pvalue > 0.01
    # Which positions are chosen is uniform, and the fate does not depend on the position.
    assert stats.chisquare(np.histogram(selected_S, bins=50, range=(0, 400_000))[0]).pvalue > 0.01
    assert stats.chisquare(np.histogram(selected_S[shown == 2], bins=50, range=(0, 400_000))[0]).pvalue > 0.01


def test_a_mask_with_a_smaller_count_is_part_of_the_larger_one() -> None:
    ids_T = np.arange(3, 103)
    small, large = (mask_tokens(ids_T, count, Stream("test", 7), Vocabulary(size=103))[1] for count in (10, 30))
    assert set(small) < set(large)


# Training batches


def training(length: int, batch_size: int, rate: float = 0.15) -> TrainingConfig:
    return TrainingConfig(length=length, batch_size=batch_size, mask_rate=rate)


def batches_of(
    lengths: list[int], config: TrainingConfig, seed: int = 0, window_lengths: tuple[int, ...] = ()
) -> TrainingBatches:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = (3 + np.arange(offsets[-1])).astype(np.uint16)
    return TrainingBatches(ids, offsets, Vocabulary(size=int(offsets[-1]) + 3), config, seed, window_lengths)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(lambda each: max(each) >= 8),
    length=st.integers(8, 12),
    seed=st.integers(0, 100),
)
@settings(max_examples=150, deadline=None)
def test_windows_never_cross_a_document(lengths: list[int], length: int, seed: int) -> None:
    if max(lengths) < length:
        lengths = [*lengths, length]
    allowed = []
    start = 0
    for each in lengths:
        allowed += [start + place for place in range(each - length + 1)]
        start += each
    batches = batches_of(lengths, training(length, 64), seed)
    assert set(batches.window_starts(0).tolist()) <= set(allowed)
    restored = batches.batch(0)
    ids_T = restored.inputs_BN.reshape(-1).copy()
    ids_T[restored.selected_S] = restored.targets_S
    # Every id stands once in the text, so a window is a run of neighbours of one document.
    assert (np.diff(ids_T.reshape(64, length), axis=1) == 1).all()
    assert set((ids_T.reshape(64, length)[:, 0] - 3).tolist()) <= set(allowed)


def test_every_place_where_a_window_fits_is_equally_likely() -> None:
    lengths = [9, 8, 3, 40, 0, 7, 20]
    batches = batches_of(lengths, training(8, 2000))
    allowed = [0, 1, 9, *range(20, 53), *range(67, 80)]
    drawn = np.bincount(np.concatenate([batches.window_starts(step) for step in range(20)]), minlength=87)
    assert np.flatnonzero(drawn).tolist() == allowed
    assert stats.chisquare(drawn[allowed]).pvalue > 0.01


def test_every_batch_has_the_exact_number_of_targets_and_the_right_types() -> None:
    config = training(64, 16, rate=0.15)
    batches = batches_of([500, 300, 70], config)
    for step in range(20):
        batch = batches.batch(step)
        assert batch.inputs_BN.shape == (16, 64)
        assert batch.selected_S.shape == batch.targets_S.shape == (154,)
        assert batch.inputs_BN.dtype == batch.selected_S.dtype == batch.targets_S.dtype == np.int64
        assert (np.diff(batch.selected_S) > 0).all()


def test_special_ids_in_the_text_are_neither_targets_nor_drawn() -> None:
    ids = np.array([1, 5, 1, 7] * 100, dtype=np.uint16)
    batches = TrainingBatches(ids, np.array([0, 400]), Vocabulary(size=9), training(8, 8, rate=0.9), seed=0)
    for step in range(50):
        batch = batches.batch(step)
        assert set(batch.targets_S.tolist()) == {5, 7}
        assert len(batch.targets_S) == 32  # all ordinary tokens: fewer than the 58 asked for
        assert (batch.inputs_BN == 1).sum() == 32
        assert (batch.inputs_BN != 0).all()


def test_a_batch_depends_on_seed_and_step_and_on_nothing_asked_before() -> None:
    config = training(16, 8)
    forward = [batches_of([200, 300], config).batch(step) for step in range(6)]
    one_object = batches_of([200, 300], config)
    for step in (5, 0, 3, 3, 1):
        batch = one_object.batch(step)
        assert np.array_equal(batch.inputs_BN, forward[step].inputs_BN)
        assert np.array_equal(batch.selected_S, forward[step].selected_S)
        assert np.array_equal(batch.targets_S, forward[step].targets_S)
    assert not np.array_equal(forward[0].inputs_BN, forward[1].inputs_BN)
    assert not np.array_equal(forward[0].selected_S, forward[1].selected_S)
    assert not np.array_equal(forward[0].inputs_BN, batches_of([200, 300], config, seed=1).batch(0).inputs_BN)


def test_the_first_batch_is_the_same_bits_on_every_machine() -> None:
    batch = batches_of([200, 300], training(8, 4)).batch(0)
    assert batch.inputs_BN[:, :2].tolist() == [[186, 187], [10, 11], [96, 97], [2, 136]]
    assert batch.selected_S.tolist() == [2, 13, 21, 24, 31]
    assert batch.targets_S.tolist() == [188, 15, 101, 135, 142]
    large = batches_of([2000, 3000], training(64, 64)).batch(7)
    digest = hashlib.sha256(large.inputs_BN.astype("<i8").tobytes()).hexdigest()
    assert digest == "edcbcd69ef16a7622f3e769ef78d503cfd177b84a64b4e612469f05716abc360"


MIXED = (16, 32, 64)


def test_mixed_lengths_cut_the_same_text_with_the_same_targets_into_shorter_windows() -> None:
    config = training(64, 16)
    fixed, mixed = batches_of([500, 300, 70], config), batches_of([500, 300, 70], config, window_lengths=MIXED)
    seen = []
    for step in range(30):
        whole, cut = fixed.batch(step), mixed.batch(step)
        seen.append(cut.inputs_BN.shape[1])
        assert seen[-1] == mixed.length(step)
        assert cut.inputs_BN.shape == (16 * 64 // seen[-1], seen[-1])
        assert np.array_equal(cut.inputs_BN.ravel(), whole.inputs_BN.ravel())
        assert np.array_equal(cut.selected_S, whole.selected_S)
        assert np.array_equal(cut.targets_S, whole.targets_S)
    assert sorted(set(seen)) == list(MIXED)


def test_the_length_of_a_step_is_drawn_evenly_from_seed_and_step_and_nothing_else() -> None:
    one = batches_of([500, 300], training(64, 16), window_lengths=MIXED)
    drawn = [one.length(step) for step in range(3000)]
    counts = np.array([drawn.count(length) for length in MIXED])
    assert stats.chisquare(counts).pvalue > 0.001
    other = batches_of([90, 80], training(64, 2, rate=0.5), window_lengths=MIXED)
    assert [other.length(step) for step in reversed(range(50))] == drawn[:50][::-1]
    assert [batches_of([500], training(64, 16), 1, MIXED).length(step) for step in range(50)] != drawn[:50]


def test_the_first_mixed_lengths_are_the_same_on_every_machine() -> None:
    batches = batches_of([200, 300], training(64, 4), window_lengths=MIXED)
    assert [batches.length(step) for step in range(12)] == [16, 16, 16, 16, 32, 64, 32, 64, 16, 64, 32, 16]


def test_one_length_given_is_the_length_of_every_step() -> None:
    config = training(64, 4)
    assert {batches_of([200], config, window_lengths=(64,)).length(step) for step in range(20)} == {64}
    assert {batches_of([200], config).length(step) for step in range(20)} == {64}
    assert batches_of([200], config, window_lengths=(16,)).batch(0).inputs_BN.shape == (16, 16)


def test_documents_shorter_than_a_window_are_refused_when_there_is_no_other() -> None:
    with pytest.raises(UserError, match=r"training.length = 16 tokens, the longest has 15"):
        batches_of([15, 3], training(16, 4))


# Evaluation blocks


def test_blocks_are_cut_from_single_documents_in_rounds(tokens_dir: Path, tmp_path: Path) -> None:
    build_evaluation_set(evaluation_settings(None), tokens_dir, tmp_path)
    held_out = load_held_out_tokens(tokens_dir)
    documents = np.split(held_out.ids, held_out.offsets[1:-1])
    rounds = max(len(document) for document in documents) // 64
    expected = [
        document[turn * 64 : turn * 64 + 64]
        for turn in range(rounds)
        for document in documents
        if len(document) >= (turn + 1) * 64
    ]
    blocks = load_evaluation_set(tmp_path)
    assert np.array_equal(blocks.ids_KN, np.stack(expected))
    assert blocks.lengths == (16, 32, 64)
    entry = read_json(tmp_path / "evaluation.json")
    assert (entry["blocks"], entry["documents"], entry["targets"]) == (len(expected), 5, 10 * len(expected))


def test_every_block_has_the_exact_number_of_targets_and_the_rest_is_unchanged(
    tokens_dir: Path, tmp_path: Path
) -> None:
    build_evaluation_set(evaluation_settings(8, rate=0.3), tokens_dir, tmp_path)
    blocks = load_evaluation_set(tmp_path)
    assert blocks.mask_rate == 0.3
    assert blocks.masked_KN.dtype == np.bool_
    assert (blocks.masked_KN.sum(axis=1) == round(0.3 * 64)).all()
    assert np.array_equal(blocks.inputs_KN[~blocks.masked_KN], blocks.ids_KN[~blocks.masked_KN])
    hidden = (blocks.inputs_KN[blocks.masked_KN] == 2).mean()
    assert 0.6 < hidden < 0.95
    assert (blocks.ids_KN >= 3).all()


def test_fewer_blocks_are_the_beginning_of_more_blocks_with_the_same_masks(tokens_dir: Path, tmp_path: Path) -> None:
    for count in (1, 7, None):
        build_evaluation_set(evaluation_settings(count), tokens_dir, tmp_path / str(count))
    every = load_evaluation_set(tmp_path / "None")
    for count in (1, 7):
        some = load_evaluation_set(tmp_path / str(count))
        assert len(some.ids_KN) == count < len(every.ids_KN)
        assert np.array_equal(some.ids_KN, every.ids_KN[:count])
        assert np.array_equal(some.inputs_KN, every.inputs_KN[:count])
        assert np.array_equal(some.masked_KN, every.masked_KN[:count])
    assert not np.array_equal(every.masked_KN[0], every.masked_KN[1])


def test_a_block_keeps_its_mask_when_another_document_leaves_the_corpus(
    corpus_dir: Path, tokens_dir: Path, tmp_path: Path
) -> None:
    train, held_out = ([d.text for d in read_documents(corpus_dir / f"{side}.jsonl")] for side in ("train", "held_out"))
    fewer = write_corpus(tmp_path / "fewer", train, sorted(held_out, key=content_hash)[1:])
    build_tokens(TokensSettings(tokens=BPE, training_length=16), fewer, fewer)
    masks = []
    for folder in (tokens_dir, fewer):
        build_evaluation_set(evaluation_settings(None), folder, tmp_path)
        blocks = load_evaluation_set(tmp_path)
        masks.append({ids.tobytes(): mask.tolist() for ids, mask in zip(blocks.ids_KN, blocks.masked_KN, strict=True)})
    before, after = masks
    assert 0 < len(after) < len(before)
    assert all(before[block] == mask for block, mask in after.items())


def test_unknown_characters_are_never_evaluation_targets(tmp_path: Path) -> None:
    write_corpus(tmp_path, ["ab" * 100], ["aX" * 100])
    config = TokensConfig(kind="character", vocabulary_size=300)
    build_tokens(TokensSettings(tokens=config, training_length=16), tmp_path, tmp_path)
    assert read_json(tmp_path / "manifest.json")["held_out_unknown_tokens"] == 100
    build_evaluation_set(evaluation_settings(None, rate=0.4), tmp_path, tmp_path)
    blocks = load_evaluation_set(tmp_path)
    assert blocks.masked_KN.sum(axis=1).tolist() == [26, 26, 26]
    assert (blocks.ids_KN[blocks.masked_KN] == 3).all()


def test_too_short_held_out_documents_are_refused_with_the_longest_one(tokens_dir: Path, tmp_path: Path) -> None:
    longest = int(load_held_out_tokens(tokens_dir).lengths.max())
    settings_ = EvaluationSetSettings(lengths=(longest + 1,), mask_rate=0.15, max_blocks=None)
    with pytest.raises(
        UserError, match=f"has {longest + 1} tokens, the longest has {longest}; lower evaluation.lengths"
    ):
        build_evaluation_set(settings_, tokens_dir, tmp_path)
    build_evaluation_set(
        EvaluationSetSettings(lengths=(longest,), mask_rate=0.15, max_blocks=None), tokens_dir, tmp_path
    )
    assert load_evaluation_set(tmp_path).ids_KN.shape == (1, longest)


def test_a_damaged_evaluation_set_is_refused(tokens_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluation.json is missing"):
        load_evaluation_set(tmp_path)
    build_evaluation_set(evaluation_settings(4), tokens_dir, tmp_path)
    masked = read_array(tmp_path / "evaluation_masked.npy")
    write_array(tmp_path / "evaluation_masked.npy", ~masked)
    with pytest.raises(UserError, match=r"evaluation_masked.npy is damaged: its sha256"):
        load_evaluation_set(tmp_path)
    write_array(tmp_path / "evaluation_masked.npy", masked)
    entry = read_json(tmp_path / "evaluation.json")
    write_json(tmp_path / "evaluation.json", {**entry, "lengths": [16, 32]})
    with pytest.raises(UserError, match=r"evaluation.json is damaged: the arrays beside it"):
        load_evaluation_set(tmp_path)


def test_this_stage_does_not_load_torch() -> None:
    # Not tokens.build: the corpus stage that it reads from uses `datasets`, which may load torch by itself.
    modules = "attnscale.tokens.batches, attnscale.tokens.evaluation_set, attnscale.tokens.tokenizer"
    subprocess.run([sys.executable, "-c", f"import sys, {modules}; sys.exit('torch' in sys.modules)"], check=True)
