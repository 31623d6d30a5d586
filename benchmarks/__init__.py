"""Measurements of speed and memory; `python -m benchmarks.run --help` says how to start them."""
