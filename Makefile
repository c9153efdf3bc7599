# `make demo` and `make test` set up everything they need in .venv and need nothing but Rust, a C compiler and Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
RUST_SOURCES := $(shell find crates -name '*.rs' -o -name '*.toml' -o -name '*.py' -o -name '*.c' -o -name '*.mjs' | grep -v /target/) Cargo.toml pyproject.toml

# Tests start hundreds of processes that import PyTorch and JAX: Python keeps what it compiles of them, whatever the
# environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo dev check test test-all test-rust test-python test-portability test-newest test-llama lint lint-rust lint-python check-wheel bench bench-broad bench-c bench-ggml bench-parallel docs site pictures generate agreement clean

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

# The packages that the demo needs.
$(VENV)/.packages: $(BIN)/uv pyproject.toml
	$(UV) pip install --quiet --python $(BIN)/python -r pyproject.toml --extra demo "maturin>=1.16,<2"
	touch $@

# On top of them what the tests compare with.
$(VENV)/.test-packages: $(VENV)/.packages pyproject.toml
	$(UV) pip install --quiet --python $(BIN)/python -r pyproject.toml --extra test
	touch $@

# The extension module lies in one place, however it was built: the stamps of the other builds go.
MODULE = rm -f $(VENV)/.demo $(VENV)/.test; VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --quiet --skip-install

# Optimized.
$(VENV)/.demo: $(VENV)/.packages $(RUST_SOURCES)
	$(MODULE) --release
	touch $@

# Of the crates that the tests of Rust have built already, with the checks of debug builds.
$(VENV)/.test: $(VENV)/.test-packages $(RUST_SOURCES)
	$(MODULE) --profile tests
	touch $@

demo: $(VENV)/.demo
	PYTHONPATH=python:. $(BIN)/python -m examples.digits

# The extension module without optimization, built incrementally: a change is in Python within seconds.
dev: $(VENV)/.test-packages
	$(MODULE)

# The tests that matter for a change, in a few minutes.
check: dev
	PYTHONPATH=python:. $(BIN)/python tools/check.py

test: lint test-rust test-python test-portability

test-rust:
	cargo test --quiet --profile tests --workspace

test-python: $(VENV)/.test
	PYTHONPATH=python:. $(BIN)/python -m pytest -n 2 --durations=25

# Exported C with every compiler and on every machine that it is made for. As root it installs what that needs; what
# cannot be installed is skipped, with the reason.
test-portability: $(VENV)/.test
	PYTHONPATH=python:. $(BIN)/python -m portability

# Files of GGUF in llama.cpp itself, which is built once: a minute and a half.
test-llama: $(VENV)/.test
	PYTHONPATH=python:. $(BIN)/python -m portability.llama_cpp

# Also what takes long: the gradients of every op on JAX in single precision.
test-all: lint test-rust $(VENV)/.test
	MITHRIL_TEST_ALL=1 PYTHONPATH=python:. $(BIN)/python -m pytest -n 2

# The tests with a newer Python than that of .venv, a version or a path: JAX and NumPy have newer versions for it.
NEWEST ?= 3.13
test-newest: dev
	$(UV) venv --quiet --clear --python $(NEWEST) target/newest
	$(UV) pip install --quiet --python target/newest/bin/python -r pyproject.toml --extra test
	PYTHONPATH=python:. target/newest/bin/python -m pytest -n 2

# The wheel as it is released, in an empty environment of each of the interpreters in PYTHONS: its files, the first example
# of the README, training, exported C, the programs of mithril.examples.
PYTHONS ?= $(PYTHON)
check-wheel: $(VENV)/.packages
	rm -rf target/wheels
	$(BIN)/maturin build --quiet --release --locked --out target/wheels
	$(BIN)/python tools/check_wheel.py target/wheels/*.whl --python $(PYTHONS)

# Both halves at once: crates that follow each other leave a core idle, and so do mypy and mkdocs.
lint: $(VENV)/.test-packages
	$(MAKE) --no-print-directory -j 2 lint-rust lint-python

lint-rust:
	cargo fmt --all --check
	cargo clippy --quiet --profile tests --workspace --all-targets -- -D warnings

lint-python: $(VENV)/.test-packages
	$(BIN)/ruff check python examples bench tools portability crates/mithril-codegen/src/python/prelude
	$(BIN)/ruff format --check python examples bench tools portability
	PYTHONPATH=python $(BIN)/mypy
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

bench: $(VENV)/.demo $(VENV)/.test-packages
	PYTHONPATH=python:. $(BIN)/python -m bench
	PYTHONPATH=python:. $(BIN)/python -m bench.frameworks
	PYTHONPATH=python:. $(BIN)/python -m bench.weights
	PYTHONPATH=python:. $(BIN)/python -m bench.optimizers

# Models in C against ONNX Runtime, OpenVINO, PyTorch and JAX, in pairs; the extension module is optimised for it.
bench-c: $(VENV)/.demo $(VENV)/.test-packages
	$(UV) pip install --quiet --python $(BIN)/python -r pyproject.toml --extra bench
	PYTHONPATH=python:. $(BIN)/python -m bench.c

# Some 75 networks of torchvision, timm and transformers against ONNX Runtime and OpenVINO: half an hour a column.
bench-broad: $(VENV)/.demo $(VENV)/.test-packages
	$(UV) pip install --quiet --python $(BIN)/python -r pyproject.toml --extra bench
	PYTHONPATH=python:. $(BIN)/python -m bench.broad --batch 1 --threads 1

# Training steps on two devices against the same written by hand in PyTorch and JAX.
bench-parallel: $(VENV)/.demo $(VENV)/.test-packages
	PYTHONPATH=python:. $(BIN)/python -m bench.parallel

# Models on the GGML backend against the same written by hand with ggml, and a Llama against llama.cpp, which is built
# once: minutes. The extension module is optimised for it.
bench-ggml: $(VENV)/.demo $(VENV)/.test-packages
	$(UV) pip install --quiet --python $(BIN)/python -r pyproject.toml --extra bench
	PYTHONPATH=python:. $(BIN)/python -m bench.ggml
	PYTHONPATH=python:. $(BIN)/python -m bench.llama_cpp

# The documentation as a site, in site/. Links that lead nowhere and pages that are in no menu fail.
site: $(VENV)/.docs-packages
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

$(VENV)/.docs-packages: $(BIN)/uv pyproject.toml
	$(UV) pip install --quiet --python $(BIN)/python -r pyproject.toml --extra docs
	touch $@

# The pictures of the documentation; the page of a model needs Chromium.
pictures: $(VENV)/.demo $(VENV)/.test-packages
	PYTHONPATH=python:. $(BIN)/python -m tools.pictures

# Rewrites what is derived from the rows: Python classes, stubs, docs/ops.md.
generate: $(VENV)/.demo
	$(BIN)/python tools/generate.py

# Measures all ops on all backends that are installed; writes docs/agreement.md. Takes minutes.
agreement: $(VENV)/.test
	PYTHONPATH=python $(BIN)/python tools/agreement.py

clean:
	rm -rf target $(VENV)
