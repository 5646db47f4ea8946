# tabloop: `make` lists what there is to make.
PYTHON ?= python3.11
VENV := .venv
PY := $(VENV)/bin/python
GPU ?=
LIST := infra/requirements/$(if $(GPU),gpu,cpu).txt
STAMP := $(VENV)/.installed-$(if $(GPU),gpu,cpu)

.DEFAULT_GOAL := help
.PHONY: help setup up down status demo try test check bench base requirements

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the pinned packages (GPU=1: the CUDA builds)

$(STAMP): $(LIST)
	sh infra/requirements/install.sh $(PYTHON) $(VENV) $(LIST)
	@touch $@

up: $(STAMP) ## start the stack on this machine and wait until every part answers
	$(PY) -m infra.stack up

down: $(STAMP) ## stop the stack, whatever an earlier run left included
	$(PY) -m infra.stack down

status: $(STAMP) ## how every part is, with addresses and logs
	@$(PY) -m infra.stack status

demo: $(STAMP) ## watch a model get better from simulated developers
	$(PY) -m evals.demo $(ARGS)

try: $(STAMP) ## one completion and one feedback event through the real endpoints, step by step
	@$(PY) -m infra.stack.try_it

test: $(STAMP) ## all tests, the real stack included (ARGS="-m 'not stack'" for the quick ones)
	$(PY) -m pytest $(ARGS)

check: $(STAMP) ## lint, format, types, layering
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy infra serving tasks evals flows
	$(PY) -m pytest tests/test_layering.py

bench: $(STAMP) ## the benchmarks, into var/bench/NAME.json
	$(PY) -m evals.bench $(ARGS)

base: $(STAMP) ## train the small base model again, into infra/base_model
	$(PY) -m tasks.trainer.base $(ARGS)

requirements: $(STAMP) ## resolve the pinned lists again from pyproject.toml
	sh infra/requirements/compile.sh $(PY)
