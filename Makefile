# `make demo` and `make test` do all the set-up they need: a virtual environment with pinned
# versions. PYTHON chooses the interpreter (3.11 to 3.13).
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: demo test crash check wheel clean

demo: $(READY)
	$(BIN)/attendex demo --store .demo/wordnet.store --table

test: $(READY)
	$(BIN)/python -m pytest

crash: $(READY)
	$(BIN)/python -m tests.crash

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

wheel: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --outdir dist .
	sh tests/wheel.sh $(PYTHON) dist

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[offline,dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) .demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
