# make train: from a fresh machine to a trained model. make help lists the rest.
PYTHON ?= python3
ARGS ?=
LANES ?= 2
# One more than LANES, for tests that spend part of their time waiting.
WAITING_LANES = $(or $(shell expr $(LANES) + 1 2>/dev/null),$(error LANES=$(LANES): expected how many test files to run at a time, such as LANES=2))
N ?=
SEED ?= 0
SUITE ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev wheels train test unit contract training lab oracle keras-tests exhaustive repeat mutants lint docs lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## .venv with what training needs (WHEELS=DIR: offline, from that folder; REQUIREMENTS=FILE: and your own)
	@$(PYTHON) requirements/install.py control

setup-dev: ## .venv with what tests and linters need, too
	@$(PYTHON) requirements/install.py dev

wheels: ## fill the folder WHEELS=DIR for an offline set-up
	@$(PYTHON) requirements/install.py wheels $(or $(WHEELS),$(error say where: make wheels WHEELS=DIR))

train: setup ## set up, prepare the example data, train, print what came out (ARGS="-e ...")
	@$(BIN)/ansible-playbook train.yml $(ARGS)

test: unit contract training ## all tests that need no root

unit: setup-dev ## tests of single functions (minutes)
	@$(BIN)/python -m pytest tests/unit -q -n $(WAITING_LANES) --dist loadfile --durations=10

contract: setup-dev ## commands, supervisors and workers around a stub worker, without TensorFlow
	@$(BIN)/python -m pytest tests/contract -q -n $(WAITING_LANES) --dist loadfile --durations=10

training: setup-dev ## real trainings of two and more workers on this machine: weights and numbers
	@$(BIN)/python -m pytest tests/training -q -n $(LANES) --dist loadfile --durations=10

lab: setup-dev ## three SSH hosts in containers, from bare to trained, and what goes wrong there (root; minutes)
	@$(BIN)/python -m pytest tests/lab -q --durations=10

oracle: setup-dev ## N=300 random Keras programs, each by fit alone and on several workers; the smallest that differ (SEED=0: of the first)
	@$(BIN)/python -m tests.oracle $(or $(N),300) --seed $(SEED) --lanes $(LANES)

keras-tests: setup-dev ## Keras' own tests on two workers (12 minutes): KERAS_TESTS=DIR, its repository at the locked version; ARGS="trainers/": only these
	@$(BIN)/python -m tests.keras_suite "$(or $(KERAS_TESTS),$(error say where: make keras-tests KERAS_TESTS=DIR))" $(ARGS)

repeat: setup-dev ## make test N=10 times on a busy machine, and every test that ever failed (SUITE="tests/unit": only these)
	@$(BIN)/python -m tests.repeat $(or $(N),10) $(SUITE)

mutants: setup-dev ## which test notices each mistake of tests/mutants.yml (hours; ARGS="--only NAME", "--first-only": minutes)
	@$(BIN)/python -m tests.mutants --write $(ARGS)

exhaustive: setup-dev ## tests for before a release (root; hours); SINCE=COMMIT: only what changes since then trigger; LIST=1: only their list
	@$(BIN)/python -m tests.exhaustive --lanes $(LANES) $(if $(SINCE),--since $(SINCE)) $(if $(LIST),--list)

lint: setup-dev ## ruff, mypy, yamllint, ansible-lint, openings of docstrings
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/yamllint --strict .
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline -q
	@$(BIN)/python -m tests.prose

docs: setup-dev ## pages that are made from the code: docs/reference/keys.md
	@$(BIN)/python -m control.docs.keys_page docs/reference/keys.md

lock: ## resolve requirements/*.in anew into the locked *.txt (needs uv)
	for group in node node-gpu control dev; do uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header requirements/$$group.in $$([ $$group = node ] || echo "-c requirements/node.txt") \
	  -o requirements/$$group.txt || exit 1; done

clean: ## remove what tests and linters leave behind (not runs, not data)
	@rm -rf .pytest_cache .ruff_cache .mypy_cache .ansible
