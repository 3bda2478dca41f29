# A fresh clone needs no other step first: every target makes the environment it runs in, and .ci/bootstrap gets what the
# machine lacks. Everything goes into $(VENV), except the Vulkan driver and, on Debian, Python's venv module.

# The interpreter that $(VENV) is made with: 3.11 or newer.
PYTHON ?= python3
VENV = .venv
# More arguments for the command behind demo (gradcheck), generate and validate, bench, tune.
ARGS =
# Each worker opens the GPU, so that more of them seldom help. Empty runs the tests in one process.
TEST_ARGS = -n 2

COMMAND = $(VENV)/bin/wgsl-attention
INSTALL = sh .ci/bootstrap venv $(VENV) $(PYTHON) && $(VENV)/bin/python -m pip install --quiet --editable
RUN = $(VENV)/.installed
TEST = $(VENV)/.installed-test
BOTH = $(VENV)/.installed-dawn
DEV = $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test generate check validate bench tune lint ci clean driver compilers

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUN) driver ## generate the kernels and check the gradients of a real training step on this machine's GPU
	$(COMMAND) generate
	$(COMMAND) gradcheck $(ARGS)

test: $(TEST) driver ## run the tests
	$(VENV)/bin/python -m pytest $(TEST_ARGS)

generate: $(BOTH) driver ## render generated/, then compile every variant in it, with Tint without a driver
	$(COMMAND) generate
	$(COMMAND) validate --compiler naga $(ARGS)
	$(COMMAND) validate --compiler tint --driver none $(ARGS)

check: $(RUN) ## compare generated/ with what the templates give
	$(COMMAND) generate --check

validate: $(BOTH) driver compilers ## compile every variant with both compilers, and run it on every driver there is
	$(COMMAND) validate --run $(ARGS)

bench: $(RUN) driver ## time the algorithms on this machine's GPU
	$(COMMAND) bench $(ARGS)

tune: $(RUN) driver ## find the fastest variants for this machine's GPU and keep them in a tuning table
	$(COMMAND) tune $(ARGS)

lint: $(DEV) ## ruff's rules and format, and strict types
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy

ci: ## everything that has to pass, as on a bare machine
	bash .ci/run

clean: ## remove the environment, builds and caches
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name .git -prune -o -name __pycache__ -prune -exec rm -rf {} +

driver: $(RUN)
	@sh .ci/bootstrap driver $(VENV)/bin/python

compilers:
	@sh .ci/bootstrap compilers

$(RUN): pyproject.toml .ci/bootstrap
	$(INSTALL) . && touch $@

$(BOTH): pyproject.toml .ci/bootstrap
	$(INSTALL) '.[dawn]' && touch $(RUN) $@

$(TEST): pyproject.toml .ci/bootstrap
	$(INSTALL) '.[test]' && touch $(RUN) $(BOTH) $@

$(DEV): pyproject.toml .ci/bootstrap
	$(INSTALL) '.[dev]' && touch $(RUN) $(BOTH) $(TEST) $@
