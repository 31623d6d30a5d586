"""Results of each source of the text on its own: a mean over sources can hide that they differ.

Array names end in their shape: K evaluation blocks.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from attnscale.analysis.differences import Evaluations, difference_table, load_evaluations
from attnscale.analysis.evaluation_tables import read_evaluations
from attnscale.analysis.settings import DifferencesSettings
from attnscale.corpus.documents import read_documents
from attnscale.errors import UserError
from attnscale.files import read_json, write_text
from attnscale.tokens.load import load_evaluation_set, load_held_out_tokens

ACCURACY_COLUMNS = ("source", "arm", "seed", "length", "documents", "blocks", "correct", "total", "accuracy")
DIFFERENCE_COLUMNS = ("source", "arm", "baseline", "length", "seeds", "mean", "ci_low", "ci_high")


def write_by_source(
    settings: DifferencesSettings, evaluations: Sequence[Path], corpus_dir: Path, tokens_dir: Path, output_dir: Path
) -> None:
    """Write `accuracy_by_source.csv` and `differences_by_source.csv`.

    The first counts like `accuracy.csv`, in the blocks of one source at a time; `documents` and `blocks` tell what it
    is counted on. The second has the differences of `differences.csv`, in points of percent, estimated from these
    blocks alone. It holds no tests: a corrected p over so many rows says nothing.

    Args:
        settings: comparisons and how they are made.
        evaluations: CSV files of the evaluate stage, in the order wanted for the arms.
        corpus_dir: output of the corpus stage; its manifest gives the order of the sources.
        tokens_dir: output of the tokens stage with the evaluation blocks.
        output_dir: gets the two files.

    Raises:
        UserError: an input is missing or damaged, or the evaluations are not of these blocks.
    """
    documents = documents_of_blocks(corpus_dir, tokens_dir)
    table = read_evaluations(evaluations)
    if table["block"].max() + 1 != len(documents):
        raise UserError(
            f"{evaluations[0]} has {table['block'].max() + 1} blocks where {tokens_dir} has {len(documents)}; "
            "evaluate again"
        )
    table["source"] = documents["source"].to_numpy()[table["block"]]
    table["document"] = documents["document"].to_numpy()[table["block"]]
    names = [str(source["name"]) for source in read_json(corpus_dir / "manifest.json")["sources"]]
    sources = [name for name in dict.fromkeys(names) if (documents["source"] == name).any()]
    accuracy = pd.concat([_accuracy(table[table["source"] == source]) for source in sources])
    whole = load_evaluations(evaluations)
    differences = pd.concat(
        [
            difference_table(settings, _blocks_only(whole, (documents["source"] == source).to_numpy())).assign(
                source=source
            )
            for source in sources
        ]
    )
    for name, frame, columns in (
        ("accuracy_by_source.csv", accuracy, ACCURACY_COLUMNS),
        ("differences_by_source.csv", differences, DIFFERENCE_COLUMNS),
    ):
        text = frame[list(columns)].to_csv(index=False, float_format="%.17g", lineterminator="\n")
        write_text(output_dir / name, text)


def documents_of_blocks(corpus_dir: Path, tokens_dir: Path) -> pd.DataFrame:
    """The document of every evaluation block, found by its tokens, and the source of that.

    Should two documents begin with the same block, it counts for the first.

    Args:
        corpus_dir: output of the corpus stage.
        tokens_dir: output of the tokens stage with the evaluation blocks.

    Returns:
        One row per block in their order: `document`, the number of the held-out document by rising id, and `source`.

    Raises:
        UserError: an input is missing or damaged, or they are not of the same text.
    """
    held_out = load_held_out_tokens(tokens_dir)
    ids_KN = load_evaluation_set(tokens_dir).ids_KN
    listed = sorted((document.id, document.source) for document in read_documents(corpus_dir / "held_out.jsonl"))
    if len(listed) != len(held_out.lengths):
        raise UserError(f"{corpus_dir} and {tokens_dir} are not of the same text; run the tokens stage again")
    longest = ids_KN.shape[1]
    found: dict[bytes, int] = {}
    for number, (start, length) in enumerate(zip(held_out.offsets[:-1], held_out.lengths, strict=True)):
        for turn in range(length // longest):
            block_N = held_out.ids[start + turn * longest :][:longest]
            found.setdefault(block_N.tobytes(), number)
    numbers = [found.get(block_N.tobytes()) for block_N in ids_KN]
    if any(number is None for number in numbers):
        raise UserError(f"the evaluation blocks in {tokens_dir} are not of its documents; cut them again")
    return pd.DataFrame(
        {"document": numbers, "source": [listed[number][1] for number in numbers if number is not None]}
    )


def _accuracy(table: pd.DataFrame) -> pd.DataFrame:
    """Sums over the blocks of one source."""
    groups = table.groupby(["source", "arm", "seed", "length"], sort=False)
    sums = groups[["correct", "total"]].sum()
    counts = groups.agg(documents=("document", "nunique"), blocks=("block", "nunique"))
    return counts.join(sums).assign(accuracy=sums["correct"] / sums["total"]).reset_index()


def _blocks_only(whole: Evaluations, chosen_K: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Evaluations:
    """The same evaluations as if there were only these blocks."""
    correct = {
        place: {seed: counts_K[chosen_K] for seed, counts_K in by_seed.items()}
        for place, by_seed in whole.correct.items()
    }
    return dataclasses.replace(whole, correct=correct, total_K=whole.total_K[chosen_K])
