"""The configuration: what it accepts, one sentence for everything else, and pages that match the models."""

import copy
import difflib
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from attnscale import docs
from attnscale.cli import resolved_yaml
from attnscale.config import PRESETS, Config, TrainSettings, load_config, parse_config
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
    ("evaluation: {lengths: [32, 64]}", ["evaluation.lengths: 32 is not a multiple of training.length 64", "choose"]),
    ("training: {length: 48}", ["evaluation.lengths: 64 is not a multiple of training.length 48"]),
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
    with pytest.raises(UserError) as caught:
        parse_config({**MINIMAL, section: value}, "c.yaml")
    assert section in str(caught.value)
    assert_is_one_plain_sentence(str(caught.value))


def all_leaves():
    for section, field in Config.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and hasattr(model, "model_fields"):
            yield from ((section, key) for key in model.model_fields)


@pytest.mark.parametrize(("section", "key"), list(all_leaves()), ids=lambda part: part)
@pytest.mark.parametrize("value", [{"a": {"b": 1}}, [[1]], "zzz", -1, float("nan"), "a\nb"], ids=repr)
def test_no_key_answers_nonsense_with_a_traceback(section, key, value):
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
    longer = parse_config(merged("training: {tokens: 7}"), "c.yaml")
    assert longer.evaluate_settings("o", 0).canonical() == one.evaluate_settings("o", 0).canonical()


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


def test_the_page_has_three_examples():
    assert len(examples()) == 3


@pytest.mark.parametrize("text", examples(), ids=[title for title, _, _ in docs.EXAMPLES])
def test_the_examples_of_the_page_load(text):
    config = parse_config(yaml.safe_load(text), "example")
    jsonschema.validate(yaml.safe_load(text), docs.json_schema())
    assert config.arms


def test_the_examples_show_what_they_promise():
    own, seeds, faithful = (parse_config(yaml.safe_load(text), "example") for text in examples())
    assert {source.kind for source in own.corpus.sources} == {"files"}
    assert len(seeds.seeds) >= 3
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
