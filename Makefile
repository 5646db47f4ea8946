# tabloop: `make` lists the targets.
PYTHON ?= python3.11
VENV := .venv
PY := $(VENV)/bin/python
TABLOOP := $(PY) -m infra.cli
# After `make setup GPU=1`, every target keeps the CUDA builds; `make setup GPU=` goes back to the CPU's.
GPU ?= $(if $(wildcard $(VENV)/.installed-gpu),1)
LIST := infra/requirements/$(if $(GPU),gpu,cpu).txt
STAMP := $(VENV)/.installed-$(if $(GPU),gpu,cpu)
DOCS_VENV := .venv-docs
DOCS_LIST := infra/requirements/docs.txt
DOCS_STAMP := $(DOCS_VENV)/.installed
MOVE = $(if $(VERSION),"$$VERSION") --reason "$$REASON" $(if $(DRY_RUN),--dry-run) $(if $(APPROVE),--approve)

.DEFAULT_GOAL := help
.PHONY: help setup up down status demo try promote rollback test test-long coverage check bench docs base requirements audit

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with the pinned packages (GPU=1: CUDA builds)

# The stamp holds the folder that .venv was made in: a checkout that moved is set up again, which says what to do.
HERE := $(realpath $(VENV))
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(HERE))
.PHONY: $(STAMP)
endif

$(STAMP): $(LIST)
	@rm -f $(VENV)/.installed-*
	sh infra/requirements/install.sh $(PYTHON) $(VENV) $(LIST)
	@cd $(VENV) && pwd -P >$(notdir $@)

up: $(STAMP) ## start the stack on this machine and wait until every part is ready
	$(TABLOOP) up

down: $(STAMP) ## stop the stack, including processes left by earlier runs
	$(TABLOOP) down

status: $(STAMP) ## show every part's state, address and log
	@$(TABLOOP) status

demo: $(STAMP) ## run the whole loop with simulated developers and show the model improve
	$(TABLOOP) demo $(ARGS)

try: $(STAMP) ## send one completion and one feedback event to the running stack, step by step
	@$(TABLOOP) try

promote: $(STAMP) ## make a version the champion (VERSION=3 REASON="..." DRY_RUN=1 APPROVE=1; without VERSION: the challenger)
	@$(TABLOOP) promote $(MOVE)

rollback: $(STAMP) ## put the champion before this one back (VERSION, REASON, DRY_RUN, APPROVE as for promote)
	@$(TABLOOP) rollback $(MOVE)

# Three processes keep two cores busy: those with servers wait for a sixth of their time.
test: $(STAMP) ## run the tests, including those that start the stack (ARGS="-m 'not stack'": without them)
	$(PY) -m pytest -n 3 --no-loadscope-reorder $(ARGS)

test-long: $(STAMP) ## run the tests that `make test` leaves out, each for the reason of its mark `long`
	$(PY) -m pytest -n 2 --no-loadscope-reorder --long $(ARGS)

coverage: $(STAMP) ## run the tests without servers, and check their coverage
	$(PY) -m pytest -n 2 --no-loadscope-reorder -m "not stack" --cov $(ARGS)

check: $(STAMP) ## check lint, format, types, spelling and layering
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy infra serving tasks evals flows tests
	$(PY) -m codespell_lib $$(git ls-files)
	$(PY) -m pytest tests/test_layering.py

bench: $(STAMP) ## run the benchmarks and write var/bench/NAME.json
	$(TABLOOP) bench $(ARGS)

docs: $(STAMP) $(DOCS_STAMP) ## build the documentation into var/docs (its packages are in .venv-docs)
	$(TABLOOP) docs

$(DOCS_STAMP): $(DOCS_LIST)
	sh infra/requirements/install.sh $(PYTHON) $(DOCS_VENV) $(DOCS_LIST) mkdocs
	$(DOCS_VENV)/bin/python infra/requirements/licences.py $(DOCS_LIST)
	@touch $@

base: $(STAMP) ## train the small base model into infra/base_model, and tune it to the places where editors ask
	$(TABLOOP) base

requirements: $(STAMP) ## resolve the pinned lists from pyproject.toml, with hashes and licences
	sh infra/requirements/compile.sh $(PY)
	$(PY) infra/requirements/licences.py $(LIST) --write

audit: $(STAMP) ## check the pinned lists for licences and advisories (says so where no advisory database can be reached)
	$(PY) infra/requirements/licences.py $(LIST)
	$(PY) infra/requirements/audit.py $(LIST) || test $$? -eq 3
