"""How the raw documents of a source are put together before they are cleaned."""

from collections.abc import Iterable, Iterator

from attnscale.config import SourceRules
from attnscale.corpus.formats import Raw


class Counts:
    """What reading a source met, filled while its documents are read.

    Attributes:
        read: documents that came out of the source.
        same_title: of these, how many gave way to a later one of the same title.
        made: documents after cutting and joining.
    """

    def __init__(self) -> None:
        self.read = self.same_title = self.made = 0


def regroup(documents: Iterable[Raw], rules: SourceRules, counts: Counts) -> Iterator[Raw]:
    """Yield the documents that are to be cleaned: one per title, cut, joined, as the rules of the source say."""
    documents = _counted(documents, counts)
    if rules.one_per_title:
        documents = _last_of_each_title(documents, counts)
    if rules.cut_at is not None:
        documents = (piece for title, text in documents for piece in cut(title, text, rules.cut_at))
    if rules.join_until is not None:
        documents = join(documents, rules.join_until)
    for document in documents:
        counts.made += 1
        yield document


def _counted(documents: Iterable[Raw], counts: Counts) -> Iterator[Raw]:
    for document in documents:
        counts.read += 1
        yield document


def _last_of_each_title(documents: Iterable[Raw], counts: Counts) -> Iterator[Raw]:
    """In the order in which the titles came first; the source has to fit into memory."""
    kept: dict[str, str] = {}
    for title, text in documents:
        counts.same_title += title in kept
        kept[title] = text
    yield from kept.items()


def cut(title: str, text: str, longest: int) -> Iterator[Raw]:
    """Cut a text into pieces of at most `longest` characters, at the last line end that fits, else at a blank.

    Pieces of a text that had to be cut are titled `title part 1` and so on.
    """
    if len(text) <= longest:
        yield title, text
        return
    start = part = 0
    while start < len(text):
        end = start + longest
        if end < len(text):
            # A cut in the first half would leave crumbs of a text with a single line end.
            places = (text.rfind(mark, start + longest // 2, end) for mark in ("\n", " "))
            end = next((place + 1 for place in places if place >= 0), end)
        part += 1
        yield f"{title} part {part}", text[start:end]
        start = end


def join(documents: Iterable[Raw], least: int) -> Iterator[Raw]:
    """Join documents that follow each other until they have `least` characters, with an empty line between them.

    The title is that of the first. What is left at the end goes to the last document that was long enough.
    """
    whole: tuple[str, list[str]] | None = None
    title, parts, size = "", list[str](), 0
    for name, text in documents:
        title = title if parts else name
        parts.append(text)
        size += len(text)
        if size >= least:
            if whole is not None:
                yield whole[0], "\n\n".join(whole[1])
            whole = title, parts
            parts, size = [], 0
    if whole is not None:
        title, parts = whole[0], [*whole[1], *parts]
    if parts:
        yield title, "\n\n".join(parts)
