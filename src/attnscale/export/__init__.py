"""A finished model leaves as a folder that transformers loads."""

from attnscale.export.build import export

__all__ = ["export"]
