# The commands of the repository; `make help` lists them.
#
# Needs Python 3.11 or newer and make. Each command installs what it needs, when it needs it: a
# broker takes a few seconds, Spark comes with the first command that uses it, and the tools for
# tests with those. With a C compiler the hot modules are compiled beside their sources;
# BRAIDMQ_PURE=1 leaves them interpreted (the faster loop while editing them).

PYTHON ?= python3
# Tests wait as well as work: three at a time keep two cores busy.
JOBS ?= 3
PYTEST_ARGS ?=
BENCH_ARGS ?=

# How much `make chaos` does; a release asks for more.
KILLS ?= 500
SPARK_KILLS ?= 100
CUTS ?= 100
SEEDS ?= 5000
FUZZ ?= 60
EXHAUSTIONS ?= 5

# Keep bytecode, whatever the environment says: a broker would compile for a second at each
# start, and tests start hundreds.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
# uv draws its progress on a terminal; elsewhere a log gets our one line instead of a hundred.
# With bytecode, as pip would: without it each process compiles hundreds of modules again.
INSTALL = $(BIN)/uv pip install $(if $(shell test -t 2 && echo terminal),,--quiet) \
  --compile-bytecode --python $(BIN)/python --require-hashes -r
PURE := $(CURDIR)/build/pure
PYTEST := $(BIN)/python -m pytest -n $(JOBS) $(PYTEST_ARGS)
TREE := $(wildcard src tests bench docs setup.py)
# What runs differently where nothing is compiled; elsewhere it is the same code both times. Of
# whole strands it is a part, for want of time; `make chaos` runs all of them.
STRAND_TESTS := blip $(addprefix vibe/test_,framing.py publish_and_subscribe.py acknowledge.py) \
  $(addprefix qumbed/test_,framing.py publish.py subscribe.py)
HOT_TESTS = $(addprefix tests/unit/,base broker wire wal/test_format.py) \
  $(addprefix tests/unit/server/,strands engine/test_connection.py engine/test_engine.py) \
  $(addprefix tests/integration/,$(STRAND_TESTS) test_strands.py test_client.py)

# A virtual environment does not survive being copied or moved: it knows its own place.
ifneq ($(shell cat .venv/place 2>/dev/null),$(CURDIR))
MOVED := moved
endif

.DEFAULT_GOAL := help
.PHONY: bench chaos check clean demo docs format help lock moved run setup test test-compiled test-pure \
  wheel

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

# --- set-up: each step is skipped while its result is current -------------------------------

setup: .venv/locked .venv/installed .venv/browser ## everything: a broker, Spark, tools for tests, compiled modules
	@$(BIN)/python setup.py refresh

.venv/place: $(MOVED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "BraidMQ needs Python 3.11 or newer")'
	rm -rf .venv
	@# Debian ships venv without pip; then the machine's own pip puts one inside.
	$(PYTHON) -m venv .venv || { $(PYTHON) -m venv --clear --without-pip .venv \
	  && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@echo '$(CURDIR)' > $@

.venv/server: requirements-server.lock .venv/place
	@echo 'braidmq: installing what a broker needs into .venv (about 160 MB)'
	@# uv itself comes from the lock too, hashes and all: its block, cut out.
	@awk '/^[^ ]/ { mine = /^uv==/ } mine' requirements-server.lock > .venv/uv.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.lock
	@$(INSTALL) requirements-server.lock
	@touch $@

.venv/installed: pyproject.toml .venv/server
	@# Compiling is left to `setup.py refresh`, which shows what it does.
	@BRAIDMQ_PURE=1 $(BIN)/uv pip install --quiet --python $(BIN)/python \
	  --no-deps --no-build-isolation --editable .
	@touch $@

.venv/spark: requirements-spark.lock .venv/installed
	@echo 'braidmq: adding Apache Spark, Arrow and a Java runtime to .venv, for pipelines and Flight (about 1 GB, once)'
	@$(INSTALL) requirements-spark.lock
	@touch $@

.venv/locked: requirements.lock .venv/server
	@echo 'braidmq: adding Apache Spark and the tools that check, test, measure and document to .venv (about 1.6 GB, once)'
	@$(INSTALL) requirements.lock
	@touch $@ .venv/spark .venv/build

.venv/build: requirements-build.lock .venv/installed
	@echo 'braidmq: adding the compiler of the hot modules to .venv, for the wheel (about 70 MB, once)'
	@$(INSTALL) requirements-build.lock
	@touch $@

.venv/browser: .venv/place
	@# Once for each environment, and not fatal: only the browser tests need it.
	@if ! command -v chromium > /dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	    && { apt-get update && apt-get install --yes --no-install-recommends chromium; } > $@.log 2>&1; \
	  then echo "chromium was installed, for the browser tests"; \
	  else echo "chromium is not installed: the browser tests will be skipped"; fi; fi
	@touch $@

LOCK = $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-header --no-annotate --quiet

lock: .venv/place ## choose the newest allowed versions of all dependencies
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	$(LOCK) pyproject.toml --extra dev --extra all --upgrade -o requirements.lock
	@# Parts of it, in the same versions: a broker, a broker with Spark, the compiler of hot modules.
	printf 'setuptools\nuv\n' | $(LOCK) pyproject.toml - --extra server -c requirements.lock -o requirements-server.lock
	printf 'setuptools\nuv\n' | $(LOCK) pyproject.toml - --extra all -c requirements.lock -o requirements-spark.lock
	printf 'mypy\n' | $(LOCK) - -c requirements.lock -o requirements-build.lock

# --- running --------------------------------------------------------------------------------

run: .venv/installed ## the broker in development mode, until Ctrl-C
	@$(BIN)/python setup.py refresh --later
	@$(BIN)/braidmq serve --dev

demo: .venv/spark ## the product at work for a minute, counts checked; its tables stay in build/demo
	@$(BIN)/python setup.py refresh --later
	rm -rf build/demo
	$(BIN)/braidmq demo --tables build/demo

bench: setup ## the benchmarks, as ratios to the peers that are installed
	$(BIN)/python -m bench $(BENCH_ARGS)

wheel: .venv/build ## what pip installs elsewhere, in dist; BRAIDMQ_PURE=1: for any machine, interpreted
	@# From a copy: built in place, it would take away what `make setup` has compiled.
	rm -rf build/wheel dist
	mkdir -p build/wheel
	cp -R pyproject.toml setup.py README.md LICENSE src build/wheel/
	find build/wheel \( -name '*.so' -o -name '*.egg-info' -o -name __pycache__ \) -prune -exec rm -rf {} +
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist build/wheel/
	@echo dist/*.whl

docs: setup ## the documentation as a site, in build/docs; a warning is an error
	$(BIN)/python docs/generate.py
	$(BIN)/python -m sphinx -b html -q -W --keep-going -n -d build/docs-trees docs build/docs
	@echo "build/docs/index.html"

# --- judging --------------------------------------------------------------------------------

test: test-compiled ## the whole suite; where that ran compiled, the quick tests interpreted as well
	@if [ -n "$$(find src -name '*.so' -print -quit)" ]; then $(MAKE) --no-print-directory test-pure; fi

test-compiled: setup ## the whole suite, as the package is installed
	$(PYTEST)

test-pure: setup ## the quick tests of the rooms that hold hot modules, on a copy without compiled ones
	rm -rf $(PURE)
	mkdir -p $(PURE)
	cp -R src/braidmq $(PURE)/
	find $(PURE) -name '*.so' -delete
	BRAIDMQ_HYPOTHESIS=$${BRAIDMQ_HYPOTHESIS:-quick} BRAIDMQ_PURE=1 PYTHONPATH=$(PURE) $(PYTEST) -m 'not slow' $(HOT_TESTS)

chaos: setup ## the long runs: kills, torn disks, strangers, broken networks, Spark
	BRAIDMQ_KILLS=$(KILLS) BRAIDMQ_SPARK_KILLS=$(SPARK_KILLS) BRAIDMQ_CUTS=$(CUTS) \
	  BRAIDMQ_SIM_SEEDS=$(SEEDS) BRAIDMQ_FUZZ=$(FUZZ) \
	  BRAIDMQ_EXHAUSTIONS=$(EXHAUSTIONS) BRAIDMQ_MUTANTS=all BRAIDMQ_CAMPAIGNS=all \
	  $(BIN)/python -m pytest --timeout=7200 $(PYTEST_ARGS) \
	  tests/bench tests/chaos tests/simulation tests/docs/test_container.py \
	  tests/integration/spark/test_sink.py
	$(MAKE) --no-print-directory test-pure STRAND_TESTS='blip vibe qumbed'

check: setup ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(TREE)
	$(BIN)/lint-imports

format: setup ## format, and repair what the linter can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove everything that the commands above have made
	rm -rf .venv build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
