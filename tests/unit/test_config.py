"""The configuration: what it accepts, one sentence for everything else, and pages that match the models."""

import copy
import difflib
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from attnscale import attention, docs
from attnscale.cli import resolved_yaml
from attnscale.config import PRESETS, Config, EvaluateSettings, TrainSettings, load_config, parse_config
from attnscale.errors import UserError
from attnscale.findings import NAME, PATTERNS
from attnscale.yaml_files import read_yaml

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "config").glob("*.yaml"))
MINIMAL = {"name": "x", "arms": {"o": {"attention": "attention_o"}}}
SHA = "0" * 64

# Words of pydantic, PyYAML and Python that mean nothing to somebody who edits a configuration.
JARGON = re.compile(
    r"(?i:should be|should have|field required|type=|extra inputs|pydantic|validat|discriminator|tuple|dictionary)"
    r"|(?i:value error|traceback|instance of)|\b(None|True|False)\b|(Config|Spec|Source|Error)\b"
)


def merged(text: str) -> dict:
    return {**copy.deepcopy(MINIMAL), **yaml.safe_load(text)}


def assert_is_one_plain_sentence(sentence: str) -> None:
    assert len(sentence.splitlines()) == 1, sentence
    assert sentence == sentence.strip()
    assert not sentence.endswith(".")
    assert len(sentence) < 300, sentence
    found = JARGON.search(sentence)
    assert not found, f"{found.group()} in {sentence}"


def sentence_of(text: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_config(merged(text), "mine.yaml")
    sentence = str(caught.value)
    assert_is_one_plain_sentence(sentence)
    assert sentence.startswith("mine.yaml: ")
    return sentence


def branches(arms: str) -> str:
    """Arms beside one called trunk, which keeps a snapshot."""
    return f"{{arms: {{trunk: {{attention: attention_o}}, {arms}}}, training: {{snapshots: [0.5]}}}}"


WRONG = [
    # Unknown keys: the nearest known one, the section it belongs to, or all of them.
    ("sead: 1", ["unknown key sead", "did you mean seeds?"]),
    ("evalution: {}", ["unknown key evalution", "did you mean evaluation?"]),
    ("evaluation: {lenghts: [64]}", ["evaluation: unknown key lenghts", "did you mean lengths?"]),
    ("training: {learn_rate: 0.1}", ["training: unknown key learn_rate", "did you mean learning_rate?"]),
    ("batch_size: 3", ["unknown key batch_size", "belongs under training"]),
    ("model: {mask_rate: 0.1}", ["model: unknown key mask_rate", "belongs under evaluation or training"]),
    ("tokens: {zzz: 3}", ["tokens: unknown key zzz", "known: kind, vocabulary_size"]),
    ("5: 3", ["unknown key 5", "known: arms"]),
    ("? \n: 3", ["unknown key null", "known: arms"]),
    (f"{'9' * 900}x: 3", ["unknown key 9999", "9…; known: arms"]),
    ("model: {no: 3}", ["model: unknown key false", "known: feed_forward"]),
    ("arms: {no: {attention: attention_o}}", ["arms: the name false must be text", "quotes"]),
    ("corpus: {sources: [{kind: , name: a}]}", ["corpus.sources[0].kind must be wheel, hub or files, not null"]),
    ("arms: {o: {attention: attention_o, weigths_of: o}}", ["arms.o: unknown key", "did you mean weights_of?"]),
    ("corpus: {sources: [{kind: files, name: a, path: b}]}", ["corpus.sources[0]: unknown key path", "mean paths?"]),
    # Wrong types.
    ("training: {tokens: many}", ["training.tokens must be a whole number, not 'many'"]),
    ("training: {tokens: 1.5}", ["training.tokens must be a whole number, not 1.5"]),
    ("training: {tokens: '5'}", ["training.tokens", "'5'", "write 5"]),
    ("training: {tokens: 1e6}", ["training.tokens", "'1e6'", "write 1000000"]),
    ("training: {learning_rate: 1e-3}", ["training.learning_rate must be a number", "'1e-3'", "write 0.001"]),
    ("training: {learning_rate: 1e-5}", ["training.learning_rate", "write 1.000000e-05"]),
    ("training: {learning_rate: yes}", ["training.learning_rate must be a number, not true"]),
    ("training: {clip_norm: .inf}", ["training.clip_norm must be a finite number"]),
    ("evaluation: {mask_rate: .nan}", ["evaluation.mask_rate must be a finite number"]),
    ("training:", ["training is empty", "leave it out"]),
    ("model: 5", ["model must be a map of keys and values, not 5"]),
    ("training: [1]", ["training must be a map of keys and values, not a list"]),
    ("seeds: 3", ["seeds must be a list, not 3", "write [3]"]),
    ("seeds: {a: 1}", ["seeds must be a list, not a map"]),
    ("seeds: [true]", ["seeds[0] must be a whole number, not true"]),
    ("seeds: [0, a]", ["seeds[1] must be a whole number, not 'a'"]),
    ("name: 5", ["name must be text, not 5", "quotes"]),
    ("name: 2020-01-01", ["name must be text, not 2020-01-01", "quotes"]),
    ("name: 'A B'", ["name must be made of", "lower-case", "'A B'"]),
    ("name: ../up", ["name must be made of", "'../up'"]),
    (f"name: {'a' * 65}", ["name", "longer than 64"]),
    (f"first: {{arms: {{{'a' * 65}: {{attention: ssmax}}}}}}", ["first.arms: the name aaa", "at most 64 characters"]),
    ("model: {preset: [a]}", ["model.preset must be 'compact', 'small' or 'smoke', not a list"]),
    ("model: {preset: {a: 1}}", ["model.preset must be", "not a map"]),
    ("evaluation: {lengths: [64.0]}", ["evaluation.lengths[0] must be a whole number, not 64.0"]),
    # Sizes and limits.
    ("training: {tokens: 0}", ["training.tokens must be at least 1, not 0"]),
    ("training: {length: -64}", ["training.length must be at least 8, not -64"]),
    ("training: {batch_size: 0}", ["training.batch_size must be at least 1, not 0"]),
    ("training: {mask_rate: 0}", ["training.mask_rate must be above 0, not 0"]),
    ("training: {warmup_fraction: 1}", ["training.warmup_fraction must be below 1, not 1"]),
    ("model: {width: 0}", ["model.width must be at least 8, not 0"]),
    ("model: {width: -256}", ["model.width must be at least 8, not -256"]),
    ("model: {layers: 0}", ["model.layers must be at least 1, not 0"]),
    ("model: {heads: 0}", ["model.heads must be at least 1, not 0"]),
    ("model: {heads: -1}", ["model.heads must be at least 1, not -1"]),
    ("model: {heads: 1000}", ["model.heads must be at most 256, not 1000"]),
    ("model: {feed_forward: 0}", ["model.feed_forward must be at least 8, not 0"]),
    ("model: {heads: 3}", ["model: width 256", "3 heads", "divide the width"]),
    ("model: {width: 12, heads: 4}", ["model: width 12", "odd head size", "even"]),
    ("model: {preset: big}", ["model.preset must be", "'small'", "not 'big'"]),
    ("tokens: {vocabulary_size: 100}", ["tokens.vocabulary_size must be at least 300, not 100"]),
    ("tokens: {kind: wordpiece}", ["tokens.kind must be 'bpe' or 'character', not 'wordpiece'"]),
    ("compute: {threads: 0}", ["compute.threads must be at least 1, not 0"]),
    ("compute: {device: gpu}", ["compute.device must be 'auto', 'cpu' or 'cuda', not 'gpu'"]),
    ("corpus: {min_characters: -1}", ["corpus.min_characters must be at least 1, not -1"]),
    ("corpus: {held_out_fraction: 1}", ["corpus.held_out_fraction must be below 1, not 1"]),
    ("evaluation: {max_blocks: 0}", ["evaluation.max_blocks must be at least 1, not 0"]),
    # Seeds.
    ("seeds: []", ["seeds is empty", "at least one entry"]),
    ("seeds: [-1]", ["seeds[0] must be at least 0, not -1"]),
    ("seeds: [99999999999]", ["seeds[0] must be below 2147483648"]),
    ("seeds: [0, 1, 0]", ["seeds: 0 stands there twice"]),
    # Arms and attentions.
    ("arms: {}", ["arms is empty", "at least one entry"]),
    ("arms:", ["arms is empty", "at least one entry"]),
    ("arms: [a]", ["arms must be a map of keys and values, not a list"]),
    ("arms: {o: attention_o}", ["arms.o must be a map", "'attention_o'", "write {attention: attention_o}"]),
    ("arms: {o: {}}", ["arms.o.attention is missing", "add it"]),
    ("arms: {o: {attention: 3}}", ["arms.o.attention must be a map", "write attention_o"]),
    ("arms: {o: {attention: {base: 512}}}", ["arms.o.attention.name is empty"]),
    ("arms: {O: {attention: attention_o}}", ["arms: the name O must be made of lower-case"]),
    ("arms: {1: {attention: attention_o}}", ["arms: the name 1 must be text", "quotes"]),
    ("arms: {o: {attention: attention_p}}", ["arms.o.attention: unknown attention attention_p", "mean attention_o?"]),
    ("arms: {o: {attention: zzz}}", ["unknown attention zzz", "known: acl2022, attention_e"]),
    # An arm may be called as a kind of source is.
    ("arms: {wheel: {attention: zzz}}", ["arms.wheel.attention: unknown attention zzz"]),
    ("arms: {files: {}}", ["arms.files.attention is missing"]),
    (
        "arms: {e: {attention: {name: attention_e, bse: 4}}}",
        ["arms.e.attention: attention_e", "no parameter bse", "base"],
    ),
    ("arms: {o: {attention: {name: attention_o, base: 4}}}", ["attention_o has no parameter base", "it has none"]),
    ("arms: {e: {attention: {name: attention_e, base: 1}}}", ["arms.e.attention: base", "above 1", "not 1"]),
    ("arms: {e: {attention: {name: attention_e, base: [1]}}}", ["arms.e.attention.base must be", "not a list"]),
    ("arms: {e: {attention: {name: attention_e_kappa, kappa: .nan}}}", ["arms.e.attention.kappa", "finite", "nan"]),
    ("arms: {o: {attention: {name: attention_o, module: no.py}}}", ["arms.o.attention: module no.py", "path of a .py"]),
    (
        "arms: {o: {attention: attention_o}, p: {attention: acl2022, weights_of: q}}",
        ["arms.p.weights_of: unknown trained arm q", "known: o"],
    ),
    (
        "arms: {first: {attention: attention_o}, p: {attention: acl2022, weights_of: frist}}",
        ["unknown trained arm frist", "did you mean first?"],
    ),
    (
        "arms: {o: {attention: attention_o}, p: {attention: acl2022, weights_of: o}, "
        "q: {attention: acl2022, weights_of: p}}",
        ["arms.q.weights_of: p trains nothing itself", "name a trained arm"],
    ),
    ("arms: {o: {attention: attention_o, weights_of: o}}", ["arms.o.weights_of: o trains nothing itself"]),
    # Lengths.
    ("evaluation: {lengths: [64, 100, 200]}", ["evaluation.lengths: 64 does not divide the largest length 200"]),
    ("evaluation: {lengths: [64, 192, 256]}", ["evaluation.lengths: 192 does not divide the largest length 256"]),
    (
        "evaluation: {lengths: [96, 192]}",
        ["evaluation.lengths: 96 is neither a multiple nor a divisor of training.length 64", "choose one"],
    ),
    (
        "evaluation: {lengths: [24, 96]}",
        ["evaluation.lengths: 24 is neither a multiple nor a divisor of training.length 64", "choose one"],
    ),
    ("training: {length: 48}", ["evaluation.lengths: 64 is neither a multiple nor a divisor of training.length 48"]),
    # Snapshots.
    ("training: {snapshots: 0.5}", ["training.snapshots must be a list, not 0.5", "write [0.5]"]),
    ("training: {snapshots: [0.5, 0.25]}", ["training.snapshots: [0.5, 0.25] must rise"]),
    ("training: {snapshots: [0.5, 0.5]}", ["training.snapshots: [0.5, 0.5] must rise", "no share twice"]),
    ("training: {snapshots: [0.0]}", ["training.snapshots: [0.0] must", "between 0 and 1"]),
    ("training: {snapshots: [1]}", ["training.snapshots: [1.0] must", "between 0 and 1"]),
    ("training: {snapshots: [a]}", ["training.snapshots[0] must be a number, not 'a'"]),
    (
        "training: {tokens: 40960, snapshots: [0.5, 0.52]}",
        ["training: snapshots [0.5, 0.52] of 10 steps are those after steps [5, 5]", "a step of their own"],
    ),
    ("training: {tokens: 40960, snapshots: [0.97]}", ["training: snapshots [0.97] of 10 steps", "before the last"]),
    ("evaluation: {snapshot_arms: [o]}", ["evaluation.snapshot_arms: there are no training.snapshots", "name some"]),
    ("evaluation: {snapshot_arms: [p]}", ["evaluation.snapshot_arms: unknown arm p", "known: o"]),
    ("evaluation: {snapshot_arms: o}", ["evaluation.snapshot_arms must be a list, not 'o'", "write [o]"]),
    (
        "{arms: {o: {attention: attention_o}, late: {attention: attention_e, branch: {of: o, at: 0.5}}}, "
        "training: {snapshots: [0.5]}, evaluation: {snapshot_arms: [o, late]}}",
        ["evaluation.snapshot_arms: late is a branch and keeps no snapshots", "leave it out"],
    ),
    (
        "{arms: {o: {attention: attention_o}, late: {attention: attention_e, branch: {of: o, at: 0.5}}, "
        "t: {attention: acl2022, weights_of: late}}, training: {snapshots: [0.5]}, evaluation: {snapshot_arms: [t]}}",
        ["evaluation.snapshot_arms: t is a branch and keeps no snapshots"],
    ),
    # Branches.
    (branches("b: {attention: acl2022, branch: {of: p, at: 0.5}}"), ["arms.b.branch.of: unknown trained arm p"]),
    (branches("b: {attention: acl2022, branch: {of: trnk, at: 0.5}}"), ["did you mean trunk?"]),
    (
        branches("t: {attention: acl2022, weights_of: trunk}, b: {attention: acl2022, branch: {of: t, at: 0.5}}"),
        ["arms.b.branch.of: t trains nothing itself", "name a trained arm"],
    ),
    (
        branches(
            "a: {attention: acl2022, branch: {of: trunk, at: 0.5}}, b: {attention: acl2022, branch: {of: a, at: 0.5}}"
        ),
        ["arms.b.branch.of: a is a branch itself", "name the arm that it branches from"],
    ),
    (branches("b: {attention: acl2022, branch: {of: b, at: 0.5}}"), ["arms.b.branch.of: b is a branch itself"]),
    (
        branches("b: {attention: acl2022, branch: {of: trunk, at: 0.6}}"),
        ["arms.b.branch.at: 0.6 is none of training.snapshots", "add it there"],
    ),
    (branches("b: {attention: acl2022, branch: {of: trunk, at: 1.5}}"), ["arms.b.branch.at must be below 1, not 1.5"]),
    (branches("b: {attention: acl2022, branch: {of: trunk}}"), ["arms.b.branch.at is missing"]),
    (branches("b: {attention: acl2022, branch: trunk}"), ["arms.b.branch must be a map", "'trunk'"]),
    (
        branches("b: {attention: acl2022, weights_of: trunk, branch: {of: trunk, at: 0.5}}"),
        ["arms.b: an arm with weights_of trains nothing", "leave out branch and training_lengths"],
    ),
    (
        branches("b: {attention: acl2022, weights_of: trunk, training_lengths: [16, 64]}"),
        ["arms.b: an arm with weights_of trains nothing", "leave out branch and training_lengths"],
    ),
    # An arm may stand before the one it takes weights from, whatever is wrong with that one.
    (
        "arms: {a: {attention: acl2022, weights_of: b}, b: {attention: acl2022, branch: {of: nowhere, at: 0.5}}}",
        ["arms.b.branch.of: unknown trained arm nowhere"],
    ),
    (
        "arms: {a: {attention: acl2022, weights_of: b}, b: {attention: acl2022, branch: {of: a, at: 0.5}}}",
        ["arms.b.branch.of: a trains nothing itself"],
    ),
    (
        "arms: {a: {attention: acl2022, weights_of: b}, b: {attention: acl2021}}",
        ["arms.b.attention: unknown attention acl2021", "mean acl2022?"],
    ),
    # What an attention learns.
    (
        branches("s: {attention: ssmax, weights_of: trunk}"),
        ["arms.s.attention: ssmax cannot take the weights of trunk, whose attention_o learns other parameters"],
    ),
    (
        branches("s: {attention: ssmax}, t: {attention: attention_o, weights_of: s}"),
        ["arms.t.attention: attention_o cannot take the weights of s, whose ssmax learns other parameters", "choose"],
    ),
    (
        branches("s: {attention: ssmax}, t: {attention: attention_o, branch: {of: s, at: 0.5}}"),
        ["arms.t.attention: attention_o cannot take the weights of s, whose ssmax learns other parameters"],
    ),
    # Mixed lengths.
    (
        "arms: {o: {attention: attention_o, training_lengths: [24, 64]}}",
        ["arms.o.training_lengths: 24 does not divide training.length 64", "choose divisors"],
    ),
    ("arms: {o: {attention: attention_o, training_lengths: [1, 64]}}", ["arms.o.training_lengths: 1 does not divide"]),
    ("arms: {o: {attention: attention_o, training_lengths: [0]}}", ["arms.o.training_lengths: 0 does not divide"]),
    ("arms: {o: {attention: attention_o, training_lengths: [128]}}", ["arms.o.training_lengths: 128 does not divide"]),
    (
        "arms: {o: {attention: attention_o, training_lengths: [64, 32]}}",
        ["arms.o.training_lengths: [64, 32] must rise"],
    ),
    ("arms: {o: {attention: attention_o, training_lengths: [32, 32]}}", ["training_lengths: [32, 32] must rise and"]),
    ("arms: {o: {attention: attention_o, training_lengths: 32}}", ["training_lengths must be a list", "write [32]"]),
    ("arms: {o: {attention: attention_o, training_lengths: []}}", ["arms.o.training_lengths is empty"]),
    (
        "arms: {o: {attention: attention_o, training_lengths: [2, 3, 4, 6, 8, 12, 16, 24, 48]}}",
        ["arms.o.training_lengths is longer than 8", "shorten it"],
    ),
    # Limits of n.
    *(
        (
            f"arms: {{o: {{attention: attention_o, {key}: {value}}}}}",
            [f"arms.o.{key}: give a whole number of 2 or more, or training_length"],
        )
        for key in ("n_at_least", "n_at_most")
        for value in ("1", "0", "-3", "16.0", "L", "true", "[16]", "{a: 1}")
    ),
    *(
        (f"arms: {{o: {{attention: attention_o, {key}: {'9' * digits}}}}}", [f"arms.o.{key}: give a whole number"])
        for key in ("n_at_least", "n_at_most")
        for digits in (17, 401)
    ),
    # Numbers that overflow.
    *(
        (f"{section}: {{{key}: {'[64, ' * many}{2**405}{']' * many}}}", [f"{section}.{key}: a number of 122 digits is"])
        for section, key, many in (
            ("training", "tokens", 0),
            ("training", "log_every", 0),
            ("training", "checkpoint_every", 0),
            ("evaluation", "lengths", 1),
            ("evaluation", "batch_tokens", 0),
            ("evaluation", "max_blocks", 0),
            ("claims", "multiples", 1),
            ("statistics", "primary_length", 0),
            ("attention_statistics", "blocks", 0),
        )
    ),
    ("claims: {multiples: [2]}", ["claims.multiples needs at least 2 entries, not 1"]),
    ("claims: {multiples: []}", ["claims.multiples needs at least 2 entries, not 0"]),
    # Parameters beside `parameters`.
    (
        "arms: {o: {attention: attention_o, positions: {name: band, parameters: {}, width: 3}}}",
        ["arms.o.positions: unknown key width beside parameters; put it into them"],
    ),
    (
        "arms: {o: {attention: {name: attention_e, parameters: {}, base: 3}}}",
        ["arms.o.attention: unknown key base beside parameters; put it into them"],
    ),
    (
        "arms: {o: {attention: {name: attention_e, parameters: {}, modul: a.py}}}",
        ["arms.o.attention: unknown key modul; did you mean module?"],
    ),
    (
        "arms: {o: {attention: attention_o, n_at_least: 65, n_at_most: training_length}}",
        ["arms.o.n_at_least: 65 is above n_at_most 64"],
    ),
    (
        "arms: {o: {attention: attention_o, n_at_least: training_length, n_at_most: 16}}",
        ["arms.o.n_at_least: 64 is above n_at_most 16"],
    ),
    # Positions.
    (
        "arms: {o: {attention: attention_o, positions: bnd}}",
        ["arms.o.positions.name must be 'band', 'clipped' or 'ntk'"],
    ),
    ("arms: {o: {attention: attention_o, positions: 5}}", ["arms.o.positions must be a map", "not 5"]),
    ("arms: {o: {attention: attention_o, positions: {width: 5}}}", ["arms.o.positions.name must be", "''"]),
    (
        "arms: {o: {attention: attention_o, positions: {name: band, widht: 5}}}",
        ["arms.o.positions: band has no parameter widht", "it has width"],
    ),
    ("arms: {o: {attention: attention_o, positions: {name: ntk, width: 5}}}", ["ntk has no parameter width", "none"]),
    (
        "arms: {o: {attention: attention_o, positions: {name: band, width: 65}}}",
        ["arms.o.positions: width of band must be a whole number from 2 to the training length 64", "not 65"],
    ),
    (
        "arms: {o: {attention: attention_o, positions: {name: clipped, width: 1}}}",
        ["arms.o.positions: width of clipped must be a whole number from 2", "not 1"],
    ),
    ("arms: {o: {attention: attention_o, positions: {name: band, width: 5.0}}}", ["width of band", "not 5.0"]),
    (
        "arms: {o: {attention: attention_o, positions: {name: band, width: wide}}}",
        ["arms.o.positions.width must be a finite number, not 'wide'"],
    ),
    (
        "arms: {o: {attention: attention_o, positions: {name: band, width: true}}}",
        ["arms.o.positions.width must be a finite number, not true"],
    ),
    # Seeds of arms.
    ("{seeds: [0, 1], arms: {o: {attention: attention_o, seeds: [2]}}}", ["arms.o.seeds: 2 is no seed of the run"]),
    (
        "{seeds: [0, 1], arms: {o: {attention: attention_o, seeds: [1, 1]}}}",
        ["arms.o.seeds: 1 stands there twice; every seed may stand once"],
    ),
    (
        "{seeds: [0, 1, 2], arms: {o: {attention: attention_o, seeds: [1]}}}",
        ["mine.yaml: seeds: no arm uses 0; leave it out, or add it to the seeds of an arm"],
    ),
    ("arms: {o: {attention: attention_o, seeds: []}}", ["arms.o.seeds is empty"]),
    (
        "{seeds: [0, 1], arms: {o: {attention: attention_o, seeds: [0]}, t: {attention: acl2022, weights_of: o, "
        "seeds: [0, 1]}}}",
        ["arms.t.seeds: 1 is no seed of o"],
    ),
    (
        "{seeds: [0, 1], arms: {trunk: {attention: attention_o, seeds: [0]}, b: {attention: acl2022, seeds: [1], "
        "branch: {of: trunk, at: 0.5}}}, training: {snapshots: [0.5]}}",
        ["arms.b.seeds: 1", "no seed of trunk"],
    ),
    ("evaluation: {lengths: [128, 64]}", ["evaluation.lengths: [128, 64] must rise"]),
    ("evaluation: {lengths: [64, 64]}", ["evaluation.lengths: [64, 64] must rise", "no length twice"]),
    ("evaluation: {lengths: []}", ["evaluation.lengths is empty"]),
    ("evaluation: {lengths: 64}", ["evaluation.lengths must be a list, not 64", "write [64]"]),
    ("evaluation: {lengths: [0]}", ["evaluation.lengths: 0 is no length", "positive"]),
    ("evaluation: {lengths: [-64]}", ["evaluation.lengths: -64 is no length", "positive"]),
    # Sources.
    ("corpus: {sources: []}", ["corpus.sources is empty"]),
    ("corpus: {sources: [a]}", ["corpus.sources[0] must be a map", "'a'"]),
    ("corpus: {sources: {kind: files}}", ["corpus.sources must be a list, not a map"]),
    ("corpus: {sources: [{kind: web, name: a}]}", ["corpus.sources[0].kind must be wheel, hub or files, not 'web'"]),
    ("corpus: {sources: [{name: a}]}", ["corpus.sources[0].kind is missing", "wheel, hub or files"]),
    ("corpus: {sources: [{kind: wheel, name: a}]}", ["corpus.sources[0].version is missing", "add it"]),
    (
        "corpus: {sources: [{kind: wheel, name: a, version: '1', sha256: abc, members: x, licence: y}]}",
        ["corpus.sources[0].sha256 must be 64 hexadecimal digits", "'abc'"],
    ),
    (
        f"corpus: {{sources: [{{kind: wheel, name: a, version: '1', sha256: '{'A' * 64}', members: x, licence: y}}]}}",
        ["corpus.sources[0].sha256 must be 64 hexadecimal digits in lower case"],
    ),
    (
        f"corpus: {{sources: [{{kind: wheel, name: a, version: 1.0, sha256: '{SHA}', members: x, licence: y}}]}}",
        ["corpus.sources[0].version must be text, not 1.0", "quotes"],
    ),
    (
        "corpus: {sources: [{kind: files, name: a, paths: b}, {kind: files, name: a, paths: ''}]}",
        ["corpus.sources[1].paths is empty"],
    ),
]


@pytest.mark.parametrize(("text", "words"), WRONG, ids=[text[:60] for text, _ in WRONG])
def test_a_wrong_value_gets_one_sentence_that_names_place_and_way_out(text, words):
    sentence = sentence_of(text)
    for word in words:
        assert word in sentence, sentence


def test_every_key_of_a_source_is_known_for_its_own_kind_only():
    # `version` is a key of wheels; offering it again for files would lead nowhere.
    sentence = sentence_of("corpus: {sources: [{kind: files, name: a, paths: b, version: '1'}]}")
    assert "corpus.sources[0]: unknown key version" in sentence
    assert "mean version" not in sentence
    assert "members" not in sentence


@pytest.mark.parametrize("key", ["name", "arms"])
def test_a_required_key_that_is_left_out_is_named(key):
    data = {other: value for other, value in MINIMAL.items() if other != key}
    with pytest.raises(UserError, match=f"^c.yaml: {key} is missing; add it$"):
        parse_config(data, "c.yaml")


def test_a_required_key_with_a_slip_of_the_pen_is_told_as_the_slip():
    with pytest.raises(UserError, match=r"^c.yaml: unknown key nmae; did you mean name\?$"):
        parse_config({"nmae": "x", "arms": MINIMAL["arms"]}, "c.yaml")


@pytest.mark.parametrize("section", [key for key in Config.model_fields if key not in ("name", "seeds", "arms")])
@pytest.mark.parametrize("value", [None, 5, "text", [], [1], True, 1.5, {"zzz": 1}, {5: 1}, {"a\nb": 1}])
def test_no_section_takes_nonsense_or_answers_with_a_traceback(section, value):
    if value is None and Config.model_fields[section].default is None:
        return  # null leaves such a section out
    with pytest.raises(UserError) as caught:
        parse_config({**MINIMAL, section: value}, "c.yaml")
    assert section in str(caught.value)
    assert_is_one_plain_sentence(str(caught.value))


def all_leaves():
    for section, field in Config.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and hasattr(model, "model_fields"):
            yield from ((section, key) for key in model.model_fields)


# Names of arms that a run need not have.
ANY_NAME = [("statistics", "primary_arm"), ("statistics", "primary_baseline")]


@pytest.mark.parametrize(("section", "key"), list(all_leaves()), ids=lambda part: part)
@pytest.mark.parametrize("value", [{"a": {"b": 1}}, [[1]], "zzz", -1, float("nan"), "a\nb"], ids=repr)
def test_no_key_answers_nonsense_with_a_traceback(section, key, value):
    if value == "zzz" and (section, key) in ANY_NAME:
        assert parse_config({**MINIMAL, section: {key: value}}, "c.yaml")
        return
    with pytest.raises(UserError) as caught:
        parse_config({**MINIMAL, section: {key: value}}, "c.yaml")
    assert f"{section}.{key}" in str(caught.value)
    assert_is_one_plain_sentence(str(caught.value))


FILES = [
    ("name: x\narms: [\n", [", line 3", "no valid YAML", "mend"]),
    ("name: x\narms:\n\to: 1\n", [", line 3", "no valid YAML"]),
    ("name: x\nname: y: z\n", [", line 2", "no valid YAML"]),
    ("name: x\n---\nname: y\n", [", line 2", "no valid YAML"]),
    ("{{name}}: x\n", [", line 1", "no valid YAML"]),
    ("name: *nobody\n", [", line 1", "no valid YAML"]),
    ("name: !!python/name:os.system x\n", [", line 1", "no valid YAML"]),
    ("name: x\nseeds: 2026-13-45\n", [", line 2", "2026-13-45", "quotes"]),
    ("name: x\nseeds: 0x_\n", [", line 2", "0x_", "quotes"]),
    ("name: x\nseeds: !!int ''\n", [", line 2", "looks like a date or number and is none", "quotes"]),
    ("name: x\nseeds: !!float ''\n", [", line 2", "looks like a date or number and is none", "quotes"]),
    ("name: x\nseeds: !!timestamp x\n", [", line 2", "x looks like a date or number and is none", "quotes"]),
    ("name: x\nseeds: !!bool maybe\n", [", line 2", "maybe looks like a truth value and is none", "quotes"]),
    ("name: x\nseeds: !!set {0, 1}\n", [", line 2", "!!set has no use here", "write a plain list"]),
    ("name: x\nseeds: !!binary aGk=\n", [", line 2", "!!binary has no use here"]),
    (f"name: x\nseeds: [{'9' * 5000}]\n", [", line 2", "999… looks like a date or number", "quotes"]),
    ("name: x\x01\n", ["control character", "remove"]),
    ("", ["a configuration is a map", "config/default.yaml"]),
    ("- a\n- b\n", ["a configuration is a map"]),
    ("just words\n", ["a configuration is a map"]),
    ("name: x\nseeds: [0]\nname: y\n", [", line 3", "the key name stands twice", "first in line 1", "remove"]),
    (
        "name: x\narms:\n  o: {attention: attention_o}\n  e: {attention: attention_e}\n  o: {attention: acl2022}\n",
        [", line 5", "the key o stands twice", "first in line 3"],
    ),
    ("name: x\ntraining: {tokens: 1,\n  tokens: 2}\n", [", line 3", "the key tokens", "first in line 2"]),
    ("name: x\ntraining: {tokens: 1, tokens: 1}\n", [", line 2", "the key tokens", "first in line 2"]),
    ("[" * 1500, ["nested too deeply"]),
]


@pytest.mark.parametrize(("text", "words"), FILES, ids=[repr(text[:40]) for text, _ in FILES])
def test_a_broken_file_gets_one_sentence_with_its_line(tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_config(path)
    sentence = str(caught.value)
    assert_is_one_plain_sentence(sentence.replace(str(path), "mine.yaml"))
    for word in [str(path), *words]:
        assert word in sentence, sentence


def test_a_file_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    for data in (b"name: \xff\xfe\n", "name: ä\n".encode("latin-1"), "name: x\n".encode("utf-16")):
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"is not UTF-8 text; save it as UTF-8$"):
            load_config(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.yaml does not exist; the named runs are in config/$"):
        load_config(tmp_path / "nowhere.yaml")


def test_the_same_key_in_two_maps_and_an_overridden_merge_are_no_duplicates(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "a: &a {x: 1, y: 1}\nb: &b\n  <<: *a\n  x: 2\nc:\n  <<: *a\n  y: 3\nd: *b\n1: {x: 1}\n'1': {x: 1}\n",
        encoding="utf-8",
    )
    assert read_yaml(path) == {
        "a": {"x": 1, "y": 1}, "b": {"x": 2, "y": 1}, "c": {"x": 1, "y": 3}, "d": {"x": 2, "y": 1},
        1: {"x": 1}, "1": {"x": 1},
    }  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_named_run_loads_and_is_called_as_its_file(path):
    assert load_config(path).name == path.stem


def test_there_are_named_runs():
    assert {"default", "smoke", "reference"} <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_resolved_configuration_reads_back_as_itself(path, tmp_path):
    config = load_config(path)
    copied = tmp_path / "config.yaml"
    copied.write_text(resolved_yaml(config), encoding="utf-8")
    assert load_config(copied) == config
    assert resolved_yaml(load_config(copied)) == resolved_yaml(config)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_a_preset_fills_the_sizes_and_a_size_beside_it_wins(preset):
    config = parse_config(merged(f"model: {{preset: {preset}}}"), "c.yaml")
    assert {key: getattr(config.model, key) for key in PRESETS[preset]} == PRESETS[preset]
    wider = parse_config(merged(f"model: {{preset: {preset}, feed_forward: 99}}"), "c.yaml")
    assert wider.model.feed_forward == 99
    assert wider.model.width == PRESETS[preset]["width"]


def test_the_faithful_recipe_keeps_its_training_whatever_the_fast_one_learns():
    text = {"name": "a", "arms": {"attention_o": {"attention": "attention_o"}}, "model": {"recipe": "faithful"}}
    training = parse_config(text, "x").training
    assert (training.optimizer, training.learning_rate, training.mask_rate) == ("adamw", 1e-3, 0.15)
    assert (training.batch_size, training.warmup_fraction, training.weight_decay) == (64, 0.05, 0.01)
    assert (training.adam_beta1, training.adam_beta2, training.clip_norm) == (0.9, 0.98, 1.0)
    chosen = parse_config({**text, "training": {"mask_rate": 0.2, "optimizer": "muon"}}, "x").training
    assert (chosen.mask_rate, chosen.optimizer, chosen.learning_rate) == (0.2, "muon", 1e-3)


@pytest.mark.parametrize(("written", "meant"), [("on", "on"), ("off", "off"), ("'off'", "off"), ("auto", "auto")])
def test_on_and_off_may_stand_without_quotes(tmp_path, written, meant):
    path = tmp_path / "a.yaml"
    path.write_text(f"name: a\narms: {{attention_o: {{attention: attention_o}}}}\ncompute: {{compile: {written}}}\n")
    assert load_config(path).compute.compile == meant


def test_short_and_long_forms_of_an_attention_are_the_same():
    forms = ["{name: attention_e, base: 128}", "{name: attention_e, parameters: {base: 128}}"]
    first, second = (parse_config(merged(f"arms: {{e: {{attention: {form}}}}}"), "c.yaml") for form in forms)
    assert first == second
    plain, map_ = (
        parse_config(merged(f"arms: {{e: {{attention: {form}}}}}"), "c.yaml")
        for form in ("attention_e", "{name: attention_e}")
    )
    assert plain == map_


def test_settings_of_a_stage_hold_only_what_can_change_its_output():
    one = parse_config(merged("seeds: [0, 1]\ncompute: {threads: 2}"), "c.yaml")
    other = parse_config(
        merged("name: y\nseeds: [1]\nevaluation: {lengths: [64]}\ntokens: {vocabulary_size: 500}"), "c.yaml"
    )
    assert one.corpus_settings().canonical() == other.corpus_settings().canonical()
    assert one.train_settings("o", 1).canonical() == other.train_settings("o", 1).canonical()
    assert one.train_settings("o", 0).canonical() != one.train_settings("o", 1).canonical()
    assert one.tokens_settings().canonical() != other.tokens_settings().canonical()
    assert one.evaluate_settings("o", 1).canonical() != other.evaluate_settings("o", 1).canonical()
    hotter = parse_config(merged("training: {learning_rate: 0.1}"), "c.yaml")
    assert hotter.evaluate_settings("o", 0).canonical() == one.evaluate_settings("o", 0).canonical()


WHOLE = """
seeds: [3, 1, 2]
arms:
  trunk: {attention: attention_o, seeds: [2, 3]}
  e: {attention: attention_e}
  at_test: {attention: acl2022, weights_of: trunk}
  one: {attention: acl2022, weights_of: e, seeds: [1]}
  late: {attention: ssmax, branch: {of: trunk, at: 0.75}, seeds: [2]}
  late_at_test: {attention: ssmax, weights_of: late, n_at_most: training_length}
  mixed: {attention: attention_e, branch: {of: trunk, at: 0.25}, training_lengths: [16, 64]}
training: {tokens: 40960, snapshots: [0.25, 0.75]}
evaluation: {lengths: [16, 32, 64, 128], snapshot_arms: [one, at_test]}
"""


def test_every_arm_has_its_own_seeds_or_those_of_the_arm_it_takes_weights_from():
    config = parse_config(merged(WHOLE), "c.yaml")
    seeds = {arm: config.seeds_of(arm) for arm in config.arms}
    assert seeds == {
        "trunk": (3, 2), "e": (3, 1, 2), "at_test": (3, 2), "one": (1,), "late": (2,), "late_at_test": (2,),
        "mixed": (3, 2),
    }  # fmt: skip
    assert config.runs() == tuple((arm, seed) for arm in seeds for seed in seeds[arm])
    assert config.trained_arms == ("trunk", "e", "late", "mixed")
    assert config.runs(trained=True) == (
        ("trunk", 3), ("trunk", 2), ("e", 3), ("e", 1), ("e", 2), ("late", 2), ("mixed", 3), ("mixed", 2),
    )  # fmt: skip
    assert config.snapshot_runs() == (
        ("at_test", 3, 2), ("at_test", 3, 8), ("at_test", 2, 2), ("at_test", 2, 8), ("one", 1, 2), ("one", 1, 8),
    )  # fmt: skip
    assert [config.snapshots_of(arm) for arm in config.trained_arms] == [(0.25, 0.75), (0.25, 0.75), (), ()]


def test_settings_of_a_training_hold_what_its_arm_asks_for():
    config = parse_config(merged(WHOLE), "c.yaml")
    trunk, late, mixed = (config.train_settings(arm, 2) for arm in ("trunk", "late", "mixed"))
    assert (trunk.branch_at, trunk.training_lengths, trunk.training.snapshots) == (None, (64,), (0.25, 0.75))
    assert (late.branch_at, late.training_lengths, late.training.snapshots) == (0.75, (64,), ())
    assert (mixed.branch_at, mixed.training_lengths) == (0.25, (16, 64))
    assert late.encoder.attention.name == "ssmax"
    frozen = config.evaluate_settings("late_at_test", 2)
    assert (frozen.encoder.n_at_least, frozen.encoder.n_at_most, frozen.step) == (None, 64, 10)
    assert config.evaluate_settings("at_test", 2, 8).step == 8
    for settings in (trunk, late, mixed):
        assert TrainSettings.model_validate_json(settings.canonical()) == settings
    assert EvaluateSettings.model_validate_json(frozen.canonical()) == frozen


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("snapshot_arms: [one, at_test]", "snapshot_arms: []"),
        ("snapshot_arms: [one, at_test]", "snapshot_arms: [trunk, e, one, at_test]"),
        ("weights_of: e, seeds: [1]", "weights_of: e"),
        ("at: 0.75}, seeds: [2]", "at: 0.75}"),
        ("seeds: [3, 1, 2]", "seeds: [3, 1, 2, 7]"),
        ("weights_of: trunk", "weights_of: trunk, positions: band, n_at_least: 16"),
        ("lengths: [16, 32, 64, 128]", "lengths: [64]"),
    ],
)
def test_what_concerns_other_arms_or_only_the_evaluation_changes_no_training(old, new):
    before, after = (parse_config(merged(text), "c.yaml") for text in (WHOLE, WHOLE.replace(old, new)))
    assert old in WHOLE
    assert before != after
    assert set(before.runs(trained=True)) <= set(after.runs(trained=True))
    for run in before.runs(trained=True):
        assert before.train_settings(*run).canonical() == after.train_settings(*run).canonical()


def test_lengths_shorter_than_the_training_windows_that_divide_them_are_evaluated():
    config = parse_config(merged("evaluation: {lengths: [8, 32, 64, 128]}"), "c.yaml")
    assert config.evaluate_settings("o", 0).lengths == (8, 32, 64, 128)


def test_short_and_long_forms_of_positions_are_the_same():
    forms = ["band", "{name: band}", "{name: band, parameters: {}}"]
    configs = [
        parse_config(merged(f"arms: {{o: {{attention: attention_o, positions: {form}}}}}"), "c") for form in forms
    ]
    assert configs[0] == configs[1] == configs[2]
    forms = ["{name: clipped, width: 9}", "{name: clipped, parameters: {width: 9}}"]
    short, long = (
        parse_config(merged(f"arms: {{o: {{attention: attention_o, positions: {form}}}}}"), "c") for form in forms
    )
    assert short == long
    assert short.encoder_settings("o").positions.parameters == {"width": 9}
    schema = docs.json_schema()
    for form in ["band", "{name: clipped, width: 9}", "null"]:
        jsonschema.validate(merged(f"arms: {{o: {{attention: attention_o, positions: {form}}}}}"), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged("arms: {o: {attention: attention_o, positions: bnd}}"), schema)


def test_the_whole_example_survives_being_written_out(tmp_path):
    config = parse_config(merged(WHOLE), "c.yaml")
    (tmp_path / "config.yaml").write_text(resolved_yaml(config), encoding="utf-8")
    assert load_config(tmp_path / "config.yaml") == config
    jsonschema.validate(yaml.safe_load(resolved_yaml(config)), docs.json_schema())


def test_a_treatment_of_positions_that_a_users_own_angles_would_bypass_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "_REGISTRY", dict(attention.registered()))
    path = tmp_path / "mine.py"
    path.write_text(
        "import dataclasses\n"
        "from attnscale.attention import Attention, register\n"
        "@register('no_positions')\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class NoPositions(Attention):\n"
        "    'Without positions.'\n"
        "    formula = source = 'x'\n"
        "    def angles(self, context, theta):\n"
        "        return 0 * super().angles(context, theta)\n"
    )
    arm = f"attention: {{name: no_positions, module: '{path}'}}"
    sentence = sentence_of(f"arms: {{o: {{{arm}, positions: ntk}}}}")
    assert "arms.o.positions: no_positions has angles of its own, which ntk would not reach" in sentence
    parse_config(merged(f"arms: {{o: {{{arm}, positions: band}}}}"), "c.yaml")


def test_settings_survive_their_canonical_json_and_do_not_depend_on_key_order():
    settings = load_config(ROOT / "config" / "default.yaml").train_settings("attention_e", 0)
    assert TrainSettings.model_validate_json(settings.canonical()) == settings
    swapped = json.dumps(dict(reversed(json.loads(settings.canonical()).items())))
    assert TrainSettings.model_validate_json(swapped).canonical() == settings.canonical()


def test_an_arm_that_differs_only_at_test_time_takes_the_weights_of_its_trained_arm():
    config = load_config(ROOT / "config" / "default.yaml")
    assert config.trained_arms == ("attention_o", "attention_e", "acl2022")
    assert config.weights_of("attention_o_logn_at_test") == "attention_o"
    assert config.weights_of("acl2022") == "acl2022"


# Pages made from the models.


def assert_is_current(path: Path, expected: str, command: str) -> None:
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    name = path.relative_to(ROOT).as_posix()
    diff = "".join(
        difflib.unified_diff(
            found.splitlines(keepends=True), expected.splitlines(keepends=True), name, f"{name} from the models"
        )
    )
    assert found == expected, f"{name} is out of date; run `{command}` and commit the file\n{diff}"


def test_the_configuration_page_is_what_the_models_say():
    assert_is_current(ROOT / "docs" / "configuration.md", docs.configuration_page(), docs.PAGE_COMMAND)


def test_the_schema_is_what_the_models_say():
    text = json.dumps(docs.json_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert_is_current(ROOT / "config" / "schema.json", text, docs.SCHEMA_COMMAND)


def test_an_outdated_page_is_reported_with_a_diff_and_the_command():
    with pytest.raises(AssertionError) as caught:
        assert_is_current(ROOT / "docs" / "configuration.md", docs.configuration_page() + "new line\n", "the command")
    assert "+new line" in str(caught.value)
    assert "run `the command`" in str(caught.value)


def test_the_page_names_every_key_and_its_description():
    page = docs.configuration_page()
    for section, key in all_leaves():
        assert f"`{section}.{key}`" in page
    for definition in docs.json_schema()["$defs"].values():
        for field in definition["properties"].values():
            assert field["description"] in page


def examples() -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", docs.configuration_page(), flags=re.DOTALL)


def test_the_page_has_four_examples():
    assert len(examples()) == 4


@pytest.mark.parametrize("text", examples(), ids=[title for title, _, _ in docs.EXAMPLES])
def test_the_examples_of_the_page_load(text):
    config = parse_config(yaml.safe_load(text), "example")
    jsonschema.validate(yaml.safe_load(text), docs.json_schema())
    assert config.arms


def test_the_examples_show_what_they_promise():
    own, seeds, kinds, faithful = (parse_config(yaml.safe_load(text), "example") for text in examples())
    assert {source.kind for source in own.corpus.sources} == {"files"}
    assert len(seeds.seeds) >= 3
    for key in ("weights_of", "positions", "n_at_most", "training_lengths", "branch", "seeds"):
        assert any(getattr(arm, key) is not None for arm in kinds.arms.values()), key
    assert (faithful.model.width, faithful.model.recipe) == (384, "faithful")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_schema_accepts_the_named_runs_and_their_resolved_form(path):
    schema = docs.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), schema)
    jsonschema.validate(yaml.safe_load(resolved_yaml(load_config(path))), schema)


@pytest.mark.parametrize("text", ["sead: 1", "training: {tokens: 0}", "model: {preset: big}", "corpus: {sources: []}"])
def test_the_schema_refuses_what_editors_should_underline(text):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(text), docs.json_schema())


def test_every_pattern_has_words():
    def patterns(node):
        if isinstance(node, dict):
            if isinstance(node.get("pattern"), str):
                yield node["pattern"]
            yield from (key for key in node.get("patternProperties", ()))
            for value in node.values():
                yield from patterns(value)
        elif isinstance(node, list):
            for value in node:
                yield from patterns(value)

    found = set(patterns(docs.json_schema()))
    assert NAME in found
    assert found <= set(PATTERNS)
