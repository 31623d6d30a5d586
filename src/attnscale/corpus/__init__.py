"""The corpus stage: pinned sources in, cleaned and split documents out."""

from attnscale.corpus.build import build_corpus
from attnscale.corpus.documents import Document, read_documents

__all__ = ["Document", "build_corpus", "read_documents"]
