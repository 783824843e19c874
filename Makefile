# The two commands of a newcomer are `make demo` and `make test`. Everything runs in .venv in this checkout.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH ?= torch==2.13.0

.PHONY: demo test test-fast check bench soak promises clean

demo: $(VENV)/.demo
	$(BIN)/thalweg demo

# two test files at a time, the long ones first as they lie: most of the time tests wait for processes that they started
test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not soak" -n 2 --dist loadfile --no-loadscope-reorder

test-fast: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow and not soak and not gpu" -x -n 2 --dist loadfile

check: $(VENV)/.dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/thalweg bench

soak: $(VENV)/.dev
	$(BIN)/python -m pytest -m soak

promises: $(VENV)/.dev
	$(BIN)/python tests/promises/show.py

clean:
	rm -rf $(VENV) .bench .demo .mypy_cache .ruff_cache .hypothesis

# torch comes first, by version, so that no other package pulls in another build of it.
$(VENV)/.torch:
	@echo "== making a virtual environment in $(VENV) (once; a few minutes)"
	$(PYTHON) -m venv $(VENV)
	@echo "== installing torch for the CPU"
	$(PIP) install --progress-bar off -q $(TORCH)
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	@echo "== installing thalweg with the extras of the demo"
	$(PIP) install --progress-bar off -q -e ".[demo]"
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	@echo "== installing thalweg with the extras of the tests"
	$(PIP) install --progress-bar off -q -e ".[dev]"
	@# torchtitan asks for an older datasets than the tests of streams use; its loader protocol needs none of it
	-$(PIP) install --progress-bar off -q --no-deps "torchtitan==0.3.0" "tyro>=1.0" "docstring_parser>=0.16" "typeguard>=4" "spmd_types==0.2.3"
	@# lmms-engine asks for an older transformers and for packages that need a GPU; its trainer needs none of them
	-$(PIP) install --progress-bar off -q --no-deps "lmms-engine==0.1.4"
	@touch $@ $(VENV)/.demo
