"""One prepared check of the training on a GPU: `python benchmarks/gpu --tokens results/NAME/tokens --output FOLDER`.

It needs nothing but torch, numpy, safetensors and this package's source, and keeps a budget of minutes.
"""
