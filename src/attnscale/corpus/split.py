"""Which documents are held out: a function of their text alone, so the same on every machine."""

from collections.abc import Sequence


def split_position(document_id: str) -> float:
    """A number in [0, 1] from the last 64 bits of the id.

    The first bits are left to `corpus.max_documents`, which keeps the smallest ids: were the same bits
    used for both, a smaller corpus would consist of held-out documents only.
    """
    return int(document_id[-16:], 16) / 2.0**64


def held_out_flags(ids: Sequence[str], fraction: float) -> list[bool]:
    """Tell for every document whether it is held out.

    A document is held out if its `split_position` is below `fraction`. In a corpus so small that one side
    would be empty, the document with the smallest position is held out, or the one with the largest is
    trained on.

    Args:
        ids: at least two different document ids.
        fraction: wanted share of held-out documents, between 0 and 1.

    Returns:
        One flag per id, both values present.
    """
    if len(ids) < 2:
        raise ValueError("a split needs at least two documents")
    order = sorted(range(len(ids)), key=lambda index: (split_position(ids[index]), ids[index]))
    flags = [split_position(id_) < fraction for id_ in ids]
    flags[order[0]] = True
    flags[order[-1]] = False
    return flags
