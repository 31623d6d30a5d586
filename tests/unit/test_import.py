"""Checkpoints from elsewhere: the function of transformers, the protocol of any run, one sentence for what is wrong."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import tokenizers
import torch
import yaml
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, RoFormerConfig, RoFormerForMaskedLM

from attnscale.checkpoint import build
from attnscale.checkpoint.build import import_checkpoint
from attnscale.checkpoint.encoder import load_roformer
from attnscale.checkpoint.shape import read_shape
from attnscale.checkpoint.tokenizer import read_tokenizer
from attnscale.checkpoint.weights import our_weights, read_weights
from attnscale.checksums import checksum_file
from attnscale.config import load_config
from attnscale.errors import UserError
from attnscale.evaluate import count_correct
from attnscale.export import export
from attnscale.finished import load_encoder, read_run
from attnscale.manifest import check_complete, imported_files, refuse_imported, verify
from attnscale.predict import predict
from attnscale.tokens.load import load_evaluation_set, load_held_out_tokens, load_vocabulary
from tests.unit.finished_run import write_run
from tests.unit.test_cli import assert_one_sentence, attnscale, names_in  # noqa: F401

WORDS = ["the", "house", "of", "state", "and", "people", "has", "law", "year", "congress", *"天地玄黄宇宙洪荒"]
SPECIAL = ["[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]"]  # not where a vocabulary of ours has them
LENGTH, LONGEST = 16, 64
ARMS = {
    "as_it_is": {"attention": "attention_o"},
    "log_n": {"weights_of": "as_it_is", "attention": {"name": "attention_e", "base": "training_length"}},
    "clipped": {"weights_of": "as_it_is", "attention": "attention_o", "positions": "clipped"},
    "clipped_log_n": {
        "weights_of": "as_it_is",
        "attention": {"name": "attention_e", "base": "training_length"},
        "positions": "clipped",
    },
}


def roformer(embedding: int = 24, activation: str = "gelu", **changes) -> RoFormerForMaskedLM:
    config = RoFormerConfig(
        vocab_size=40, embedding_size=embedding, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, hidden_act=activation, max_position_embeddings=128, **changes,
    )  # fmt: skip
    torch.manual_seed(0)
    model = RoFormerForMaskedLM(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def word_tokenizer() -> Tokenizer:
    """As BERT has it, with words out of order and one word of the text missing."""
    vocabulary = [WORDS[0], *SPECIAL, *WORDS[1:-1]]
    tokenizer = Tokenizer(
        tokenizers.models.WordPiece({word: number for number, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def save(folder: Path, model: RoFormerForMaskedLM, tokenizer: Tokenizer | None = None) -> Path:
    model.save_pretrained(folder)
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer or word_tokenizer(), unk_token="[UNK]", **names).save_pretrained(
        folder
    )
    return folder


def write_configuration(folder: Path, **changes) -> Path:
    """Text of several documents and the configuration that names it."""
    draw = random.Random(0)
    texts = folder / "texts"
    texts.mkdir(parents=True, exist_ok=True)
    for number in range(8):
        text = " ".join(WORDS[(place + draw.randrange(3)) % len(WORDS)] for place in range(300))
        (texts / f"{number}.txt").write_text(text, encoding="utf-8")
    settings = {
        "name": "mine", "arms": ARMS, "training": {"length": LENGTH},
        "evaluation": {"lengths": [8, 16, 32, LONGEST], "mask_rate": 0.5, "max_blocks": 12},
        "corpus": {
            "sources": [{"kind": "files", "name": "made", "paths": str(texts / "*.txt")}], "held_out_fraction": 0.5,
        },
        "statistics": {"resamples": 200}, "compute": {"threads": 1, "device": "cpu", "precision": "fp32"}, **changes,
    }  # fmt: skip
    path = folder / "mine.yaml"
    path.write_text(
        yaml.safe_dump({key: value for key, value in settings.items() if value is not None}, sort_keys=False)
    )
    return path


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """An import with all that it writes: model of transformers, folder of the run."""
    root = tmp_path_factory.mktemp("import")
    model = roformer()
    save(root / "checkpoint", model)
    run = import_checkpoint(root / "checkpoint", write_configuration(root), results=root / "results")
    return model, run


def scaled(model: RoFormerForMaskedLM, factor: float) -> RoFormerForMaskedLM:
    """The same with all queries multiplied by a factor."""
    copy = roformer()
    copy.load_state_dict(model.state_dict())
    with torch.no_grad():
        for layer in copy.roformer.encoder.layer:
            layer.attention.self.query.weight *= factor
            layer.attention.self.query.bias *= factor
    return copy.eval()


@pytest.mark.parametrize("arm", ["as_it_is", "log_n"])
def test_the_counts_are_those_of_transformers_with_the_text_between_cls_and_sep(imported, arm):
    model, run = imported
    table = pd.read_csv(run / "evaluations" / arm / "seed0.csv")
    order = np.load(run / "tokens" / "checkpoint_ids.npy")
    data = load_evaluation_set(run / "tokens")
    assert set(table["length"]) == {8, 16, 32, 64}
    for length, rows in table.groupby("length"):
        n = length + 2
        theirs = scaled(model, math.log(n) / math.log(LENGTH)) if arm == "log_n" else model
        correct = np.zeros(len(data.ids_KN), dtype=int)
        for block, (ids, inputs, masked) in enumerate(zip(data.ids_KN, data.inputs_KN, data.masked_KN, strict=True)):
            for start in range(0, LONGEST, int(length)):
                window = slice(start, start + int(length))
                row = torch.from_numpy(np.concatenate([[1], order[inputs[window]], [2]]))[None]
                with torch.no_grad():
                    guesses = theirs(input_ids=row).logits[0, 1:-1].argmax(-1).numpy()
                correct[block] += ((guesses == order[ids[window]]) & masked[window]).sum()
        assert rows["correct"].tolist() == correct.tolist()
    assert 0 < table["correct"].sum() < table["total"].sum()


@pytest.mark.parametrize(
    ("embedding", "activation", "positions"), [(24, "gelu", 128), (32, "gelu_new", 512), (64, "relu", 64)]
)
def test_logits_equal_those_of_transformers_whatever_the_sizes(tmp_path, embedding, activation, positions):
    model = roformer(embedding, activation, layer_norm_eps=1e-5, type_vocab_size=4)
    folder = save(tmp_path / "checkpoint", model)
    shape = read_shape(folder)
    tokenizer = read_tokenizer(folder, shape)
    (tmp_path / "run").mkdir()
    record = {"shape": shape.__dict__, "frame": tokenizer.frame, "files": {}}
    (tmp_path / "run" / "checkpoint.json").write_text(json.dumps(record))
    weights = tmp_path / "run" / "model.safetensors"
    safetensors.torch.save_file(our_weights(read_weights(folder, shape), shape, tokenizer.order), weights)
    config = load_config_of(folder, tmp_path, shape)
    ours = load_roformer(config.encoder_settings("as_it_is"), tmp_path / "run", weights)
    order = torch.tensor(tokenizer.order)
    ids_BN = torch.randint(0, 40, (3, 50), generator=torch.Generator().manual_seed(2))
    framed = torch.cat([torch.full((3, 1), 1), order[ids_BN], torch.full((3, 1), 2)], dim=1)
    with torch.no_grad():
        expected = model(input_ids=framed).logits[:, 1:-1]
        logits = ours(ids_BN).view(3, 50, 40)
        some = ours(ids_BN, torch.tensor([0, 49, 50, 149]))
    assert expected.abs().max() > 1
    torch.testing.assert_close(logits, expected[..., order], atol=1e-4, rtol=0)
    torch.testing.assert_close(some, logits.view(150, 40)[[0, 49, 50, 149]], atol=1e-5, rtol=0)


def load_config_of(folder: Path, root: Path, shape):
    from attnscale.checkpoint.settings import checkpoint_config

    return checkpoint_config(write_configuration(root), folder, shape)


def test_the_import_leaves_a_run_with_the_tables_and_the_report_of_any_run(imported):
    _, run = imported
    accuracy = pd.read_csv(run / "accuracy.csv")
    assert list(accuracy["arm"].unique()) == list(ARMS)
    assert accuracy["total"].nunique() == 1
    differences = pd.read_csv(run / "differences.csv")
    pairs = set(zip(differences["arm"], differences["baseline"], strict=True))
    assert {("log_n", "as_it_is"), ("clipped", "as_it_is"), ("clipped_log_n", "clipped")} <= pairs
    counts = accuracy.set_index(["arm", "length"])["accuracy"]
    row = differences.set_index(["arm", "baseline", "length"]).loc[("log_n", "as_it_is", LONGEST)]
    assert row["mean"] == pytest.approx(100 * (counts["log_n", LONGEST] - counts["as_it_is", LONGEST]))
    entropy = pd.read_csv(run / "entropy.csv")
    assert len(entropy) == len(ARMS) * 2 * 4 * 4
    # The two special tokens around a window are keys too.
    assert (entropy["entropy"] < np.log(entropy["length"] + 2)).all()
    long = entropy[entropy["length"] == LONGEST].groupby("arm")["entropy"].mean()
    assert long["log_n"] < long["as_it_is"]
    for name in ("report.md", "index.html", "figures/accuracy_by_length.svg", "figures/repairs.png"):
        assert (run / "report" / name).is_file()
    report = (run / "report" / "report.md").read_text(encoding="utf-8")
    for words in ("log_n minus as_it_is, same weights", "embeddings 24 wide", "model.safetensors: sha256",
                  "between the special tokens", "the checkpoint as it is"):  # fmt: skip
        assert words in report
    assert "ublished" not in report
    assert "trained from the start" not in report
    assert verify(run) > 30
    assert load_config(run / "config.yaml").model.width == 32


def test_ids_are_renumbered_special_ones_first_and_nothing_else_changes(imported):
    _, run = imported
    vocabulary, order = load_vocabulary(run / "tokens"), np.load(run / "tokens" / "checkpoint_ids.npy")
    assert sorted(order) == list(range(40))
    tokens = {number: word for word, number in word_tokenizer().get_vocab().items()}
    special = [tokens.get(number) for number in order[: vocabulary.special_count]]
    assert special[:3] == ["[PAD]", "[UNK]", "[MASK]"]
    # The model has ids that the tokenizer never gives: no text holds them, and none replaces a token.
    assert sorted(filter(None, special)) == sorted(SPECIAL)
    assert special.count(None) == 40 - len(tokens)
    ordinary = list(order[vocabulary.special_count :])
    assert ordinary == sorted(ordinary)
    held_out = load_held_out_tokens(run / "tokens")
    texts = [json.loads(line)["text"] for line in (run / "corpus" / "held_out.jsonl").open(encoding="utf-8")]
    expected = [number for text in texts for number in word_tokenizer().encode(text, add_special_tokens=False).ids]
    assert order[held_out.ids].tolist() == expected
    data = load_evaluation_set(run / "tokens")
    # An unknown token is nobody's target.
    assert (data.ids_KN == vocabulary.unknown_id).any()
    assert not (data.masked_KN & (data.ids_KN < vocabulary.special_count)).any()


def test_the_imported_model_can_be_asked_for_predictions_by_every_arm(imported):
    model, run = imported
    text = "the house of [MASK] and " + "people has law " * 12 + "[MASK]"
    answer = predict(run, text, top=2)
    assert [line.split(",")[0] for line in answer.splitlines() if "seed 0" in line] == list(ARMS)
    ids = word_tokenizer().encode(text).ids
    with torch.no_grad():
        shares = model(input_ids=torch.tensor([ids])).logits[0].double().softmax(-1)
    best = shares[ids.index(4)].topk(2)
    names = {number: word for word, number in word_tokenizer().get_vocab().items()}
    expected = [
        f'{100 * share:6.2f} %  "{names.get(number, "")}"'
        for share, number in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    assert answer.splitlines()[2:4] == [f"    {line}" for line in expected]


def test_a_second_import_and_a_second_report_have_the_same_bytes(imported, tmp_path, attnscale, capsys):  # noqa: F811
    _, run = imported
    before = (run / "manifest.sha256").read_bytes()
    root = run.parents[1]
    again = import_checkpoint(root / "checkpoint", root / "mine.yaml", results=tmp_path / "results")
    assert (again / "manifest.sha256").read_bytes() == before
    capsys.readouterr()
    code, _, err = attnscale("report", again)
    assert (code, err) == (0, "")
    assert (again / "manifest.sha256").read_bytes() == before
    table = again / "accuracy.csv"
    right = table.read_bytes()
    table.write_bytes(right.replace(b"1", b"2", 1))
    code, _, err = attnscale("report", again)
    assert code == 1
    assert f"{table} and its checksum" in err
    # Into its own folder an import may go again.
    assert import_checkpoint(root / "checkpoint", root / "mine.yaml", results=tmp_path / "results") == again
    assert table.read_bytes() == right
    assert str(tmp_path) not in (again / "report" / "report.md").read_text(encoding="utf-8")


def older(folder: Path, model: RoFormerForMaskedLM, tokenizer_class: str = "BertTokenizer") -> Path:
    """As the first checkpoints were: weights of torch, gamma and beta, a vocabulary in lines."""
    folder.mkdir()
    state = dict(model.state_dict())
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value.clone()
        for name, value in state.items()
    }
    torch.save(renamed, folder / "pytorch_model.bin")
    model.config.save_pretrained(folder)
    vocabulary = sorted(word_tokenizer().get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in vocabulary), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class}))
    return folder


def test_an_older_checkpoint_is_read_by_transformers_and_counts_the_same(imported, tmp_path):
    model, run = imported
    folder = older(tmp_path / "older", model)
    again = import_checkpoint(folder, write_configuration(tmp_path), results=tmp_path / "results")
    assert (again / "accuracy.csv").read_bytes() == (run / "accuracy.csv").read_bytes()
    with pytest.raises(UserError, match=r"without tokenizer\.json"):
        predict(again, "the [MASK]")


def test_without_transformers_a_tokenizer_json_is_enough_and_a_vocab_txt_is_not(imported, tmp_path):
    model, run = imported
    code = (
        "import sys, pathlib; sys.modules['transformers'] = None\n"
        "from attnscale.checkpoint.shape import read_shape\n"
        "from attnscale.checkpoint.tokenizer import read_tokenizer\n"
        "from attnscale.errors import UserError\n"
        "for folder in map(pathlib.Path, sys.argv[1:]):\n"
        "    try:\n        print(read_tokenizer(folder, read_shape(folder)).order[:3])\n"
        "    except UserError as error:\n        print(error)\n"
    )
    folders = [str(run.parents[1] / "checkpoint"), str(older(tmp_path / "older", model))]
    done = subprocess.run([sys.executable, "-c", code, *folders], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "(3, 5, 4)"
    assert "transformers has to read its vocab.txt; install it" in second


@pytest.mark.skipif(find_spec("rjieba") is not None, reason="rjieba is installed")
def test_a_chinese_tokenizer_names_the_package_that_it_needs(imported, tmp_path):
    folder = older(tmp_path / "older", imported[0], "RoFormerTokenizer")
    with pytest.raises(UserError, match=r"needs one more package: .*rjieba"):
        read_tokenizer(folder, read_shape(folder))


@pytest.mark.skipif(find_spec("rjieba") is None, reason="needs rjieba, which reads RoFormer's Chinese vocabularies")
def test_a_chinese_tokenizer_gives_the_ids_that_transformers_gives(imported, tmp_path):
    from transformers import AutoTokenizer

    folder = older(tmp_path / "older", imported[0], "RoFormerTokenizer")
    tokenizer = read_tokenizer(folder, read_shape(folder))
    text = "天地玄黄宇宙洪荒 the house"
    expected = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.encode([text]) == [expected]
    assert len(expected) > 8


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    state = safetensors.torch.load_file(path)
    change(state)
    safetensors.torch.save_file(state, path, {"format": "pt"})


def without_mask(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("[MASK]", "[MUSK]"))


def cut_weights(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def cut_vocabulary(state: dict[str, torch.Tensor], size: int) -> None:
    for name in (WORD, "cls.predictions.bias"):
        state[name] = state[name][:size].clone()


def torch_weights(folder: Path, data: bytes) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(data)


WORD, KEY = "roformer.embeddings.word_embeddings.weight", "roformer.encoder.layer.1.attention.self.key.weight"
DAMAGES = {
    "another architecture": (lambda f: edit_config(f, model_type="bert"), ["config.json", "'bert'", "only RoFormer"]),
    "rotated values": (lambda f: edit_config(f, rotary_value=True), ["rotates its values", "rotary_value"]),
    "a decoder": (lambda f: edit_config(f, is_decoder=True), ["is a decoder"]),
    "version 2": (lambda f: edit_config(f, use_bias=False), ["no biases", "RoFormer v2"]),
    "an unknown activation": (lambda f: edit_config(f, hidden_act="swish7"), ["'swish7'", "gelu_new"]),
    "odd heads": (lambda f: edit_config(f, num_attention_heads=3), ["3 heads"]),
    "no number of layers": (lambda f: edit_config(f, num_hidden_layers="two"), ["num_hidden_layers", "'two'"]),
    "more layers than weights": (
        lambda f: edit_config(f, num_hidden_layers=3),
        ["no tensor", "layer.2.", "RoFormerForMaskedLM"],
    ),
    "another size": (lambda f: edit_config(f, intermediate_size=64), ["shape (48, 32)", "asks for (64, 32)"]),
    "no config": (lambda f: (f / "config.json").unlink(), ["config.json is missing"]),
    "no json": (lambda f: (f / "config.json").write_text("{"), ["config.json is no JSON map"]),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ["neither model.safetensors nor pytorch_model.bin"]),
    "weights cut short": (cut_weights, ["model.safetensors is damaged"]),
    "no head": (
        lambda f: edit_weights(f, lambda s: s.pop("cls.predictions.transform.dense.weight")),
        ["no tensor cls.predictions.transform.dense.weight"],
    ),
    "not finite": (lambda f: edit_weights(f, lambda s: s[KEY].fill_(math.nan)), [KEY, "not finite"]),
    "a decoder of its own": (
        lambda f: edit_weights(f, lambda s: s.update({"cls.predictions.decoder.weight": s[WORD] + 1})),
        ["decoder", "tied"],
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), ["neither tokenizer.json nor vocab.txt"]),
    "a damaged tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), ["tokenizer.json is no tokenizer"]),
    "a tokenizer without mask": (without_mask, ["has no [MASK]", "mask_token"]),
    "more weights than layers": (lambda f: edit_config(f, num_hidden_layers=1), ["layer.1.", "says 1 layers"]),
    "other heads": (
        lambda f: edit_config(f, num_attention_heads=2),
        ["positions", "(128, 8)", "16 numbers", "2 heads"],
    ),
    "whole numbers": (
        lambda f: edit_weights(f, lambda s: s.update({KEY: s[KEY].to(torch.int8)})),
        [KEY, "type int8", "floating point"],
    ),
    "a vocabulary of other weights": (
        lambda f: edit_config(f, vocab_size=300_000_000),
        ["shape (40, 24)", "asks for (300000000, 24)"],
    ),
    "a model beyond all sizes": (
        lambda f: edit_config(f, hidden_size=65536, num_hidden_layers=1000),
        ["config.json", "width must be at most 16384"],
    ),
    "nested json": (lambda f: (f / "config.json").write_text("[" * 100_000), ["config.json is no JSON map"]),
    "weights that are text": (lambda f: torch_weights(f, b"hello world"), ["pytorch_model.bin is damaged"]),
    "weights that are a web page": (lambda f: torch_weights(f, b"Not Found"), ["pytorch_model.bin is damaged"]),
    "weights of torch cut short": (
        lambda f: torch_weights(f, b"PK\3\4" + b"\0" * 999),
        ["pytorch_model.bin is damaged"],
    ),
    "a tokenizer of another model": (
        lambda f: (edit_config(f, vocab_size=20), edit_weights(f, lambda s: cut_vocabulary(s, 20))),
        ["ids up to", "only 20"],
    ),
    "nothing": (shutil.rmtree, ["is no folder"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_wrong_with_a_checkpoint_is_told_in_one_sentence_before_anything_is_written(
    imported, attnscale, tmp_path, monkeypatch, damage  # noqa: F811
):  # fmt: skip
    _, run = imported
    folder = shutil.copytree(run.parents[1] / "checkpoint", tmp_path / "checkpoint")
    change, words = DAMAGES[damage]
    change(folder)
    write_configuration(tmp_path / "configuration")
    monkeypatch.chdir(tmp_path)
    code, out, err = attnscale("import", "hf", folder, "--configfile", "configuration/mine.yaml")
    assert out == ""
    assert_one_sentence(code, err, *words)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"preset": "small"}}, ["model:", "config.json"]),
        ({"tokens": {"kind": "character"}}, ["tokens:", "own tokenizer"]),
        ({"seeds": [1]}, ["seeds:", "leave it out"]),
        ({"training": None}, ["training:", "length", "128"]),
        ({"training": {"length": 16, "tokens": 10}}, ["training:", "length alone"]),
        ({"arms": {"a": {"attention": "attention_e"}}}, ["arms:", "attention_o"]),
        ({"arms": {"a": {"attention": "attention_o"}, "b": {"attention": "attention_o"}}}, ["arms:", "weights_of"]),
        ({"arms": {"a": {"attention": "attention_o", "positions": "band"}}}, ["arms:", "nothing else"]),
        ({"evaluation": {"lengths": [16, 40]}}, ["40"]),
        ({"evaluation": {"lengths": [16, 4096]}}, ["no held-out document has 4096 tokens"]),
    ],
)
def test_what_is_wrong_with_the_configuration_is_told_in_one_sentence(
    imported, attnscale, tmp_path, monkeypatch, changes, words  # noqa: F811
):  # fmt: skip
    configfile = write_configuration(tmp_path, **changes)
    monkeypatch.chdir(tmp_path)
    code, _, err = attnscale("import", "hf", imported[1].parents[1] / "checkpoint", "--configfile", configfile)
    assert_one_sentence(code, err, *words)


def test_the_arms_are_the_model_as_it_is_and_log_n_unless_the_file_names_others(imported, tmp_path):
    folder = imported[1].parents[1] / "checkpoint"
    from attnscale.checkpoint.settings import checkpoint_config

    config = checkpoint_config(write_configuration(tmp_path, arms=None), folder, read_shape(folder))
    assert list(config.arms) == ["checkpoint", "checkpoint_log_n"]
    assert config.trained_arms == ("checkpoint",)


def test_an_import_that_fails_or_is_stopped_leaves_what_was_there(imported, attnscale, tmp_path, monkeypatch):  # noqa: F811
    checkpoint = imported[1].parents[1] / "checkpoint"
    monkeypatch.chdir(tmp_path)
    arguments = ("import", "hf", checkpoint, "--configfile", "mine.yaml")
    write_configuration(tmp_path, evaluation={"lengths": [16, 4096]})
    assert_one_sentence(*attnscale(*arguments)[::2], "no held-out document has 4096 tokens")
    assert names_in(tmp_path / "results") == []
    shutil.copytree(imported[1], tmp_path / "results" / "mine")
    for changes in (
        {"evaluation": {"lengths": [16, 4096]}},
        {"corpus": {"sources": [{"kind": "files", "name": "made", "paths": "none/*.txt"}]}},
    ):
        write_configuration(tmp_path, **changes)
        assert attnscale(*arguments)[0] == 1
    write_configuration(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(build, "build_checkpoint_report", lambda *given: os.kill(os.getpid(), signal.SIGTERM))
        code, _, err = attnscale(*arguments)
    assert (code, err.splitlines()[-1]) == (143, "error: stopped by SIGTERM; run the same command again")
    assert names_in(tmp_path / "results") == ["mine"]
    assert attnscale("verify", "results/mine")[0] == 0


def test_another_checkpoint_does_not_take_the_place_of_an_import(imported, attnscale, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    shutil.copytree(imported[1], tmp_path / "results" / "mine")
    write_configuration(tmp_path)
    other = shutil.copytree(imported[1].parents[1] / "checkpoint", tmp_path / "other")
    edit_weights(other, lambda state: state[KEY].mul_(2))
    arguments = ("import", "hf", other, "--configfile", "mine.yaml")
    assert_one_sentence(*attnscale(*arguments)[::2], "results/mine holds another imported", "remove results/mine")
    (tmp_path / "results" / "mine" / "checkpoint.json").write_text("{}")
    assert_one_sentence(*attnscale(*arguments)[::2], "results/mine holds another imported")


def test_the_manifest_of_an_import_covers_all_that_it_wrote(imported):
    _, run = imported
    written = sorted(str(path.relative_to(run)) for path in run.rglob("[!.]*") if path.is_file())
    rest = ["environment.json", "manifest.sha256"]
    assert [name for name in written if name not in rest] == imported_files(run, read_run(run))
    assert all(checksum_file(run / name).is_file() for name in written if name != "manifest.sha256")
    check_complete(run)


def test_the_pipeline_keeps_out_of_a_folder_that_holds_an_import(imported):
    _, run = imported
    with pytest.raises(UserError, match=r"mine holds an imported checkpoint; give the configuration another name"):
        refuse_imported(run)
    refuse_imported(run.parent / "other")


def damage_record(shape=(), **changes):
    def damage(run: Path) -> None:
        record = json.loads((run / "checkpoint.json").read_text())
        record |= {"shape": {**record["shape"], **dict(shape)}, **changes}
        (run / "checkpoint.json").write_text(json.dumps(record))

    return damage


def flip_table(path: Path) -> None:
    path.write_text(path.read_text().replace("1", "2", 1))


def swap_ids(run: Path) -> None:
    path = run / "tokens" / "checkpoint_ids.npy"
    order = np.load(path)
    np.save(path, order[::-1])


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (damage_record(shape={"norm_eps": 0.5}), "checkpoint.json"),
        (swap_ids, "tokens/checkpoint_ids.npy"),
        (lambda run: flip_table(run / "accuracy.csv"), "accuracy.csv"),
    ],
    ids=["norm", "ids", "table"],
)
@pytest.mark.parametrize("left", ["checksums", "manifest"])
def test_a_damaged_import_is_neither_asked_nor_reported(imported, attnscale, tmp_path, damage, file, left):  # noqa: F811
    run = shutil.copytree(imported[1], tmp_path / "mine")
    for path in [run / "manifest.sha256"] if left == "checksums" else list(run.rglob(".*.sha256")):
        path.unlink()
    damage(run)
    words = [str(run / file), "put back the right file"]
    if file != "accuracy.csv":
        assert_one_sentence(*attnscale("predict", run, "the [MASK]")[::2], *words)
    assert_one_sentence(*attnscale("report", run)[::2], *words)


@pytest.mark.parametrize(
    "damage",
    [
        damage_record(shape={"activation": "tanh"}),
        damage_record(shape={"norm_eps": "small"}),
        damage_record(shape={"heads": 0}),
        damage_record(frame=[1, 4000]),
        damage_record(frame=[1]),
        lambda run: (run / "checkpoint.json").write_text('{"shape": 3}'),
        lambda run: (run / "checkpoint.json").write_text("{}"),
        lambda run: (run / "checkpoint.json").write_text("[" * 100_000),
        lambda run: (run / "checkpoint.json").unlink(),
        swap_ids,
    ],
)
def test_a_record_of_an_import_that_makes_no_sense_ends_in_one_sentence(imported, attnscale, tmp_path, damage):  # noqa: F811
    run = shutil.copytree(imported[1], tmp_path / "mine")
    for path in (run / "manifest.sha256", *run.rglob(".*.sha256")):
        path.unlink()
    damage(run)
    name = "checkpoint_ids.npy is damaged" if damage is swap_ids else "checkpoint.json is "
    assert_one_sentence(*attnscale("predict", run, "the [MASK]")[::2], name)
    if damage is not swap_ids and (run / "checkpoint.json").exists():
        assert_one_sentence(*attnscale("report", run)[::2], name, "import the checkpoint again")


def test_a_run_of_that_name_which_was_trained_is_left_alone(imported, attnscale, tmp_path, monkeypatch):  # noqa: F811
    write_configuration(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "mine").mkdir(parents=True)
    (tmp_path / "results" / "mine" / "accuracy.csv").write_text("precious")
    code, _, err = attnscale("import", "hf", imported[1].parents[1] / "checkpoint", "--configfile", "mine.yaml")
    assert_one_sentence(code, err, "results/mine", "another name")
    assert names_in(tmp_path / "results" / "mine") == ["accuracy.csv"]


def test_what_leaves_as_a_roformer_comes_back_as_the_same_model(tokens_dir, tmp_path):
    run = tmp_path / "run"
    arms = {"plain": ARMS["as_it_is"], "log_n": {**ARMS["log_n"], "weights_of": "plain"}}
    write_run(run, tokens_dir, arms=arms, model={"recipe": "faithful"})
    export(run, tmp_path / "out", arm="plain")
    configfile = write_configuration(tmp_path, arms=arms)
    again = import_checkpoint(tmp_path / "out", configfile, results=tmp_path / "results")
    # A tokenizer of ours puts nothing around a text, and has its special tokens in front already.
    assert json.loads((again / "checkpoint.json").read_text())["frame"] is None
    vocabulary = load_vocabulary(run / "tokens")
    assert load_vocabulary(again / "tokens") == vocabulary
    assert np.load(again / "tokens" / "checkpoint_ids.npy").tolist() == list(range(vocabulary.size))
    data, cpu = load_evaluation_set(again / "tokens"), torch.device("cpu")
    for arm in ("plain", "log_n"):
        table = pd.read_csv(again / "evaluations" / arm / "seed0.csv")
        encoder = load_encoder(run, read_run(run), arm, 0)
        for length, rows in table.groupby("length"):
            expected = count_correct(encoder, data, int(length), 1024, cpu, bf16=False)
            assert (rows["correct"].tolist(), rows["total"].tolist()) == expected
    text = "the house of the [MASK] and law"
    assert predict(again, text, arm="log_n") == predict(run, text, arm="log_n")


def test_an_imported_checkpoint_does_not_leave_again(imported, attnscale, tmp_path):  # noqa: F811
    code, _, err = attnscale("export", imported[1], tmp_path / "out", "--arm", "log_n")
    assert_one_sentence(code, err, "imported checkpoint")
