# Everything runs in .venv, made from pyproject.toml and the versions in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Bytecode on all cores, which pip makes on one; files in it that are not of this Python do not matter.
COMPILE := $(BIN)/python -m compileall -q -q -j 0 $(VENV)/lib || true
# One thread a process: threads that wait for each other cost more than they give on few cores.
export OMP_NUM_THREADS ?= 1
# Bytecode is kept, whatever the environment says: processes that tests begin share it.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test unit lint format clean

demo: $(VENV)/.core
	$(BIN)/appa demo

# Types are checked while tests begin: a core is idle otherwise.
test: $(VENV)/.dev
	$(MAKE) -j 2 lint unit

unit: $(VENV)/.dev
	$(BIN)/pytest -q -n 2 --dist loadfile

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Appa needs Python 3.11 or newer; this is %d.%d. Say which: make PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV), a minute or two"
	$(INSTALL) -e '.[plots]'
	@$(COMPILE)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) with development tools, two or three minutes"
	$(INSTALL) -e '.[dev]'
	@$(COMPILE)
	@touch $@ $(VENV)/.core
