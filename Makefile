# Two commands matter: `make run` and `make test`. `make help` lists the others.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
# Where an environment with everything in it exists already: make test PYTHON=/path/to/python
PYTHON ?= $(PY)
ifeq ($(PYTHON),$(PY))
READY := $(VENV)/.installed
else
READY :=
endif

# Tests that run beside the others: properties and scenarios use the core, the rest mostly waits for other programs.
BESIDE := tests/property tests/scenarios tests/compiled $(addprefix tests/integration/test_,drill.py calibrate.py slo_rules.py record_postgres.py)

.PHONY: help run test lint bench-overhead bench-overload bench-calibrate sim drill bench-quotas bench-streams bench-slow-readers bench-aiperf bench-rolling clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

run: $(READY) ## Start two workers and a gateway on loopback (ENGINE=emulated|vllm-cpu|vllm, WORKERS=2, PORT=8080)
	@exec $(PYTHON) -m service up

test: $(READY) ## Install what tests need, then run the gates and all tests (CI=true: a missing part is a failure)
	@PYTHON=$(PYTHON) deploy/test-parts.sh
	@$(MAKE) --no-print-directory lint PYTHON=$(PYTHON)
	@$(PYTHON) -m coverage erase
	@# What hunts without ports or waits for clocks needs no tracer: it runs beside the rest, on the other core.
	@$(PYTHON) -m pytest -q $(BESIDE) > var/beside.log 2>&1 & beside=$$!; \
	failed=0; $(PYTHON) -m pytest --cov --cov-report= $(addprefix --ignore=,$(BESIDE)) || failed=1; \
	wait $$beside || { cat var/beside.log; failed=1; }; exit $$failed
	@$(PYTHON) -m coverage report --fail-under=90
	@$(PYTHON) -m coverage report --include='service/domain/*,service/flow/*,service/slo/*' --fail-under=100
	@$(PYTHON) -m pytest -q tests/unit/telemetry/test_cost.py tests/unit/ledger/test_cost.py tests/unit/runtime/test_decisions.py # in part skipped above: a tracer is paid for with every line

lint: $(READY) ## ruff, mypy and the import rules
	@mkdir -p var
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
	@"$$(dirname "$$(command -v $(PYTHON))")/lint-imports" > var/lint-imports.log 2>&1 || { cat var/lint-imports.log; exit 1; }
	@echo "lint: fine"

bench-overhead: $(READY) ## CPU of the gateway per request and per chunk, beside its peers (minutes)
	@$(PYTHON) -m loadtests.live.overhead

bench-overload: $(READY) ## Promises kept at 1, 2, 3 and 5 times the load, beside the peers (half an hour; OPTIONS=--quick)
	@$(PYTHON) -m loadtests.live.overload $(OPTIONS)

bench-calibrate: $(READY) ## Is the emulator honest? Fits it to a real vLLM on the CPU and judges it (minutes; OPTIONS=--quick)
	@$(PYTHON) -m loadtests.calibration.run $(OPTIONS)

sim: $(READY) ## Simulate the shipped policy beside others under a virtual clock (OPTIONS='uniform --quick'; OPTIONS=--list)
	@$(PYTHON) -m loadtests.sim.run $(OPTIONS)

drill: $(READY) ## Alarm drill: real Prometheus and Alertmanager, an outage, who is called when (two minutes)
	@deploy/test-parts.sh
	@$(PYTHON) -m loadtests.live.drill $(OPTIONS)

bench-quotas: $(READY) ## What passes of a quota over four gateways, with and without Redis; 100,000 tenants (OPTIONS=--quick)
	@$(PYTHON) -m loadtests.live.quotas $(OPTIONS)

bench-streams: $(READY) ## Thousands of streams held open
	@$(PYTHON) -m loadtests.live.streams

bench-slow-readers: $(READY) ## What clients that do not read cost the gateway (OPTIONS='--readers 50')
	@$(PYTHON) -m loadtests.live.slow_reader $(OPTIONS)

bench-aiperf: $(READY) ## 200 requests of NVIDIA's aiperf to a service of its own (installs it, minutes the first time)
	@$(PYTHON) -m loadtests.live.aiperf_run $(OPTIONS)

bench-rolling: $(READY) ## Restart three gateways and two workers under load behind Envoy; nobody may notice (minutes; OPTIONS=--quick)
	@$(PYTHON) -m loadtests.live.rolling $(OPTIONS)

.PHONY: chart image
chart: $(READY) ## Render the chart with both Helms, hold it to strict schemas, read it and the Dockerfiles with linters
	@PYTHON=$(PYTHON) deploy/test-parts.sh
	@SLUICE_CHECKOV=1 $(PYTHON) -m pytest -q tests/chart

image: $(READY) ## Build the images twice with buildah on plain Debian and run them read-only (root on Debian; minutes)
	@deploy/image-parts.sh
	@SLUICE_IMAGE=1 $(PYTHON) -m pytest -q -s -p no:randomly tests/chart/test_image.py

.PHONY: build
build: $(READY) ## Build the wheel with its core compiled into dist/ (a minute; needs a C compiler and Python's headers)
	@$(PYTHON) -m loadtests.live.compiled dist

clean: ## Remove the environment and what was written while running
	rm -rf $(VENV) var

# Done again only when the lock or the project file has changed.
$(VENV)/.installed: requirements.lock pyproject.toml
	@python=$$(deploy/choose-python.sh); \
	echo "setting up $(VENV) with $$($$python --version) ($$python), about a minute the first time"; \
	rm -rf $(VENV); $$python -m venv $(VENV)
	@$(PY) -m pip install -qq --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	@$(PY) -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
