"""Exports: transformers loads them and computes the arm's logits; what cannot leave says so in one sentence."""

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForMaskedLM, AutoTokenizer

from attnscale.attention import registered
from attnscale.checksums import checksum_file, write_checksums
from attnscale.errors import UserError
from attnscale.export import export
from attnscale.finished import RunTokenizer, load_encoder, load_run_tokenizer, read_run
from attnscale.predict import masked_ids
from attnscale.tokens.load import load_vocabulary
from tests.unit.conftest import LENGTH
from tests.unit.finished_run import write_run
from tests.unit.test_cli import assert_one_sentence, attnscale, names_in  # noqa: F401

# Others of this process register attentions of their own.
PACKAGE = Path(__file__).parents[2] / "src" / "attnscale" / "attention"
VARIANTS = [name for name in registered() if (PACKAGE / f"{name}.py").is_file()]
BY_POSITION = {"log_position"}
SAME_AT_EVERY_LENGTH = "attention_o"
FOLDED_AT = 48
ATOL = 1e-4
EXTRA = {
    "frozen": {"weights_of": "attention_o", "attention": "attention_e", "n_at_most": "training_length"},
    "at_least": {"weights_of": "ssmax", "attention": "ssmax", "n_at_least": 24},
    "at_test": {"weights_of": "attention_o", "attention": {"name": "attention_e", "base": "training_length"}},
    "band": {"weights_of": "attention_o", "attention": "attention_o", "positions": "band"},
    "clipped": {"weights_of": "attention_o", "attention": "attention_o", "positions": "clipped"},
    "ntk": {"weights_of": "attention_o", "attention": "attention_o", "positions": "ntk"},
}
LEAVING = [name for name in [*VARIANTS, "frozen", "at_least", "at_test"] if name not in BY_POSITION]


@pytest.fixture(scope="module")
def runs(tokens_dir, tmp_path_factory):
    """One run per recipe with every registered attention, by name of the recipe."""
    folder = tmp_path_factory.mktemp("export")
    arms = {**{name: {"attention": name} for name in VARIANTS}, **EXTRA}
    for recipe in ("fast", "faithful"):
        write_run(folder / recipe, tokens_dir, arms=arms, model={"recipe": recipe})
    return {recipe: folder / recipe for recipe in ("fast", "faithful")}


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory, monkeypatch):
    """Code that travels is copied into a cache before it is imported; here into one that is thrown away."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
    monkeypatch.setattr(sys, "path", list(sys.path))


def load(folder: Path) -> torch.nn.Module:
    travels = (folder / "modeling_attnscale.py").is_file()
    model, info = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=travels, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def ours(run: Path, arm: str, ids_BN: torch.Tensor, mask_BN: torch.Tensor | None = None) -> torch.Tensor:
    encoder = load_encoder(run, read_run(run), arm, 0)
    with torch.no_grad():
        return encoder(ids_BN, key_mask_BN=mask_BN).view(*ids_BN.shape, -1)


def theirs(model: torch.nn.Module, ids_BN: torch.Tensor, mask_BN: torch.Tensor | None = None) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids_BN, attention_mask=None if mask_BN is None else mask_BN.long()).logits


def random_ids(run: Path, rows: int, length: int) -> torch.Tensor:
    size = load_vocabulary(run / "tokens").size
    return torch.randint(2, size, (rows, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("recipe", ["fast", "faithful"])
@pytest.mark.parametrize("arm", LEAVING)
def test_folded_at_a_length_the_logits_are_those_of_the_arm_at_that_length(runs, tmp_path, recipe, arm):
    run, folder = runs[recipe], tmp_path / "out"
    told = export(run, folder, arm=arm, length=FOLDED_AT)
    assert (folder / "modeling_attnscale.py").is_file() == (recipe == "fast")
    model = load(folder)
    assert type(model).__name__ == ("RoFormerForMaskedLM" if recipe == "faithful" else "AttnscaleForMaskedLM")
    ids_BN = random_ids(run, 3, FOLDED_AT)
    expected = ours(run, arm, ids_BN)
    assert expected.abs().max() > 1
    torch.testing.assert_close(theirs(model, ids_BN), expected, atol=ATOL, rtol=0)
    card = (folder / "README.md").read_text(encoding="utf-8")
    varies = arm != SAME_AT_EVERY_LENGTH
    assert (f"folded at n = {FOLDED_AT}" in card) == varies
    assert (f"folded in at n = {FOLDED_AT}" in told) == varies
    # And at another length they are not, unless the scale is the same there.
    other = random_ids(run, 1, LENGTH)
    same = torch.allclose(theirs(model, other), ours(run, arm, other), atol=ATOL, rtol=0)
    assert same or varies


@pytest.mark.parametrize("recipe", ["fast", "faithful"])
@pytest.mark.parametrize("arm", LEAVING)
def test_without_a_length_the_scale_follows_the_number_of_tokens_as_that_of_the_arm(runs, tmp_path, recipe, arm):
    run, folder = runs[recipe], tmp_path / "out"
    export(run, folder, arm=arm)
    plain = recipe == "faithful" and arm == SAME_AT_EVERY_LENGTH
    assert (folder / "modeling_attnscale.py").is_file() != plain
    model = load(folder)
    for length in (5, LENGTH, 200):
        ids_BN = random_ids(run, 2, length)
        torch.testing.assert_close(theirs(model, ids_BN), ours(run, arm, ids_BN), atol=ATOL, rtol=0)
    # Rows of several lengths together: n is that of each row, and padding changes nothing.
    mask_BN = torch.ones(2, 200, dtype=torch.bool)
    mask_BN[1, 29:] = False
    expected = ours(run, arm, ids_BN, mask_BN)
    torch.testing.assert_close(theirs(model, ids_BN, mask_BN)[mask_BN], expected[mask_BN], atol=ATOL, rtol=0)


@pytest.mark.parametrize("recipe", ["fast", "faithful"])
def test_the_tokenizer_gives_the_ids_of_the_run_and_knows_mask(runs, tmp_path, recipe):
    run, folder = runs[recipe], tmp_path / "out"
    export(run, folder, arm="attention_e", length=LENGTH)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    original, vocabulary = load_run_tokenizer(run), load_vocabulary(run / "tokens")
    text = "the house of the people\n and  CONGRESS, é 中"
    assert tokenizer(text)["input_ids"] == original.encode(text)
    assert tokenizer.decode(original.encode(text)) == text
    masked = "the [MASK] of the [MASK] and law"
    assert tokenizer(masked)["input_ids"] == masked_ids(original, vocabulary, masked)
    assert (tokenizer.mask_token_id, tokenizer.pad_token_id) == (vocabulary.mask_id, vocabulary.pad_id)
    assert tokenizer.unk_token_id == vocabulary.unknown_id
    assert len(tokenizer) == vocabulary.size
    batch = tokenizer(["the house", masked], padding=True, return_tensors="pt")
    assert set(batch) == {"input_ids", "attention_mask"}
    assert load(folder)(**batch).logits.shape == (*batch["input_ids"].shape, vocabulary.size)


def test_a_vocabulary_of_characters_leaves_too(tmp_path, tokens_dir):
    from attnscale.config import TokensConfig
    from attnscale.files import sha256_of
    from attnscale.tokens.tokenizer import train_tokenizer

    run = tmp_path / "run"
    write_run(run, tokens_dir, arms={"o": {"attention": "attention_o"}})
    path, manifest = run / "tokens" / "tokenizer.json", run / "tokens" / "manifest.json"
    old = sha256_of(path)
    original = train_tokenizer(TokensConfig(kind="character", vocabulary_size=300), ["天地玄黄 宇宙洪荒\n"])
    path.write_text(original.to_str(), encoding="utf-8")
    manifest.write_text(manifest.read_text().replace(old, sha256_of(path)))
    export(run, tmp_path / "out", arm="o")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    vocabulary = load_vocabulary(run / "tokens")
    masked = "天 [MASK]玄x[MASK]"
    assert tokenizer(masked)["input_ids"] == masked_ids(RunTokenizer(original), vocabulary, masked)
    assert tokenizer.decode(tokenizer("天地 玄黄")["input_ids"]) == "天地 玄黄"


def test_another_base_of_frequencies_travels_with_its_code(tmp_path, tokens_dir):
    run = tmp_path / "run"
    write_run(run, tokens_dir, arms={"o": {"attention": "attention_o"}},
              model={"recipe": "faithful", "rope_theta": 500.0})  # fmt: skip
    export(run, tmp_path / "out", arm="o")
    model, ids_BN = load(tmp_path / "out"), random_ids(run, 2, 64)
    assert type(model).__name__ == "AttnscaleForMaskedLM"
    torch.testing.assert_close(theirs(model, ids_BN), ours(run, "o", ids_BN), atol=ATOL, rtol=0)


def test_the_loss_is_that_of_the_labels_and_a_saved_copy_loads_again(runs, tmp_path):
    export(runs["fast"], tmp_path / "out", arm="attention_e")
    model, ids_BN = load(tmp_path / "out"), random_ids(runs["fast"], 2, 20)
    labels = torch.full_like(ids_BN, -100)
    labels[:, 3] = ids_BN[:, 3]
    answer = model(input_ids=ids_BN, labels=labels)
    expected = torch.nn.functional.cross_entropy(answer.logits[:, 3], ids_BN[:, 3])
    torch.testing.assert_close(answer.loss, expected)
    model.save_pretrained(tmp_path / "copy")
    copy = AutoModelForMaskedLM.from_pretrained(tmp_path / "copy", trust_remote_code=True).eval()
    torch.testing.assert_close(theirs(copy, ids_BN), theirs(model, ids_BN))
    with pytest.raises(ValueError, match="longer than the table"):
        model(input_ids=torch.zeros(1, model.config.scales, dtype=torch.int64))


def test_the_card_says_what_it_is_where_from_and_how_to_load_it(runs, tmp_path):
    export(runs["fast"], tmp_path / "fast", arm="at_test", length=512)
    card = (tmp_path / "fast" / "README.md").read_text(encoding="utf-8")
    for words in ("log(n) / log(base)", "base = training_length, which is 16", "folded at n = 512", "recipe: fast",
                  "weights trained as attention_o", "trust_remote_code=True"):  # fmt: skip
        assert words in card
    # log 512 / log 16
    assert " 2.25, the factor" in " ".join(card.split())
    export(runs["faithful"], tmp_path / "faithful", arm="ssmax", length=64)
    card = (tmp_path / "faithful" / "README.md").read_text(encoding="utf-8")
    assert "trust_remote_code" not in card
    assert "Factors that heads learned are folded in too." in card
    assert "reads up to 2048 tokens" in card


def test_two_exports_are_the_same_bytes_and_need_no_transformers(runs, tmp_path):
    code = (
        "import sys, pathlib; sys.modules['transformers'] = None\n"
        "from attnscale.export import export\n"
        "print(export(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), arm='ssmax'))"
    )
    hashes = []
    for name in ("one", "two"):
        subprocess.run([sys.executable, "-c", code, str(runs["fast"]), str(tmp_path / name)], check=True)
        files = sorted((tmp_path / name).iterdir())
        hashes.append([(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files])
    assert hashes[0] == hashes[1]
    assert [name for name, _ in hashes[0]] == [
        "README.md", "config.json", "model.safetensors", "modeling_attnscale.py", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    for name in ("config.json", "tokenizer_config.json"):
        assert str(tmp_path) not in (tmp_path / "one" / name).read_text()
        json.loads((tmp_path / "one" / name).read_text())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arm", "log_position"], ["log_position cannot be exported", "factor per head"]),
        (["--arm", "band"], ["band cannot be exported", "positions: band"]),
        (["--arm", "clipped"], ["clipped cannot be exported", "positions: clipped"]),
        (["--arm", "ntk"], ["ntk cannot be exported", "positions: ntk"]),
        (["--arm", "attention_f"], ["--arm attention_f", "did you mean"]),
        (["--arm", "attention_e", "--seed", "3"], ["--seed 3", "it has 0"]),
        (["--arm", "attention_e", "--length", "0"], ["--length 0", "from 1"]),
    ],
)
def test_what_cannot_leave_ends_in_one_sentence_and_leaves_nothing(attnscale, runs, tmp_path, arguments, words):  # noqa: F811
    code, out, err = attnscale("export", runs["fast"], tmp_path / "out", *arguments)
    assert out == ""
    assert_one_sentence(code, err, *words)
    assert names_in(tmp_path) == []


def test_a_folder_in_use_is_left_alone_and_an_empty_one_is_taken(attnscale, runs, tmp_path):  # noqa: F811
    folder = tmp_path / "out"
    folder.mkdir()
    arguments = ("export", runs["fast"], folder, "--arm", "attention_o", "--to", "hf")
    code, out, err = attnscale(*arguments)
    assert (code, err) == (0, "")
    assert out.startswith(f"written: {folder}, attention_o seed 0")
    before = (folder / "model.safetensors").stat()
    code, _, err = attnscale(*arguments)
    assert_one_sentence(code, err, str(folder), "exists already")
    assert (folder / "model.safetensors").stat() == before
    assert names_in(tmp_path) == ["out"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_stopped_export_says_so_and_leaves_nothing(runs, tmp_path, number):
    code = (
        "import os\nfrom attnscale import cli\nfrom attnscale.export import build\n"
        f"build.card = lambda *given: os.kill(os.getpid(), {int(number)})\n"
        "cli.main()\n"
    )
    command = [sys.executable, "-c", code, "export", str(runs["fast"]), str(tmp_path / "out"), "--arm", "attention_o"]
    done = subprocess.run(command, capture_output=True, text=True)
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert (done.returncode, done.stderr) == (128 + number, f"error: stopped by {name}; run the same command again\n")
    assert names_in(tmp_path) == []


def test_the_numbers_on_the_card_are_those_that_were_written(attnscale, tokens_dir, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    write_run(run, tokens_dir, arms={"attention_o": {"attention": "attention_o"}})
    table = run / "accuracy.csv"
    table.write_text("arm,seed,length,correct,total,accuracy\nattention_o,0,16,3,10,0.3\n")
    write_checksums([table])
    export(run, tmp_path / "out", arm="attention_o")
    assert "| 16 | 30.00 |" in (tmp_path / "out" / "README.md").read_text()
    table.write_text(table.read_text().replace(",3,", ",9,"))
    code, _, err = attnscale("export", run, tmp_path / "other", "--arm", "attention_o")
    assert_one_sentence(code, err, f"{table} and its checksum")
    checksum_file(table).unlink()
    (run / "corpus").mkdir()
    (run / "corpus" / "manifest.json").write_text('{"sources": [{}]}')
    code, _, err = attnscale("export", run, tmp_path / "other", "--arm", "attention_o")
    assert_one_sentence(code, err, "corpus/manifest.json is damaged (sources.0.kind")
    assert names_in(tmp_path) == ["out", "run"]


def test_an_attention_of_ones_own_leaves_if_it_is_a_factor(tmp_path, tokens_dir, monkeypatch):
    from attnscale import attention

    monkeypatch.setattr(attention, "_REGISTRY", dict(attention._REGISTRY))
    head = (
        "import dataclasses\nimport torch\nfrom attnscale.attention import Attention, register\n\n\n"
        "@register('{name}')\n@dataclasses.dataclass(frozen=True)\nclass Mine(Attention):\n    'Mine.'\n"
        "    formula = 'mine'\n    source = 'mine'\n\n"
    )
    bodies = {
        "own_factor": "    def factor(self, context):\n        return context.n_B ** 0.3 / 7\n",
        "own_bias": "    def bias(self, context):\n        return torch.zeros(1)\n",
        "own_heads": (
            "    def queries(self, q_BHND, context):\n"
            "        n = context.n_B.to(q_BHND.dtype)[:, None, None, None]\n"
            "        return q_BHND * n ** (torch.arange(context.heads)[:, None, None] / 9)\n"
        ),
    }
    arms = {}
    for name, body in bodies.items():
        (tmp_path / f"{name}.py").write_text(head.format(name=name) + body)
        arms[name] = {"attention": {"name": name, "module": str(tmp_path / f"{name}.py")}}
    run = tmp_path / "run"
    write_run(run, tokens_dir, arms=arms)
    ids_BN = random_ids(run, 2, 40)
    export(run, tmp_path / "out", arm="own_factor")
    torch.testing.assert_close(
        theirs(load(tmp_path / "out"), ids_BN), ours(run, "own_factor", ids_BN), atol=ATOL, rtol=0
    )
    with pytest.raises(UserError, match="own_bias has a bias on its logits of its own"):
        export(run, tmp_path / "other", arm="own_bias")
    with pytest.raises(UserError, match="give one --length"):
        export(run, tmp_path / "other", arm="own_heads")
    assert "folded in at n = 40" in export(run, tmp_path / "folded", arm="own_heads", length=40)
    torch.testing.assert_close(
        theirs(load(tmp_path / "folded"), ids_BN), ours(run, "own_heads", ids_BN), atol=ATOL, rtol=0
    )
