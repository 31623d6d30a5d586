"""A finished RoFormer from elsewhere, evaluated under this protocol with what changes at test time; trains nothing."""

from attnscale.checkpoint.build import import_checkpoint

__all__ = ["import_checkpoint"]
