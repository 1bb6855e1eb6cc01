# Everything runs in .venv, made with plain venv and pip from requirements.lock: `make test` is enough
# on a machine with Python >= 3.11, make and a package index. Another Python: `make test PYTHON=python3.13`.
# Only `make lock` needs uv; without it on the PATH: `make lock UV="python3 -m uv"`.

PYTHON ?= python3
UV ?= uv
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help report explore docs test test-all lint bench lock clean

help:  ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-15s %s\n", $$1, $$2 }'

report: $(STAMP)  ## write build/report/report.html, the main results on one page
	$(BIN)/attnrisk report --out build/report/report.html --store build/report/answers.sqlite

explore: $(STAMP)  ## write build/explore.html, an interactive page, and open it
	$(BIN)/attnrisk explore

# Most of the time goes into compilation: with few optimisations it takes a quarter. The second and third flags are for
# tests marked `optimised`, whose code is simplified but not vectorised; the last keeps each program in one piece, since
# both processors are busy. test-all compiles as users do.
test: export JAX_DISABLE_MOST_OPTIMIZATIONS = 1
test: export XLA_FLAGS += --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1 \
  --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1
test: lint  ## lint, then run the tests except slow ones
	$(PYTEST)

test-all: lint  ## lint, then run all tests, including slow ones
	$(PYTEST) -m ""

lint: $(STAMP)  ## check style (ruff) and types (mypy)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(STAMP)  ## build the documentation into build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)  ## measure running times
	$(BIN)/python -m benchmarks.run $(BENCH)

lock:  ## recompile requirements.lock to the newest versions (needs uv)
	$(UV) pip compile pyproject.toml --group test --group docs --group build --upgrade \
	  --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
	  --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	  --quiet --output-file requirements.lock

clean:  ## remove build outputs and caches, but not .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("attnrisk needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@
