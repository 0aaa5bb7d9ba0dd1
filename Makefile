# Everything starts from a machine that has Python 3.11+ and make. uv is used where it is installed.
#
#   make serve    install what the broker needs and start it
#   make test     install what the tests need and run them all
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)
ARGS   ?=
JOBS   ?= 2

ifdef UV
MAKE_VENV := $(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
INSTALL   := $(UV) pip install --quiet --python $(BIN)/python
else
MAKE_VENV := $(PYTHON) -m venv $(VENV)
INSTALL   := $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

.PHONY: serve setup test check format bench sim fuzz differential compat clean help

help:
	@sed -n 's/^#   //p' $(MAKEFILE_LIST)

$(VENV)/.broker: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Penstock needs Python 3.11 or newer; set PYTHON=... to choose one" if sys.version_info < (3, 11) else 0)'
	@$(MAKE_VENV)
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.tests: $(VENV)/.broker
	@$(INSTALL) --editable '.[test]'
	@touch $@

#   make setup    only install: the broker, every extra and the test tools
setup: $(VENV)/.tests

serve: $(VENV)/.broker
	@exec $(BIN)/penstock serve $(ARGS)

test: setup
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

#   make check    format, lint, types, and the rules of the code base that are tests
check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/tidy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
