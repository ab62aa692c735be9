# `make demo` and `make test` do everything on a fresh machine. Everything is installed into .venv, nothing outside it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
PROTOS := $(wildcard protos/phalanx_proto/v1/*.proto)

.PHONY: demo test test-all test-gpu check protos ui dev dev-cluster bench venv clean

venv: $(VENV)/.installed

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(TORCH)
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev,examples]'
	touch $@

# The generator is pinned low and kept apart: grpcio-tools 1.66 emits code that every protobuf from 5.27 on can load.
$(VENV)/protos/.installed:
	$(PYTHON) -m venv $(VENV)/protos
	$(VENV)/protos/bin/pip install --quiet --disable-pip-version-check grpcio-tools==1.66.2 setuptools==75.8.0
	touch $@

protos: venv $(VENV)/protos/.installed
	cd protos && ../$(VENV)/protos/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS:protos/%=%)
