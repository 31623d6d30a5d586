"""The parts of `benchmarks/gpu.py`, the prepared check of training on a GPU."""
