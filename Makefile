# `make demo` and `make test` do everything on a fresh machine. Everything is installed into .venv, nothing outside it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH := torch==2.13.0
NODES ?= 4
PROTOS := $(wildcard protos/phalanx_proto/v1/*.proto)
GENERATE := -m grpc_tools.protoc -I. $(PROTOS:protos/%=%)
UI := control_plane/phalanx_control/web/ui
PAGE := control_plane/phalanx_control/web/static/index.html
UI_SOURCES := $(wildcard $(UI)/src/* $(UI)/*.json $(UI)/build.mjs $(UI)/.npmrc)

.PHONY: demo test test-all test-gpu chaos chaos-short check protos ui ui-types dev dev-cluster bench bench-scheduler bench-topology venv clean
.DELETE_ON_ERROR:

demo: venv ui
	$(BIN)/gpuctl up
	$(BIN)/python examples/embed_corpus.py

# ---- what is installed ----

venv: $(VENV)/.installed

$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Phalanx needs Python 3.11 or newer, and $(PYTHON) is older: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): torch and the rest, about 2 GB; some minutes, once"
	$(PIP) $(TORCH)
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml constraints.txt hatch_build.py
	$(PIP) -c constraints.txt -e '.[all,dev,examples]'
	touch $@

# The generator is pinned low and kept apart: grpcio-tools 1.66 emits code that every protobuf from 5.27.2 on can load.
$(VENV)/protos/.installed: $(VENV)/.torch
	$(PYTHON) -m venv $(VENV)/protos
	$(VENV)/protos/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.66.2 setuptools==75.8.0
	touch $@

# Ray brings dependencies of its own, so it lives beside the product and sees its torch and numpy.
$(VENV)/peers/.installed: $(VENV)/.installed benchmarks/requirements.txt
	$(PYTHON) -m venv $(VENV)/peers
	$(VENV)/peers/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	echo "$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')" > \
	  "$$($(VENV)/peers/bin/python -c 'import site; print(site.getsitepackages()[0])')/product.pth"
	touch $@

# ---- what is generated ----

protos: $(VENV)/protos/.installed
	cd protos && ../$(VENV)/protos/bin/python $(GENERATE) --python_out=. --pyi_out=. --grpc_python_out=.

ui: $(PAGE)

$(PAGE): $(VENV)/.installed $(UI_SOURCES)
	$(BIN)/python hatch_build.py
	touch $@

ui-types: venv
	$(BIN)/python $(UI)/make_types.py

# ---- tests and checks ----

test: venv ui
	$(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder -m "not slow and not gpu and not netns" $(ARGS)

test-all: venv ui
	$(BIN)/python -m pytest -q $(ARGS)

test-gpu: venv ui
	$(BIN)/python -m pytest -q -m gpu $(ARGS)

# The gate's run: the same faults in the same order every time. `make chaos` and `make test-all` throw the dice.
chaos-short: venv ui
	CHAOS_SEED=$${CHAOS_SEED:-1} $(BIN)/python -m pytest -q tests/faults/test_chaos.py $(ARGS)

chaos: venv
	$(BIN)/python -m tests.faults.chaos --faults 200 --calls 5000 --seconds 1800 $(ARGS)

check: venv ui $(VENV)/protos/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python $(UI)/make_types.py --check
	$(BIN)/python hatch_build.py --check-types
	@drift=$$(mktemp -d) && trap 'rm -rf "$$drift"' EXIT && \
	  (cd protos && ../$(VENV)/protos/bin/python $(GENERATE) --python_out="$$drift" --pyi_out="$$drift" --grpc_python_out="$$drift") && \
	  for made in "$$drift"/phalanx_proto/v1/*; do \
	    diff -q "$$made" "protos/phalanx_proto/v1/$$(basename "$$made")" || { echo "generated code is old: run make protos" >&2; exit 1; }; \
	  done && echo "generated code fits the protos"

# ---- running it from the checkout ----

dev: venv ui
	$(BIN)/gpuctl down
	$(BIN)/gpuctl up

dev-cluster: venv ui
	$(BIN)/python -m infra.dev_cluster --nodes $(NODES)

bench: venv $(VENV)/peers/.installed
	$(BIN)/python -m benchmarks.foundation $(ARGS)

bench-scheduler: venv
	$(BIN)/python -m benchmarks.scheduler $(ARGS)

bench-topology: venv
	$(BIN)/python -m benchmarks.topology $(ARGS)
	$(BIN)/python -m benchmarks.fabric

clean:
	-test ! -x $(BIN)/gpuctl || $(BIN)/gpuctl down
	rm -rf $(VENV) dist build $(UI)/node_modules $(dir $(PAGE)) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
