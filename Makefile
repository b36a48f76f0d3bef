PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo serve test test-full bench clean

# Each stamp is newer than what it was installed from, so that a second `make` installs nothing.
$(VENV)/.experiments: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[experiments]'
	touch $@

$(VENV)/.dev: $(VENV)/.experiments
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[experiments,models,serve,dev]'
	touch $@

$(VENV)/.serve: $(VENV)/.experiments
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[experiments,serve]'
	touch $@

demo: $(VENV)/.experiments
	$(BIN)/python -m hybridcache.experiments.demo

serve: $(VENV)/.serve
	$(BIN)/hybridcache serve tiny --max-model-len 8192 $(ARGS)

test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not full"

test-full: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n 2 --dist worksteal

bench: $(VENV)/.experiments
	$(BIN)/python -m hybridcache.experiments.bench

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
