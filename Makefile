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
DEV = $(VENV)/.installed-dev
# mypy cannot follow an editable install to codegen/: it reads the package through links that give it its real name.
TYPES = rm -rf .cache/types && mkdir -p .cache/types/wgsl_attention && \
	ln -s '$(CURDIR)'/codegen/* '$(CURDIR)/templates' '$(CURDIR)/generated' .cache/types/wgsl_attention

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test generate check validate bench tune lint ci clean driver

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUN) driver ## generate the kernels and check the gradients of a real training step on this machine's GPU
	$(COMMAND) generate
	$(COMMAND) gradcheck $(ARGS)

test: $(TEST) driver ## run the tests
	$(VENV)/bin/python -m pytest $(TEST_ARGS)

generate: $(RUN) driver ## render generated/, then compile every variant in it
	$(COMMAND) generate
	$(COMMAND) validate $(ARGS)

check: $(RUN) ## compare generated/ with what the templates give
	$(COMMAND) generate --check

validate: $(RUN) driver ## compile and run every variant in generated/
	$(COMMAND) validate $(ARGS)

bench: $(RUN) driver ## time the algorithms on this machine's GPU
	$(COMMAND) bench $(ARGS)

tune: $(RUN) driver ## find the fastest variants for this machine's GPU and keep them in a tuning table
	$(COMMAND) tune $(ARGS)

lint: $(DEV) ## ruff's rules and format, and strict types
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .
	@$(TYPES)
	MYPYPATH=.cache/types $(VENV)/bin/mypy -p wgsl_attention

ci: ## everything that has to pass, as on a bare machine
	bash .ci/run

clean: ## remove the environment, builds and caches
	rm -rf .venv .cache build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name .git -prune -o -name __pycache__ -prune -exec rm -rf {} +

driver: $(RUN)
	@sh .ci/bootstrap driver $(VENV)/bin/python

$(RUN): pyproject.toml .ci/bootstrap
	$(INSTALL) . && touch $@

$(TEST): pyproject.toml .ci/bootstrap
	$(INSTALL) '.[test]' && touch $(RUN) $@

$(DEV): pyproject.toml .ci/bootstrap
	$(INSTALL) '.[dev]' && touch $(RUN) $(TEST) $@
