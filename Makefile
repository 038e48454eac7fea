# Every target that needs Python packages creates the virtual environment itself.

PYTHON ?= python3
ARGS ?=
# Tests run in this many processes at once; `make test JOBS=0` runs them in one, as a debugger likes.
# A file goes to one of them, in the order that tests/conftest.py gives.
JOBS ?= 2
SHARED_OUT := --dist loadfile --no-loadscope-reorder

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# What the demo needs is a part of what the tests need: no compilers, peers or clients of others.
FOR_DEMO := $(VENV)/.demo

# A process that finds no bytecode compiles all it imports: a gateway or a Spark worker then takes
# three times as long to start. uv writes none unless asked, and containers often switch it off.
export UV_COMPILE_BYTECODE := 1
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help wheel docs demo test test-all lint bench setup-peers setup-collectors setup-js setup-axe setup-h2spec setup-clients setup-openlineage-spark setup-deploy sbom clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(FOR_DEMO) ## see events survive a crash (ARGS="…" adds options, also for test and bench)
	$(BIN)/holdfast demo $(ARGS)

test: $(INSTALLED) ## run all tests but the slow ones
	$(BIN)/python -m pytest -m "not slow" --numprocesses $(JOBS) $(SHARED_OUT) $(ARGS)

test-all: setup-peers $(INSTALLED) ## run every test, with the programs they compare with
	$(BIN)/python -m pytest --numprocesses $(JOBS) $(SHARED_OUT) $(ARGS)

lint: $(INSTALLED) ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(INSTALLED) ## measure against the bare disk
	$(BIN)/holdfast bench quiver $(ARGS)

setup-peers: ## install the Debian packages that tests compare with
	scripts/setup-peers
	scripts/setup-promtool

setup-collectors: ## build the OpenTelemetry Collector that tests and benchmarks compare with (needs Go)
	scripts/setup-collectors

setup-js: ## install the JavaScript SDK of OpenTelemetry that tests send with (needs npm)
	scripts/setup-js

setup-axe: ## install axe-core, with which tests check the console's pages (needs npm)
	scripts/setup-axe

setup-h2spec: ## build h2spec, with which tests compare connections of gRPC (needs Go)
	scripts/setup-h2spec

setup-clients: $(INSTALLED) ## install dbt and Airflow, each by itself, whose lineage tests receive
	$(BIN)/python scripts/setup_clients.py

setup-openlineage-spark: ## fetch OpenLineage's listener for Spark, which a test runs (needs Maven)
	scripts/setup-openlineage-spark

setup-deploy: ## build promtool and helm, with which tests check deploy/ (needs Go)
	scripts/setup-deploy

sbom: $(INSTALLED) ## write build/holdfast.cdx.json: what Holdfast is made of (CycloneDX)
	@mkdir -p build
	$(BIN)/python scripts/sbom.py > build/holdfast.cdx.json

wheel: $(FOR_DEMO) ## build dist/holdfast-*.whl
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	PIP_CONSTRAINT="$(CURDIR)/constraints.txt" $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

docs: ## build the documentation as a site, into build/site
	@$(PYTHON) scripts/install.py docs
	$(BIN)/mkdocs build --quiet --strict
	@echo "build/site/index.html"

clean: ## remove the virtual environment, caches and build results
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) scripts/install.py dev .installed .demo

$(FOR_DEMO): pyproject.toml constraints.txt
	@$(PYTHON) scripts/install.py demo .demo
