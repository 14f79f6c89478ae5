# The two commands to know: `make serve` and `make test`. Both set up what they need, in the versions of constraints.txt.
# The tests need `curl` besides, and run `perf_analyzer` where there is one.

PYTHON ?= python3
# Empty leaves PyTorch out: `make serve TORCH=`. PyTorch models are then UNAVAILABLE, all others serve.
# `make test TORCH=` skips their tests.
TORCH ?= torch==2.13.0
REPOSITORY ?= examples/model_repository
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: serve test lint bench fuzz soak install pin clean

serve: install
	@exec $(BIN)/eagleray serve --model-repository $(REPOSITORY) $(ARGS)

# Two workers: one has the tests that share servers, which mostly wait, the other has the rest (tests/conftest.py).
test: install
	$(BIN)/python -m pytest --numprocesses 2 $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/python -m benchmarks $(ARGS)

fuzz: install
	$(BIN)/python -m tests.fuzz $(ARGS)

# Faults under traffic (docs/faults.md), the death of a head too; repositories that share names, and that are registered;
# 200 slow copies into a polled repository; a minute of 64 clients that load and unload one model; a controller that dies
# at every step of all that it is told (STEP_NUMBERS="1 2" and STEP_WHENS=before take some of them), on two nodes too, and
# at many moments of a load, a reload, an unload, a load that fails, and a change of a polled repository; ten thousand
# sequences that take turns; all behaviours in other placements; ten minutes for each placement of all that clients do,
# after which no process has grown; the Dockerfile's instructions; random damage to requests.
soak: install
	FAULTS=all $(BIN)/python -m pytest -s tests/e2e/test_fault_campaign.py tests/e2e/test_faults_under_traffic.py \
		tests/e2e/shared/test_faults.py tests/e2e/test_clock_jumps.py tests/e2e/test_standstills.py \
		tests/e2e/test_shared_folders.py tests/e2e/test_repositories.py tests/e2e/test_storage.py $(ARGS)
	FAULTS=all $(BIN)/python -m pytest -s tests/e2e/test_controller_steps.py \
		tests/e2e/test_controller_steps_on_nodes.py $(ARGS)
	SLOW_COPY_ROUNDS=25 CONTROLLER_DIES_AFTER_S="$$(seq -s ' ' 0.9 0.1 2.4)" \
		$(BIN)/python -m pytest tests/e2e/test_poll.py -k 'slowly or controller' $(ARGS)
	CHANGE_SECONDS=60 CONTROLLER_DIES_AFTER_S="$$(seq -s ' ' 0 0.05 1)" \
		$(BIN)/python -m pytest tests/e2e/control -k 'many_clients or controller' $(ARGS)
	PLACEMENT=auto $(BIN)/python -m pytest tests/behaviours $(ARGS)
	PLACEMENT=embedded $(BIN)/python -m pytest tests/behaviours $(ARGS)
	SOAK_S=600 $(BIN)/python -m pytest -s tests/e2e/test_leaks.py $(ARGS)
	BUILD_IMAGE=1 $(BIN)/python -m pytest tests/deploy/test_dockerfile.py $(ARGS)
	$(BIN)/python -m pytest --hypothesis-profile soak --timeout 600 tests/protocol \
		tests/deployments/replica/test_random_changes.py $(ARGS)
	SEQUENCES=10000 $(BIN)/python -m pytest tests/deployments/lane/test_sequence_lanes.py -k interleaved $(ARGS)

# Ray starts a process of Python for each replica, and where PYTHONDONTWRITEBYTECODE is set none of them would keep what it
# has compiled: a sixth of their start.
install: $(STAMP)
	@$(BIN)/python -m compileall -q app deployments eagleray protocol repository_loader tests

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (some minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(TORCH) --editable '.[examples,storage]' --group dev
	@touch $(STAMP)

# After a change of dependencies in pyproject.toml: what is installed now becomes what everybody gets.
pin:
	$(BIN)/python -m pip freeze --exclude-editable --exclude torch --exclude pip > constraints.txt

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .bench
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
