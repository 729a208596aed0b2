# Every target sets up what it needs on first use: a virtual environment in .venv with the versions of constraints.txt.
# PYTHON=python3.12 make setup   takes another interpreter.   SWARM_FLAGS="..." make swarm   passes other flags.

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
RUN ?= stdlib-small
SWARM_FLAGS ?= --peers 7 --standbys 1 --kill stage=2,iteration=150
PYTEST_FLAGS ?=
# The longest first: who is last has nobody beside it.
SWARMS := $(addprefix tests/real_swarm/test_,same_as_alone.py real_replay.py real_recovery_methods.py survival_lasting.py endings.py chaos.py \
	real_shadows.py real_begin.py restart.py restart_from_store.py) tests/examples $(addprefix tests/cli/test_,tutorial.py study_trials.py study.py)
OTHERS := $(addprefix tests/,benchmarks wire attacks lab model storage trainer cockpit paper policy protocol) \
	$(filter-out $(SWARMS),$(wildcard tests/cli/test_*.py)) tests/test_tidy.py
# Time does not pass in these while they wait for a processor: who has to be quick goes first.
VIRTUAL := tests/sim tests/scenarios tests/mutants
SEEDS ?= 300
CASES ?= 100000
LIARS ?= 100
FUZZ_S ?= 600
TARGETS ?=
INTEROP_FLAGS ?=
# Each process compiles all that it loads where nothing compiled may be kept: with the tests that is five seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup swarm test test-virtual test-alone test-swarms test-others check fuzz interop clean

help: ## Say what there is.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv once; again when pyproject.toml or constraints.txt change.

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): about 2 GB, a few minutes."
	@echo "Step 1 of 2: the virtual environment."
	$(PYTHON) -m venv $(VENV)
	@echo "Step 2 of 2: the packages; pip says which one it is at, and torch takes longest."
	$(VENV)/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable ".[test,dev,lab]"
	@touch $(READY)
	@echo "Ready. In every new shell: source $(VENV)/bin/activate"

swarm: $(READY) ## Train on this machine with real peers, lose a whole stage, go on.
	$(VENV)/bin/swarmfree local --run $(RUN) $(SWARM_FLAGS)

test: $(READY) ## All tests, 120 rehearsals among them; what plays in virtual time computes while real processes wait.
	@$(VENV)/bin/python -m compileall -q swarmfree  # once, and not in four processes that start together
	$(VENV)/bin/python -m tests.lab.with_nursery $(MAKE) --no-print-directory --jobs 3 test-virtual test-swarms test-others

test-virtual:
	nice -n 19 $(VENV)/bin/python -m pytest -n 2 --dist loadfile --timeout 900 $(VIRTUAL) $(PYTEST_FLAGS)

# One at a time where many are lost against the clock, and those first: what is alone at the end leaves a core idle.
# Then two at a time beside what plays in virtual time: with three both cores are taken from that, and it comes last.
test-alone:
	$(VENV)/bin/python -m pytest tests $(addprefix --ignore ,$(VIRTUAL) $(SWARMS) $(OTHERS)) $(PYTEST_FLAGS)

# Each in one process: workers that share files load all of them, each for itself, twenty seconds in a fresh clone.
test-swarms: test-alone
	$(VENV)/bin/python -m pytest -m "not live_benchmark" $(SWARMS) $(PYTEST_FLAGS)

test-others: test-alone
	$(VENV)/bin/python -m pytest -m "not live_benchmark" $(OTHERS) $(PYTEST_FLAGS)

check: $(READY) ## Lint, format, types, 300 rehearsals, 100 with liars, two storms, 100,000 stories of attackers: an hour (SEEDS=n, LIARS=n, CASES=n for other numbers).
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/swarmfree rehearse --seeds $(SEEDS)
	$(VENV)/bin/swarmfree rehearse --liars --seeds $(LIARS)
	$(VENV)/bin/python -m tests.killed.fault_points 1000 200
	$(VENV)/bin/python -m benchmarks.storm --seed 1
	$(VENV)/bin/python -m benchmarks.storm --seed 2 --all-at 45
	$(VENV)/bin/python -m pytest -m live_benchmark tests/benchmarks tests/attacks tests/real_swarm
	SWARMFREE_FUZZ_CASES=$(CASES) $(VENV)/bin/python -m pytest -n 2 --timeout 0 tests/attacks/test_typed_fuzz.py tests/attacks/test_swarm_fuzz.py

fuzz: $(READY) ## Bytes of others, ten minutes for each of 39 readers: six hours and a half (FUZZ_S=n for other seconds, TARGETS="name ...").
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt atheris
	$(VENV)/bin/python -m tests.attacks.fuzz_bytes $(FUZZ_S) $(TARGETS)

interop: $(READY) ## Hold exports to transformers 4.57, ctranslate2 and lm-eval, each fetched into .interop: a quarter of an hour.
	$(VENV)/bin/python scripts/interop.py $(INTEROP_FLAGS)

clean: ## Remove .venv and what tools keep; reports stay.
	rm -rf $(VENV) .interop .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
