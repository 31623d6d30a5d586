"""Cleaning rules, and which documents are kept. Raise `RULES_VERSION` with every change of a rule.

The work is done by `datasets` in memory, without its fingerprint cache, so nothing that an earlier run
left behind can reach the result.
"""

import contextlib
import re
import unicodedata
from collections.abc import Callable, Iterator

import datasets

from attnscale.corpus.documents import content_hash

RULES_VERSION = 1

# large_string: a column of plain strings ends at 2 GB. `origin` is the position in the table of sources.
FEATURES = datasets.Features(
    {
        "origin": datasets.Value("int32"),
        "source": datasets.Value("large_string"),
        "title": datasets.Value("large_string"),
        "text": datasets.Value("large_string"),
    }
)

CLEANED = datasets.Features({**FEATURES, "id": datasets.Value("string")})

# Form feeds and their kin separate lines, so words on both sides must not be glued together.
_LINE_ENDS = re.compile("\r\n|[\r\v\f\x85]")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff]")
# Unicode 17.0, Scripts.txt: ideographs with extensions A to J, compatibility ideographs, radicals (which stand for
# ideographs in text taken from PDF files), 々, 〇 and numerals.
_HAN = re.compile(
    "[\u2e80-\u2fd5\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003347f]"
)
_BLANK_LINES = re.compile("\n{4,}")


def clean_text(text: str) -> str:
    """Apply the cleaning rules; cleaning twice changes nothing more.

    Line ends become LF, control characters and byte order marks go, Unicode is composed (NFC), blanks at
    line ends go, more than two blank lines in a row become one, and empty lines at both ends go.
    """
    text = _CONTROLS.sub("", _LINE_ENDS.sub("\n", text))
    # After the controls, which could stand between a letter and its accent.
    text = unicodedata.normalize("NFC", text)
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return _BLANK_LINES.sub("\n\n", text).strip("\n")


@contextlib.contextmanager
def quiet_datasets() -> Iterator[None]:
    """Switch the progress bars and the fingerprint cache of `datasets` off for a while."""
    had_bars, had_cache = not datasets.are_progress_bars_disabled(), datasets.is_caching_enabled()
    datasets.disable_progress_bars()
    datasets.disable_caching()
    try:
        yield
    finally:
        if had_bars:
            datasets.enable_progress_bars()
        if had_cache:
            datasets.enable_caching()


def empty_table() -> datasets.Dataset:
    """No rows, in the form of `clean_rows`."""
    return datasets.Dataset.from_dict({name: [] for name in CLEANED}, features=CLEANED)


def clean_rows(
    rows: list[dict[str, object]], min_characters: int, min_han_share: float | None = None
) -> tuple[datasets.Dataset, dict[str, int]]:
    """Clean raw rows and drop those that end up too short or hold too few Chinese characters.

    Args:
        rows: dictionaries with the keys of `FEATURES`.
        min_characters: least length of a kept document, in characters after cleaning.
        min_han_share: least `han_share` of a kept document; None keeps all.

    Returns:
        The kept rows with an `id` column, and how many were dropped, by reason.
    """
    table = datasets.Dataset.from_list(rows, features=FEATURES)
    table = table.map(
        _clean_row,
        features=CLEANED,
        keep_in_memory=True,
        load_from_cache_file=False,
    )
    long_enough = _filter(table, lambda text: len(text) >= min_characters)
    dropped = {"too_short": len(table) - len(long_enough)}
    if min_han_share is None:
        return long_enough, dropped
    chinese = _filter(long_enough, lambda text: han_share(text) >= min_han_share)
    return chinese, {**dropped, "little_han": len(long_enough) - len(chinese)}


def han_share(text: str) -> float:
    """Share of Chinese characters, of Unicode's script Han, among all characters."""
    return len(_HAN.findall(text)) / max(1, len(text))


def _filter(table: datasets.Dataset, wanted: Callable[[str], bool]) -> datasets.Dataset:
    return table.filter(wanted, input_columns="text", keep_in_memory=True, load_from_cache_file=False)


def _clean_row(row: dict[str, str]) -> dict[str, str]:
    text = clean_text(row["text"])
    return {"text": text, "id": content_hash(text)}


def drop_duplicates(table: datasets.Dataset) -> datasets.Dataset:
    """Sort by id and keep one row of each id.

    Of equal texts the one with the smallest source name, then title, stays, so that the order of the
    sources does not matter.
    """
    rows = list(zip(table["id"], table["source"], table["title"], table["origin"], strict=True))
    order = sorted(range(len(rows)), key=rows.__getitem__)
    first = [index for place, index in enumerate(order) if place == 0 or rows[index][0] != rows[order[place - 1]][0]]
    return table.select(first, keep_in_memory=True)
