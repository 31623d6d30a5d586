# `make` reads: environment, then the whole pipeline. All logic lives in envs/, the Snakefile and src/.
#   CONFIG=config/X.yaml  another configuration    CORES=N  fewer cores    PYTHON=python3.12  another Python for .venv

CONFIG ?= config/default.yaml
CORES ?= all
PYTHON ?= python3
BIN := .venv/bin

# Snakemake's jobs call `attnscale` by name.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := all
.PHONY: all env test-env cluster-env smoke test test-slurm bench report pdf clean lock help

all: env ## run CONFIG: text in, report out
	@"$(BIN)/attnscale" config --configfile "$(CONFIG)" >/dev/null
	"$(BIN)/snakemake" --cores "$(CORES)" --configfile "$(CONFIG)"

env: ## make .venv from the hashed locks, if it does not agree with them
	@"$(PYTHON)" envs/install.py

test-env:
	@"$(PYTHON)" envs/install.py --with-tests

cluster-env: ## env, with Snakemake's plugins for clusters (docs/cluster.md)
	@"$(PYTHON)" envs/install.py --with-cluster

smoke: env ## the whole pipeline on a tiny model
	"$(BIN)/snakemake" --cores "$(CORES)" --configfile config/smoke.yaml

test: test-env ## all that continuous integration checks
	@"$(BIN)/python" envs/check.py

test-slurm: ## the pipeline on a real Slurm that is started here, with faults (Debian, Ubuntu; as root if it must be installed)
	@"$(PYTHON)" envs/install.py --with-tests --with-cluster
	@"$(BIN)/python" -m tests.slurm

bench: test-env ## measure speed and memory against peers and aims (minutes; needs an idle machine)
	"$(BIN)/python" -m benchmarks.run

report: env ## write the report of a finished run of CONFIG again, without training
	"$(BIN)/attnscale" report --configfile "$(CONFIG)"

pdf: env ## print the report of CONFIG with an installed Chromium or Chrome
	"$(BIN)/snakemake" pdf --cores "$(CORES)" --configfile "$(CONFIG)"

clean: env ## remove what a run of CONFIG made; says what
	"$(BIN)/attnscale" clean --configfile "$(CONFIG)"

lock: ## write the locks again from pyproject.toml (needs uv)
	"$(PYTHON)" envs/make_locks.py

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile
