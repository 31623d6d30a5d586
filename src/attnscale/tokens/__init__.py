"""Text to ids: the tokenizer, windows and masks.

Nothing is re-exported here on purpose: a workflow rule lists the package files that it depends on, and
training needs `batches`, `load`, `masks` and `vocabulary`, not the tokenizer.
"""
