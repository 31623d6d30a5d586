"""The model card, README.md of an exported folder."""

import dataclasses
from pathlib import Path

from attnscale.csv_files import read_table
from attnscale.export.arm import Exported
from attnscale.records import CorpusManifest, VocabularyRecord, read_record


def scale_words(exported: Exported) -> str:
    """What became of the scale, in half a sentence."""
    if not exported.varies:
        return "its scale is the same at every length"
    if exported.length is not None:
        return f"its scale is folded in at n = {exported.length} and is right for that number of tokens only"
    return "its scale follows the number of tokens"


def card(run: Path, exported: Exported) -> str:
    """README.md of the folder, the model card."""
    config, arm, model = exported.config, exported.arm, exported.model
    settings = config.arms[arm]
    trust = "" if exported.roformer else ", trust_remote_code=True"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    tokens = read_record(run / "tokens" / "manifest.json", VocabularyRecord)
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: fill-mask",
        "tags: [attention-scale, masked-language-modelling]",
        "---",
        "",
        f"# {config.name}: {arm}, seed {exported.seed}",
        "",
        "A masked language model of a comparison of attention scales, made with attnscale. It is small and trained for",
        "that comparison; it is of no other use.",
        "",
        "```python",
        "from transformers import AutoModelForMaskedLM, AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
        f'model = AutoModelForMaskedLM.from_pretrained("FOLDER"{trust}).eval()',
        'logits = model(**tokenizer("A text with a [MASK].", return_tensors="pt")).logits',
        "```",
        "",
        "## Scale",
        "",
        f"- attention: {settings.attention.name}, factor on q·k {model.variant.formula} ({model.variant.source})",
        *_parameter_lines(exported),
        *_scale_lines(exported),
        "",
        "## Model",
        "",
        f"- recipe: {model.config.recipe}; {model.config.layers} layers, width {model.config.width}, "
        f"{model.config.heads} heads, {parameters} parameters",
        f"- trained at {config.training.length} tokens, {config.training.tokens} tokens in all, "
        f"mask rate {config.training.mask_rate:g}",
        *([f"- weights trained as {settings.weights_of}; the scale differs at test time only"]
          if settings.weights_of else []),
        f"- vocabulary: {tokens.kind}, {tokens.vocabulary_size} ids; "
        "the text was cleaned before it was cut (line ends, control characters, Unicode NFC)",
        *_source_lines(run),
        *_form_lines(exported),
        *_accuracy_lines(run, exported),
    ]  # fmt: skip
    return "".join(f"{line}\n" for line in lines)


def _parameter_lines(exported: Exported) -> list[str]:
    variant, limits = exported.model.variant, exported.config.encoder_settings(exported.arm)
    lines = []
    for field in dataclasses.fields(variant):
        value = getattr(variant, field.name)
        meant = f", which is {exported.config.training.length}" if value == "training_length" else ""
        lines.append(f"- {field.name} = {value}{meant}")
    if limits.n_at_least is not None:
        lines.append(f"- n is taken to be at least {limits.n_at_least}")
    if limits.n_at_most is not None:
        lines.append(f"- n is taken to be at most {limits.n_at_most}")
    return lines


def _scale_lines(exported: Exported) -> list[str]:
    heads_GH, common_B = exported.scales.heads_GH, exported.scales.common_B
    plain = bool((heads_GH == 1).all())
    learned = "" if plain else " Factors that heads learned are folded in too."
    if exported.has_table:
        return [
            f"- `scale_by_n` in the weights holds the factor relative to 1/sqrt(d) for up to {len(common_B) - 1} real",
            f"  keys of a row; nothing depends on a chosen length.{learned}",
        ]
    if exported.length is not None:
        return [
            f"- folded at n = {exported.length}: the weights and biases that make the queries are multiplied by",
            f"  {common_B[-1]:.6g}, the factor at that n relative to 1/sqrt(d). At any other number of real keys the",
            f"  logits are not those of the arm.{learned}",
        ]
    if common_B[-1] == 1:
        return [f"- the factor is 1/sqrt(d) at every length; nothing is folded.{learned}"]
    return [f"- the factor is the same at every length, {common_B[-1]:.6g}/sqrt(d), and is folded in.{learned}"]


def _form_lines(exported: Exported) -> list[str]:
    if exported.roformer:
        return [f"- form: RoFormerForMaskedLM; reads up to {exported.positions} tokens"]
    return [
        "- form: the code in modeling_attnscale.py, which trust_remote_code=True lets run; read it first",
        "- it has no dropout, also where the training had",
    ]


def _source_lines(run: Path) -> list[str]:
    path = run / "corpus" / "manifest.json"
    sources = read_record(path, CorpusManifest).sources if path.is_file() else ()
    named = [(f"{each.name} {each.version or ''}".rstrip(), each.licence) for each in sources]
    return [f"- text: {name} ({licence})" for name, licence in named]


def _accuracy_lines(run: Path, exported: Exported) -> list[str]:
    path = run / "accuracy.csv"
    if not path.is_file():
        return []
    table = read_table(path, words=("arm",), whole=("seed", "length", "correct", "total"))
    mine = table[(table["arm"] == exported.arm) & (table["seed"] == exported.seed)]
    if mine.empty:
        return []
    cells = [f"| {row['length']} | {100 * row['correct'] / row['total']:.2f} |" for row in mine.to_dict("records")]
    told = "On held-out text, by the number of tokens that are read at once"
    if exported.length is not None:
        told += f", each with the arm's own scale there; what is folded in here is that of {exported.length}"
    return ["", "## Accuracy", "", f"{told}:", "", "| tokens | % |", "|--:|--:|", *cells]
