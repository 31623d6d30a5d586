"""The prepared check of training on a GPU: `python benchmarks/gpu.py --tokens results/NAME/tokens --output FOLDER`.

It needs nothing but torch, numpy, safetensors and the source beside it, and keeps a budget of minutes: does the GPU
compute what the CPU computes, and the same bytes twice; how fast is training; and with the time that is left, it
trains and evaluates all arms, seed after seed. Without a GPU: `--device cpu --preset smoke`.
"""

import sys
import time
from pathlib import Path

if __name__ == "__main__":
    started = time.monotonic()  # before torch is imported: the budget is that of the whole command
    project = Path(__file__).resolve().parents[1]
    # In place of this folder, whose modules are those of the package `benchmarks`.
    sys.path[:1] = [str(project), str(project / "src")]
    from benchmarks.device.command import main

    sys.exit(main(sys.argv[1:], started))
