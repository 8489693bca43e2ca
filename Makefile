# Every target sets up what it needs: `make demo` on a fresh clone creates .venv, installs, and runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench docs pictures notebooks release-check clean

help:  ## say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.cli  ## train a small network on emoji, or on DATA=glyphs, with Smooth-AP and with HAPPIER, and compare
	@$(BIN)/suprank demo $(if $(DATA),--data "$(DATA)")

# One thread for each worker: threads within and workers beside would fight over the cores. Three workers are faster than two on two
# cores, because some tests wait. A worker that crashes ends the tests: pytest-xdist can hang after a restart. Bytecode is kept even
# where the shell says otherwise: without it, each worker compiles all tests (12 s), and each process that they start our package.
test: $(VENV)/.installed  ## run every test; those for a GPU where there is one
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadgroup --max-worker-restart 0 -q

lint: $(VENV)/.installed  ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.installed  ## time the losses beside their peers
	$(BIN)/python benchmarks/measure.py losses

docs: $(VENV)/.docs  ## build the documentation into docs/_build
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo "docs/_build/index.html"

pictures: $(VENV)/.installed  ## take the documentation's pictures of pages anew, or those in NAMES="report-map ..."
	$(BIN)/python docs/take_pictures.py $(NAMES)

notebooks: $(VENV)/.docs  ## execute the notebooks of the first examples anew, after a script has changed
	$(BIN)/python docs/make_notebooks.py

release-check: $(VENV)/.torch  ## build the release, install it in fresh environments and try it there
	@$(INSTALL) twine uv
	$(BIN)/python scripts/check_release.py

clean:  ## remove everything that can be made again
	rm -rf $(VENV) build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes in first and alone: whatever comes after has to agree with the pinned build rather than replace it.
$(VENV)/.torch: constraints.txt
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) torch numpy
	@touch $@

$(VENV)/.cli: $(VENV)/.torch pyproject.toml
	@$(INSTALL) --editable '.[explore,train]'
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	@$(INSTALL) --editable '.[dev]'
	@touch $(VENV)/.cli $@

$(VENV)/.docs: $(VENV)/.torch pyproject.toml docs/requirements.txt
	@$(INSTALL) --editable '.[explore,hierarchy,train]' --requirement docs/requirements.txt
	@touch $@
