"""A finished model as a folder that transformers loads; nothing here imports transformers.

Two forms. A model with `recipe: faithful`, plain rotary positions and one scale for all lengths is a RoFormer as
transformers knows it. Any other has code that travels with it, `modeling_attnscale.py`.
"""

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers import models as tokenizer_models
from torch import Tensor

from attnscale.errors import UserError
from attnscale.export.arm import LONGEST, Exported, prepared
from attnscale.export.card import card, scale_words
from attnscale.export.folding import fold
from attnscale.files import write_bytes, write_json, write_text
from attnscale.finished import check_models, chosen_arm, chosen_seed, load_run_tokenizer, read_run
from attnscale.folders import check_target, whole_folder
from attnscale.huggingface import to_roformer
from attnscale.manifest import check_inputs, is_imported
from attnscale.tokens.load import load_vocabulary
from attnscale.tokens.vocabulary import SPECIAL_TOKENS, Vocabulary

CODE = "modeling_attnscale"


def export(run: Path, folder: Path, *, arm: str, seed: int | None = None, length: int | None = None) -> str:
    """Write a finished model for `AutoModelForMaskedLM` and `AutoTokenizer` of transformers.

    Args:
        run: folder of a run, results/NAME.
        folder: to be written, as a whole or not at all; it must not exist, or be empty.
        arm: which arm, with what it changes at test time.
        seed: which seed; None for the first of the arm.
        length: n at which a scale that changes with n is folded into the weights that make the queries, so that it is
            the same at every length from then on. None keeps it as it is: code that travels with the weights looks it
            up at every n.

    Returns:
        What was written, in one sentence.

    Raises:
        UserError: the run lacks something, an arm or seed is not known, the arm cannot be represented, or `folder` is
            in use.
    """
    check_target(folder)
    config = read_run(run)
    if is_imported(run):
        raise UserError(f"{run} is an imported checkpoint, which has the form of transformers already; copy its folder")
    seed = chosen_seed(config, chosen_arm(config, arm), seed)
    if length is not None and not 1 <= length <= LONGEST:
        raise UserError(f"--length {length} must be a number of tokens from 1 to {LONGEST}")
    check_models(run, config, [(arm, seed)])
    check_inputs(run, ["accuracy.csv", "corpus/manifest.json"])
    exported = prepared(run, config, arm, seed, length)
    tokenizer, vocabulary = load_run_tokenizer(run).tokenizer, load_vocabulary(run / "tokens")
    state, table = _weights(exported)
    with whole_folder(folder) as part:
        # Metadata of one key: transformers of version 4 refuse a file without, and two keys have no fixed order.
        write_bytes(part / "model.safetensors", safetensors.torch.save(state, {"format": "pt"}))
        write_json(part / "config.json", _model_config(exported, vocabulary, table))
        write_text(part / "tokenizer.json", _tokenizer_json(tokenizer))
        write_json(part / "tokenizer_config.json", _tokenizer_config(exported, tokenizer, table))
        if not exported.roformer:
            code = Path(__file__).with_name(f"{CODE}.py").read_text(encoding="utf-8")
            write_text(part / f"{CODE}.py", code)
        write_text(part / "README.md", card(run, exported))
    kind = "a RoFormer of transformers" if exported.roformer else f"a model with code of its own, {CODE}.py"
    return f"written: {folder}, {arm} seed {seed} as {kind}; {scale_words(exported)}"


def _weights(exported: Exported) -> tuple[dict[str, Tensor], int]:
    """Tensors to write by name, and the length of the table of scales among them, 0 if there is none."""
    shape, found = exported.model.config, exported.scales
    common = torch.ones(()) if exported.has_table else found.common_B[-1]
    state = fold(exported.model.state_dict(), found.heads_GH * common)
    if exported.roformer:
        return to_roformer(state, shape.layers, shape.heads, exported.positions), 0
    if exported.has_table:
        # Whatever a formula says of no key at all, or of one, must be a number; no row has none.
        state["scale_by_n"] = torch.nan_to_num(found.common_B).float()
    return {name: tensor.contiguous() for name, tensor in state.items()}, len(state.get("scale_by_n", ()))


def _model_config(exported: Exported, vocabulary: Vocabulary, table: int) -> dict[str, Any]:
    shape = exported.model.config
    common = {
        "vocab_size": vocabulary.size,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feed_forward,
        "pad_token_id": vocabulary.pad_id,
        "tie_word_embeddings": exported.roformer,
        "torch_dtype": "float32",
    }
    if exported.roformer:
        return {
            **common,
            "architectures": ["RoFormerForMaskedLM"],
            "model_type": "roformer",
            "embedding_size": shape.width,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": exported.positions,
            "rotary_value": False,
            "type_vocab_size": 2,
        }
    return {
        **common,
        "architectures": ["AttnscaleForMaskedLM"],
        "auto_map": {"AutoConfig": f"{CODE}.AttnscaleConfig", "AutoModelForMaskedLM": f"{CODE}.AttnscaleForMaskedLM"},
        "model_type": "attnscale",
        "recipe": shape.recipe,
        "rope_theta": shape.rope_theta,
        "scales": table,
    }


def _tokenizer_json(tokenizer: Tokenizer) -> str:
    """The tokenizer with its special tokens registered, so that [MASK] in a text is one token.

    In the pipeline they are not, since documents may hold these words.
    """
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.add_special_tokens([AddedToken(**_added(tokenizer, token)) for token in SPECIAL_TOKENS])
    return str(copy.to_str(pretty=True)) + "\n"


def _added(tokenizer: Tokenizer, token: str) -> dict[str, Any]:
    # A byte-level token holds the blank in front of its word, so the blank in front of [MASK] is part of it.
    blank = token == "[MASK]" and isinstance(tokenizer.model, tokenizer_models.BPE)
    return {
        "content": token, "lstrip": blank, "rstrip": False, "normalized": False, "single_word": False, "special": True,
    }  # fmt: skip


def _tokenizer_config(exported: Exported, tokenizer: Tokenizer, table: int) -> dict[str, Any]:
    longest = table - 1 if table else exported.positions if exported.roformer else LONGEST
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {str(number): _added(tokenizer, token) for number, token in enumerate(SPECIAL_TOKENS)},
        **{f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS},
    }
