#!/usr/bin/env bash
# Snakemake runs this inside the new conda environment: the pinned packages come from the locks, hashes checked.
set -euo pipefail
python envs/install.py --here
