# Two commands do everything from a fresh clone: `make demo` and `make test`.
# Nothing is written outside the clone, except the cache folder TXLAKE_CACHE: jars, pip's cache.
SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?= python3
TXLAKE_CACHE ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/txlake
export TXLAKE_CACHE
export PIP_CACHE_DIR := $(TXLAKE_CACHE)/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# What Jupyter and matplotlib keep goes into the clone, not into the home folder.
export IPYTHONDIR := $(CURDIR)/.cache/ipython
export JUPYTER_CONFIG_DIR := $(CURDIR)/.cache/jupyter
export JUPYTER_DATA_DIR := $(CURDIR)/.cache/jupyter/data
export JUPYTER_RUNTIME_DIR := $(CURDIR)/.cache/jupyter/runtime
export MPLCONFIGDIR := $(CURDIR)/.cache/matplotlib
# The caller's Python environment is not ours: only .venv counts.
unexport PYTHONPATH PYTHONHOME SPARK_HOME

UV_VERSION := 0.13.9
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --no-input
LOCK_OPTIONS := --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url \
	--no-annotate --custom-compile-command "make lock"

.PHONY: FORCE help venv java jars setup test tests check unit soak demo bench bench-peer notebooks broker \
	lint types dist sbom audit lock jars-lock clean

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## Run the demonstration: real broker, the job, two services (does the set-up first)
	@$(PY) -m examples.demo

notebooks: $(VENV)/.jupyter ## Open the notebooks: on the lake TXLAKE_LAKE, else on the demo's
	@[ -n "$$TXLAKE_LAKE" ] || [ -d demo-lake/epochs ] || { \
		echo "there is no lake yet: the demo makes one"; $(MAKE) --no-print-directory demo; }
	@case "$$TXLAKE_LAKE" in ''|/*|*://*) ;; *) TXLAKE_LAKE="$$PWD/$$TXLAKE_LAKE"; esac; \
	[ "$$(id -u)" != 0 ] || root=--allow-root; \
	exec $(VENV)/bin/jupyter lab --ServerApp.root_dir="$(CURDIR)/notebooks" $$root \
		--LanguageServerManager.autodetect=False \
		--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate $(JUPYTER_OPTIONS)

# PYTEST takes options of pytest, as in: make test PYTEST="-k crash"
# Each worker has a broker and a Spark session of its own. The longest files are first. Three on two
# cores: a test of the job often waits, for Kafka or for the job, and the third then has its core.
WORKERS ?= 3
RUN_TESTS = $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Style and types are checked beside the tests: both would wait for one core while the other idles.
test: setup $(VENV)/.release $(VENV)/.store $(VENV)/.readers ## Run all checks and tests (does the set-up first)
	@$(MAKE) --no-print-directory --jobs 3 lint types tests

# A run starts hundreds of Pythons: without bytecode each would compile what it imports of ours.
tests unit soak: export PYTHONDONTWRITEBYTECODE :=

tests: $(VENV)/.release $(VENV)/.store $(VENV)/.readers
	@$(RUN_TESTS) -m "not soak" --durations 50 --durations-min 1 --junitxml build/tests.xml $(PYTEST)

check: setup $(VENV)/.release ## Check style and types, and run the quick tests
	@$(MAKE) --no-print-directory --jobs 3 lint types unit

unit:
	@$(RUN_TESTS) tests/unit -m "not soak" --quick $(PYTEST)

soak: setup $(VENV)/.release $(VENV)/.store ## Run what only repeats and measures: the long run
	@$(RUN_TESTS) -m soak -o faulthandler_timeout=0 --durations 0 --durations-min 1 $(PYTEST)

# BENCH takes its options, as in: make bench BENCH="--size small --figures drain,backlog"
bench: setup ## Measure everything and write docs/benchmarks (does the set-up first)
	@$(PY) -m bench $(BENCH)

# PEER takes its options, as in: make bench-peer PEER="--rounds 5 --sizes 256"
bench-peer: setup ## Compare with RocketMQ, which is fetched, and write docs/benchmarks/peer
	@$(PY) -m bench.peer $(PEER)

lint: setup ## Check style and the direction of imports
	@$(PY) -m ruff check .
	@$(VENV)/bin/lint-imports --no-cache

types: setup $(VENV)/.release ## Check the types
	@$(PY) -m mypy

broker: setup ## Start a Kafka broker on loopback, in the foreground
	@$(VENV)/bin/txlake broker

setup: $(VENV)/.ready ## Install everything the other targets need

venv: $(VENV)/.packages ## Install the Python packages only

java: $(VENV)/.java ## Install a Java runtime if the machine has no Java 17 or 21

jars: $(VENV)/.jars ## Fetch the JVM jars

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "txlake needs Python 3.10 or newer, but '$(PYTHON)' is missing or older:" \
			"name another one, as in 'make PYTHON=python3.12 setup'." >&2; exit 1; }
	@echo "set-up: a virtual environment in $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV) || { echo "txlake needs Python's venv module:" \
		"install it (on Debian: python3-venv), or name another PYTHON." >&2; exit 1; }
	@touch $@

$(VENV)/.packages: $(VENV)/.python requirements.lock requirements-build.lock pyproject.toml \
		client/pyproject.toml
	@echo "set-up: the Python packages of requirements.lock (the first time: some minutes)"
	@$(PIP) --require-hashes -r requirements-build.lock
	@$(PIP) --require-hashes --no-build-isolation --use-pep517 -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation -e client -e .
	@touch $@

$(VENV)/.java: $(VENV)/.packages requirements-java.lock pipelines/jvm/java.py
	@$(PY) -m pipelines.jvm.java >/dev/null 2>&1 || { \
		echo "set-up: a Java runtime (no Java 17 or 21 found)"; \
		$(PIP) --require-hashes --no-deps -r requirements-java.lock; }
	@$(PY) -m pipelines.jvm.java >/dev/null
	@touch $@

# A cache that was deleted, or another one, is filled again.
$(VENV)/.jars: $(VENV)/.java pipelines/jvm/jars.lock.toml $(if $(wildcard $(TXLAKE_CACHE)/jars),,FORCE)
	@$(VENV)/bin/txlake jars fetch
	@touch $@

# A lake in an object store is tried on a real S3 server.
$(VENV)/.store: $(VENV)/.jars
	@$(VENV)/bin/txlake jars fetch store s3
	@touch $@

# DuckDB's own Delta reader wants another DuckDB than ours: an environment of its own, for one test.
$(VENV)/.readers: $(VENV)/.packages requirements-readers.lock
	@$(PY) -m venv --clear $(VENV)/readers
	@$(VENV)/readers/bin/python -m pip install --quiet --no-input --require-hashes \
		-r requirements-readers.lock
	@touch $@

FORCE:

$(VENV)/.ready: $(VENV)/.jars
	@touch $@

$(VENV)/.jupyter: $(VENV)/.ready requirements-jupyter.lock
	@echo "set-up: JupyterLab"
	@$(PIP) --require-hashes -r requirements-jupyter.lock
	@touch $@

dist: $(VENV)/.release ## Build the wheels of the job and of the SDK: dist
	@$(PY) -m release.wheels

sbom: $(VENV)/.release ## Write what a release is made of: build/txlake.cdx.json, CycloneDX
	@$(PY) -m release.bill

# AUDIT takes its options, as in: make audit AUDIT="--osv-url http://mirror.example/v1/query"
audit: $(VENV)/.release ## Look for advisories about the locked Python packages
	@$(PY) -m release.audit $(AUDIT)

$(VENV)/.release: $(VENV)/.ready requirements-release.lock
	@echo "set-up: what writes a release's bill of materials, and audits it"
	@$(PIP) --require-hashes -r requirements-release.lock
	@touch $@

lock: ## Resolve the Python packages anew and write the lock files
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install --quiet uv==$(UV_VERSION)
	@UV_CACHE_DIR=$(TXLAKE_CACHE)/uv build/lock/bin/uv pip compile pyproject.toml --extra dev \
		--extra notebooks --no-emit-package txlake $(LOCK_OPTIONS) --upgrade \
		--output-file requirements.lock
	@for group in build java jupyter release; do UV_CACHE_DIR=$(TXLAKE_CACHE)/uv build/lock/bin/uv pip \
		compile --group pyproject.toml:$$group --constraint requirements.lock $(LOCK_OPTIONS) \
		--upgrade --output-file requirements-$$group.lock || exit 1; done
	@UV_CACHE_DIR=$(TXLAKE_CACHE)/uv build/lock/bin/uv pip compile --group pyproject.toml:readers \
		$(LOCK_OPTIONS) --upgrade --output-file requirements-readers.lock

jars-lock: $(VENV)/.java ## Resolve the jars anew and write pipelines/jvm/jars.lock.toml
	@$(VENV)/bin/txlake jars lock

clean: ## Delete what was made in the clone, lakes too (the cache folder stays)
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache \
		lake demo-lake* orders.sqlite points.sqlite spark-warehouse metastore_db derby.log artifacts \
		checkpoint $(addprefix .cache/,broker store prometheus txlake.zip ipython jupyter matplotlib)
	find . -name __pycache__ -prune -exec rm -rf {} +
	find . \( -name '*.egg-info' -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
