"""attnscale: which attention scale lets a model trained on short text keep working on long text?

A replication bench for "Attention's scale seen from entropy invariance" (kexue.fm/archives/8823).
Every stage of the pipeline is a plain function here; `attnscale.cli` gives each a subcommand and the
Snakemake rules call nothing else.
"""

__version__ = "0.1.0"
