# `make help` lists what there is. Every target makes the environment it needs first.
SHELL := /bin/sh
VENV ?= .venv
FUZZ_SECONDS ?= 60
SOAK_CYCLES ?= 500
SOAK_KILLS ?= 200
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PYTHON := $(BIN)/python
# `python -m` where it serves: a script's first line holds a path that a moved checkout no longer has.
MESON := $(PYTHON) -m mesonbuild.mesonmain
READY := $(VENV)/.ready
C_SOURCES = $(shell find core -name '*.[ch]')
# Warnings differ from compiler to compiler; they are errors only with gcc 12 (Debian 12), which was answered.
WERROR ?= $(if $(filter 12,$(shell cc -dumpversion 2>/dev/null)),true,false)
SANITIZERS := -Dwerror=$(WERROR) -Dstatic=false -Db_sanitize=address,undefined -Db_lundef=false --buildtype=debugoptimized
export PATH := $(abspath $(BIN)):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help dev build check tidy fix test test-unit test-core test-system test-cgroup2 asan fuzz bench docs wheel soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

dev: $(READY) ## make .venv with Ramet (editable) and every tool
$(READY): pyproject.toml hatch_build.py
	scripts/venv $(VENV)
	$(PYTHON) -m pip install --quiet --upgrade 'pip>=25.1' # the first with --group
	$(PYTHON) -m pip install --quiet --group dev --editable .
	@touch $@

build: $(READY) ## compile core and put the program into src/ramet/_native
	$(PYTHON) hatch_build.py
	$(PYTHON) scripts/check_elf.py src/ramet/_native/ramet-core

# One a line; all of them run, whatever the others say.
define CHECKS
$(PYTHON) -m ruff check
$(PYTHON) -m ruff format --check
$(PYTHON) -m mypy --strict src scripts hatch_build.py
$(BIN)/lint-imports --no-logo
$(BIN)/clang-format --dry-run -Werror $(C_SOURCES)
$(PYTHON) scripts/unasync.py --check
$(PYTHON) scripts/gen_protocol.py --check
$(PYTHON) scripts/gen_syscalls.py --check
$(PYTHON) scripts/gen_openapi.py --check
$(PYTHON) scripts/gen_reference.py --check
$(BIN)/codespell
endef
check: export STEPS = $(CHECKS)
check: $(READY) ## everything that reads the code without running it
	@printf '%s\n' "$$STEPS" | { status=0; while read -r step; do \
	    printf '%.100s\n' "$$step"; sh -c "$$step" </dev/null || status=1; done; exit $$status; }

tidy: test-core ## clang-tidy over core; slow, so not part of check
	$(BIN)/clang-tidy --quiet -p build/core-test $(wildcard core/src/*.c)

fix: $(READY) ## format, sort, regenerate
	$(PYTHON) scripts/gen_protocol.py
	$(PYTHON) scripts/gen_syscalls.py
	$(PYTHON) scripts/gen_openapi.py
	$(PYTHON) scripts/unasync.py
	$(PYTHON) scripts/gen_reference.py
	$(PYTHON) -m ruff check --fix
	$(PYTHON) -m ruff format
	$(BIN)/clang-format -i $(C_SOURCES)

test: build test-core ## core's tests, then all of pytest but the slow ones
	$(PYTHON) -m pytest -m 'not slow' $(PYTEST_ARGS)

test-unit: $(READY) ## what needs no kernel feature; seconds
	$(PYTHON) -m pytest tests/unit $(PYTEST_ARGS)

test-core: $(READY) ## core's own tests, in C
	test -f build/core-test/build.ninja || $(MESON) setup -Dwerror=$(WERROR) --buildtype=debugoptimized build/core-test core
	$(MESON) test -C build/core-test --print-errorlogs

test-system: build ## real sandboxes and attempts to escape
	$(PYTHON) -m pytest tests/system tests/security $(PYTEST_ARGS)

build/asan/build.ninja: | $(READY)
	$(MESON) setup $(SANITIZERS) build/asan core

test-cgroup2: build ## limits on cgroups of version 2, in a virtual machine; as root, with qemu: half an hour
	scripts/test-cgroup2

test-container: ## build packaging/Containerfile with podman, and have a container of it serve; some minutes
	scripts/test-container

asan: build/asan/build.ninja ## core's own tests, and those that drive its socket, under the sanitizers
	$(MESON) test -C build/asan --print-errorlogs
	$(MESON) compile -C build/asan ramet-core
	RAMET_CORE=$(abspath build/asan/ramet-core) $(PYTHON) -m pytest -m 'not slow' tests/system/core $(PYTEST_ARGS)

fuzz: build/asan/build.ninja ## feed core's decoders with nonsense, each for FUZZ_SECONDS (60)
	scripts/fuzz build/asan $(FUZZ_SECONDS)

bench: build ## measure, beside bubblewrap; benchmarks/README.md tells how to read it
	$(PYTHON) -m benchmarks

docs: build ## build/site: the pages as a web site; and check that what they show is what happens
	$(PYTHON) scripts/build_site.py
	$(PYTHON) -m pytest tests/docs $(PYTEST_ARGS)

wheel: $(READY) ## dist/: the wheel with the static program, and the source distribution
	rm -rf dist
	$(PYTHON) -m build --outdir dist
	rm -rf build/wheel && $(PYTHON) -m zipfile -e dist/*.whl build/wheel
	$(PYTHON) scripts/check_elf.py build/wheel/ramet/_native/ramet-core

soak: build ## kill -9 and recover, SOAK_CYCLES (500) and SOAK_KILLS (200) times; 50 clients; count what is left
	RAMET_SOAK_CYCLES=$(SOAK_CYCLES) RAMET_SOAK_KILLS=$(SOAK_KILLS) $(PYTHON) -m pytest -m slow tests/system $(PYTEST_ARGS)

clean: ## remove what was built; .venv stays
	rm -rf build dist src/ramet/_native .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
