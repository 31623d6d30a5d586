"""Predictions: what the encoder says, arm by arm, told in plain text, and one sentence for what cannot be."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch

from attnscale.checksums import write_checksums
from attnscale.config import TokensConfig
from attnscale.errors import UserError
from attnscale.finished import RunTokenizer, load_encoder, load_run_tokenizer, read_run
from attnscale.predict import masked_ids, predict
from attnscale.tokens.load import load_vocabulary
from attnscale.tokens.tokenizer import train_tokenizer
from attnscale.tokens.vocabulary import Vocabulary
from tests.unit.finished_run import write_run
from tests.unit.test_cli import assert_one_sentence, attnscale  # noqa: F401

ARMS = {
    "plain": {"attention": "attention_o"},
    "learned": {"attention": "ssmax", "seeds": [1]},
    "log_n": {"weights_of": "plain", "attention": {"name": "attention_e", "base": "training_length"}},
    "clipped": {"weights_of": "plain", "attention": "attention_o", "positions": "clipped"},
    "frozen": {"weights_of": "plain", "attention": "acl2022", "n_at_most": "training_length"},
}
TEXT = "the people of the [MASK] and the [MASK] of state. " + "the house of law and the year of congress " * 4


@pytest.fixture(scope="module")
def run(tokens_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict") / "run"
    write_run(folder, tokens_dir, arms=ARMS, seeds=[0, 1])
    return folder


def blocks_of(answer: str) -> dict[str, list[list[tuple[float, str]]]]:
    """By arm, for each [MASK], probabilities in percent and tokens."""
    found: dict[str, list[list[tuple[float, str]]]] = {}
    for line in answer.splitlines():
        if heading := re.fullmatch(r"(\w+), seed \d+, \d+ tokens", line):
            found[heading[1]] = []
        elif re.fullmatch(r"  \[MASK\] \d+", line):
            found[list(found)[-1]].append([])
        else:
            share, token = re.fullmatch(r" +([\d.]+) %  (.*)", line).groups()
            found[list(found)[-1]][-1].append((float(share), json.loads(token)))
    return found


def test_every_arm_says_what_its_encoder_computes_with_its_own_settings_at_test_time(run):
    found = blocks_of(predict(run, TEXT, top=4))
    assert set(found) == set(ARMS)
    config, tokenizer, vocabulary = read_run(run), load_run_tokenizer(run), load_vocabulary(run / "tokens")
    ids_BN = torch.tensor([masked_ids(tokenizer, vocabulary, TEXT)])
    assert ids_BN.shape[1] > 2 * config.training.length
    for arm, masks in found.items():
        model = load_encoder(run, config, arm, 1 if arm == "learned" else 0)
        with torch.no_grad():
            shares_NV = model(ids_BN).double().softmax(dim=1)
        places = (ids_BN[0] == vocabulary.mask_id).nonzero()[:, 0].tolist()
        assert len(masks) == len(places) == 2
        for block, place in zip(masks, places, strict=True):
            best = shares_NV[place].topk(4)
            assert [share for share, _ in block] == [round(100 * float(value), 2) for value in best.values]
            assert [token for _, token in block] == [tokenizer.token(index) for index in best.indices.tolist()]
    # All read beyond the training length, where nothing but the scale and the positions tells them apart.
    assert len({json.dumps(found[arm]) for arm in ("plain", "log_n", "clipped", "frozen")}) == 4


def test_one_arm_and_one_seed_can_be_asked_for(run):
    whole = predict(run, TEXT, top=2)
    assert predict(run, TEXT, arm="log_n", top=2) in whole
    other = predict(run, TEXT, arm="plain", seed=1, top=2)
    assert other.startswith("plain, seed 1, ")
    assert blocks_of(other)["plain"] != blocks_of(whole)["plain"]


def test_a_blank_before_mask_is_part_of_what_is_predicted_in_a_byte_level_vocabulary_only():
    text = "the house of the people and the house of law"
    for kind, size in (("bpe", 300), ("character", 300)):
        trained = train_tokenizer(TokensConfig(kind=kind, vocabulary_size=size), [text] * 4)
        tokenizer, vocabulary = RunTokenizer(trained), Vocabulary(size=trained.get_vocab_size())
        ids = masked_ids(tokenizer, vocabulary, "of the [MASK] of")
        masked = ids.index(vocabulary.mask_id)
        # In text, what lies around the mask has the very same ids.
        assert ids[:masked] == tokenizer.encode("of the" if kind == "bpe" else "of the ")
        assert ids[masked + 1 :] == tokenizer.encode(" of")
    assert masked_ids(tokenizer, vocabulary, "[MASK][MASK]") == [vocabulary.mask_id] * 2


def test_the_text_is_cleaned_as_the_corpus_was(run):
    tokenizer, vocabulary = load_run_tokenizer(run), load_vocabulary(run / "tokens")
    decomposed = masked_ids(tokenizer, vocabulary, "\ufeffcafe\u0301 [MASK] \r\nx\n")
    assert decomposed == masked_ids(tokenizer, vocabulary, "caf\u00e9 [MASK]\nx")


def test_unknown_characters_are_counted(tokens_dir, run, tmp_path):
    from attnscale.files import sha256_of

    tokenizer = train_tokenizer(TokensConfig(kind="character", vocabulary_size=300), ["abc"])
    copy = tmp_path / "run"
    write_run(copy, tokens_dir, arms={"plain": ARMS["plain"]})
    path, manifest = copy / "tokens" / "tokenizer.json", copy / "tokens" / "manifest.json"
    old = sha256_of(path)
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    manifest.write_text(manifest.read_text().replace(old, sha256_of(path)))
    assert predict(copy, "ab?[MASK]!c").startswith("note: 2 of 6 tokens are not in the vocabulary\nplain, seed 0, 6")


def test_the_answer_is_the_same_whenever_it_is_asked(run):
    command = [sys.executable, "-m", "attnscale.cli", "predict", str(run), TEXT, "--arm", "log_n"]
    answers = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert answers == {predict(run, TEXT, arm="log_n")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["the house of law"], ["no [MASK]"]),
        (["[MASK]", "--arm", "log_m"], ["--arm log_m", "did you mean log_n"]),
        (["[MASK]", "--arm", "learned", "--seed", "0"], ["--seed 0", "learned", "it has 1"]),
    ],
    ids=["no mask", "no such arm", "no such seed"],
)
def test_what_cannot_be_predicted_ends_in_one_sentence(attnscale, run, arguments, words):  # noqa: F811
    code, out, err = attnscale("predict", run, *arguments)
    assert out == ""
    assert_one_sentence(code, err, *words)


def test_a_folder_that_is_no_run_ends_in_one_sentence(attnscale, run, tmp_path):  # noqa: F811
    code, _, err = attnscale("predict", tmp_path, "[MASK]")
    assert_one_sentence(code, err, "config.yaml", str(tmp_path))


def test_a_damaged_configuration_or_vocabulary_is_no_prediction(tokens_dir, tmp_path, attnscale):  # noqa: F811
    folder = tmp_path / "run"
    write_run(folder, tokens_dir, arms={"plain": ARMS["plain"]})
    names = ["config.yaml", "tokens/manifest.json"]
    write_checksums(folder / name for name in names)
    for name, old, new in zip(names, ("rope_theta: 1", '"mask_id": 2'), ("rope_theta: 3", '"mask_id": 1'), strict=True):
        right = (folder / name).read_text()
        assert old in right
        (folder / name).write_text(right.replace(old, new))
        for command in (["predict", folder, TEXT], ["export", folder, tmp_path / "out", "--arm", "plain"]):
            told = f"{folder / name} and its checksum"
            assert_one_sentence(*attnscale(*command)[::2], told)
        (folder / name).write_text(right)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content",
    ["[]", "7", "null", "{}", '"x"', '{"files": 3}', "[" * 100_000, "MASK 299", "MASK -1", "PAD 3", "UNKNOWN true"],
    ids=lambda content: content[:12],
)
def test_a_record_of_tokens_that_makes_no_sense_ends_in_one_sentence(tokens_dir, tmp_path, attnscale, content):  # noqa: F811
    folder = tmp_path / "run"
    write_run(folder, tokens_dir, arms={"plain": ARMS["plain"]})
    path = folder / "tokens" / "manifest.json"
    if content[0].isupper():
        key, value = content.split()
        content = json.dumps({**json.loads(path.read_text()), f"{key.lower()}_id": json.loads(value)})
    path.write_text(content)
    assert_one_sentence(*attnscale("predict", folder, TEXT)[::2], f"{path} is ", "run the pipeline again")


def test_a_text_that_is_no_utf8_ends_in_one_sentence(attnscale, run):  # noqa: F811
    assert_one_sentence(*attnscale("predict", run, "caf\udce9 [MASK]")[::2], "the text is not UTF-8")


def test_of_a_run_that_is_half_done_the_trained_arms_are_named(tokens_dir, tmp_path):
    folder = tmp_path / "run"
    write_run(folder, tokens_dir, arms=ARMS, seeds=[0, 1])
    shutil.rmtree(folder / "runs" / "learned")
    with pytest.raises(
        UserError, match=r"learned/seed1/model\.safetensors is missing, so learned is not .*--arm: plain,"
    ):
        predict(folder, TEXT)
    assert predict(folder, TEXT, arm="log_n").startswith("log_n, seed 0")
    shutil.rmtree(folder / "runs" / "plain")
    with pytest.raises(UserError, match=r"so plain is not trained yet; run the pipeline first$"):
        predict(folder, TEXT)


@pytest.mark.parametrize("name", ["runs/plain/seed0/model.safetensors", "tokens/tokenizer.json"])
def test_a_changed_byte_in_weights_or_tokenizer_is_no_prediction(tokens_dir, tmp_path, name):
    folder = tmp_path / "run"
    write_run(folder, tokens_dir, arms={"plain": ARMS["plain"]})
    data = bytearray((folder / name).read_bytes())
    data[-9] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(UserError, match=name):
        predict(folder, "the [MASK]")
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        predict(folder, "the [MASK]")
