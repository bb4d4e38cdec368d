# `make demo` and `make test` do all the set-up they need: a virtual environment with pinned
# versions. PYTHON chooses the interpreter (3.11 to 3.13).
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: demo test check wheel crash fuzz licences audit clean

demo: $(READY)
	$(BIN)/attendex demo --store .demo/wordnet.store --table

test: $(READY)
	$(BIN)/python -m pytest

# The tests of damaged and hostile input with many more examples: an hour and more.
fuzz: $(READY)
	FUZZ=$${FUZZ:-2000} $(BIN)/python -m pytest tests/test_fuzz.py

crash: $(READY)
	$(BIN)/python -m tests.crash

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

wheel: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --outdir dist .
	sh tests/wheel.sh $(PYTHON) dist

# What is installed with attendex, and under which licence each comes.
licences: $(READY)
	$(BIN)/python -m pip install -q -c constraints.txt pip-licenses
	$(BIN)/pip-licenses --python=$(BIN)/python --order=license --format=plain

# Known vulnerabilities of the pinned versions; asks the network.
audit: $(READY)
	$(BIN)/python -m pip install -q pip-audit
	$(BIN)/python -m pip_audit --no-deps -r constraints.txt

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[offline,dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) .demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
