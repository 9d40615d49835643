# Everything goes through here; CI runs the same targets. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# cpu or gpu: which list of requirements/ is installed.
ACCELERATOR ?= cpu
# The first of these that runs and can make a virtual environment; PYTHON=/path overrides.
PYTHON ?= $(shell for python in python3.11 python3.12; do \
	"$$python" -c 'import ensurepip, venv' 2>/dev/null && { echo "$$python"; break; }; done)

BIN := .venv/bin
UV := $(BIN)/uv
LISTS := requirements/$(ACCELERATOR).txt requirements/dev.txt requirements/bootstrap.txt
PACKAGES := .venv/packages-$(ACCELERATOR)
PROJECT := .venv/project-$(ACCELERATOR)
PYTEST := $(BIN)/python -m pytest
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header --no-annotate

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(PROJECT)  ## create .venv from the hashed lists (ACCELERATOR=gpu for NVIDIA)

$(UV): requirements/bootstrap.txt
	@[[ -n "$(PYTHON)" ]] || { echo "make setup: needs Python 3.11 or 3.12 with the venv module" \
		"(Debian: python3-venv); PYTHON=/path/to/python names one" >&2; exit 1; }
	@echo "setup 1/3: virtual environment with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/bootstrap.txt
	@touch $@

$(PACKAGES): $(UV) $(LISTS)
	@rm -f .venv/packages-* .venv/project-*
	@echo "setup 2/3: packages for $(ACCELERATOR), some gigabytes the first time"
	@$(UV) pip sync --compile-bytecode --python $(BIN)/python --require-hashes $(LISTS)
	@touch $@

$(PROJECT): $(PACKAGES) pyproject.toml
	@echo "setup 3/3: this project, editable"
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: requirements
requirements: $(UV)  ## regenerate requirements/*.txt; UPGRADE=--upgrade takes newer releases
	$(COMPILE) $(UPGRADE) requirements/cpu.in -o requirements/cpu.txt
	$(COMPILE) $(UPGRADE) requirements/gpu.in -o requirements/gpu.txt
	$(COMPILE) $(UPGRADE) requirements/dev.in -c requirements/cpu.txt -c requirements/gpu.txt -o requirements/dev.txt
	$(COMPILE) $(UPGRADE) requirements/bootstrap.in -o requirements/bootstrap.txt

.PHONY: demo
demo: setup  ## start the server on the embedded model and ask it about a clip, three rates
	$(BIN)/video-chat-server demo --config config/demo.yaml

.PHONY: serve
serve: setup  ## keep the server running on the embedded model
	$(BIN)/video-chat-server serve --config config/demo.yaml

.PHONY: eval
eval: setup  ## accuracy and time to first token by pruning rate, into docs/results; EVAL="--limit 70"
	$(BIN)/python -m tests.evaluation.make_set --out .cache/evaluation
	$(BIN)/video-chat-server eval --serve --config config/demo.yaml \
		--set .cache/evaluation/questions.jsonl $(EVAL)

.PHONY: test
test: check  ## everything CI runs: check, then all tests
	$(PYTEST)

.PHONY: test-unit
test-unit: setup  ## the tests that start no engine
	$(PYTEST) --ignore=tests/e2e

.PHONY: test-e2e
test-e2e: setup  ## the tests with the real engine
	$(PYTEST) tests/e2e

.PHONY: test-evs
test-evs: setup  ## what must hold under pruning, for every model family: a matrix, 45 minutes
	$(BIN)/python -m tests.evs.matrix $(if $(UNPATCHED),--unpatched)

.PHONY: bench-step
bench-step: setup  ## what pruning costs a decode step, against an engine without
	$(BIN)/python -m tests.benchmarks.decode_step

.PHONY: bench-decode
bench-decode: setup  ## decoding videos, against vLLM's own loaders; an hour. DECODE="--study pixels"
	$(BIN)/python -m tests.benchmarks.video_decode $(DECODE)

.PHONY: fuzz
fuzz: setup  ## 5000 damaged videos through real decoder processes; FUZZ="--count 200 --seed 2"
	$(BIN)/python -m tests.fuzz.mutations $(FUZZ)

.PHONY: bench-health
bench-health: setup  ## how soon /health/live answers while large videos are decoded
	$(BIN)/python -m tests.benchmarks.health

.PHONY: check
check: lint type contracts  ## lint, types, import contracts

.PHONY: lint
lint: setup  ## ruff: rules and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

.PHONY: type
type: setup  ## mypy --strict on server/
	$(BIN)/mypy

.PHONY: contracts
contracts: setup  ## who may import whom
	$(BIN)/lint-imports

.PHONY: format
format: setup  ## apply ruff's fixes and formatting
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: docs
docs: setup  ## regenerate docs/settings.md and config/server.yaml from server/settings
	$(BIN)/video-chat-server settings --format markdown > docs/settings.md
	$(BIN)/video-chat-server settings > config/server.yaml

.PHONY: clean
clean:  ## remove .venv and every cache of the tools
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
