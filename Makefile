# `make demo` sets up, builds and trains the example on two ranks; `make test` sets up, builds and tests. `make help`
# lists all targets; docs/testing.md says what each target of tests runs.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.DEFAULT_GOAL := build

root := $(abspath $(dir $(lastword $(MAKEFILE_LIST))))
venv := $(root)/.venv
py := $(venv)/bin/python
core := $(root)/torch_ext/sagecomm/lib/libsagecomm.so
facades := $(addprefix $(root)/torch_ext/sagecomm/lib/,libsagecomm_nccl.so libsagecomm_hccl.so)
staticcheck := honnef.co/go/tools/cmd/staticcheck@v0.8.2

export GOTOOLCHAIN := local
export CGO_ENABLED := 1
go := $(root)/tools/go

find_in = $(shell find $(1) -type f \( $(2) \) 2>/dev/null)
go_dirs := $(addprefix $(root)/,algo export fusion internal pgbackend)
core_sources := $(call find_in,$(go_dirs),-name '*.go' ! -name '*_test.go' -o -name '*.c' -o -name '*.h' -o -name '*.S' -o -name '*.inc' -o -name '*.ptx') \
  $(wildcard $(root)/go.mod $(root)/go.sum) $(root)/export/exports.map
# Without the lists that a tool writes, and what is included in assembler.
c_sources := $(filter-out $(root)/internal/lazylink/%_symbols.h %/trampolines.inc.h,\
  $(call find_in,$(addprefix $(root)/,bench cshim export facade hccl internal nccl tests),\
  -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.hpp'))
python_sources := torch_ext tests/python tests/suites tests/emulator tests/mutants examples bench tools/rerun-failed \
  tools/python-api tools/ptx

# Prints the text after ## in the rule of each target.
.PHONY: help
help: ## list the targets
	@awk -F ':[^#]*## ' '/^[a-z-]+:[^#]*## / { printf "  %-16s %s\n", $$1, $$2 }' $(root)/Makefile

# ---- set-up ----

# Without a compiler it prints one sentence instead of a page of messages of the compiler driver.
.PHONY: compilers
compilers:
	@cc=$${CC:-gcc}; cxx=$${CXX:-g++}; \
	if ! command -v $${cc%% *} >/dev/null || ! command -v $${cxx%% *} >/dev/null; then \
	  echo "sagecomm: a C and a C++20 compiler are needed and $$cc or $$cxx was not found: install gcc and g++ 11 or" \
	    "newer, or set CC and CXX, and run make again" >&2; \
	  exit 1; \
	fi

.PHONY: venv
venv: $(venv)/.ready ## make the Python environment in .venv

$(venv)/.ready: $(root)/requirements.txt $(root)/requirements-dev.txt $(root)/tools/venv | compilers
	@$(root)/tools/venv $(venv)
	$(py) -m pip install --quiet --disable-pip-version-check -r $(root)/requirements-dev.txt
	@touch $@

# Registers this tree in the environment, entry points included, so that tests import it and not an installed copy.
$(venv)/.installed: $(venv)/.ready $(root)/torch_ext/setup.py $(root)/torch_ext/pyproject.toml | $(core) $(facades) shim
	$(py) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable $(root)/torch_ext
	@touch $@

# ---- build ----

.PHONY: build core facades shim
build: compilers $(venv)/.installed $(core) $(facades) shim ## set up and build everything that a program needs

core_ldflags := -ldflags '-s -w -extldflags "-Wl,--version-script=$(root)/export/exports.map -Wl,-soname,libsagecomm.so"'
core: $(core) ## build libsagecomm.so, the Go core

# The library is built under another name and moved, so that a process that has the old one mapped keeps it.
$(core): $(core_sources) | compilers
	@mkdir -p $(@D)
	cd $(root) && CUDA_REQUIRED=yes WITHOUT_TESTING=yes $(go) build -buildvcs=false -trimpath -buildmode=c-shared $(core_ldflags) -o $@.new ./export
	@rm -f $@.h $(basename $@).h $(@D)/libsagecomm.so.h
	@mv $@.new $@

facades: $(facades) ## build the libraries that stand where NCCL and HCCL stand (docs/nccl.md, docs/hccl.md)

# They need no header of a vendor's. Their own calls stay inside them, whatever other library of that SONAME the process has.
facade_flags = -std=c11 -O2 -g -fPIC -pthread -Wall -Wextra -Werror -shared -Wl,-Bsymbolic -Wl,--no-undefined \
  -I$(root)/$(1) -Wl,--version-script=$(root)/$(1)/exports.map -Wl,-soname,$(soname_$(1)) -Wl,-z,nodelete \
  $(wildcard $(root)/facade/*.c $(root)/$(1)/*.c)
soname_nccl := libnccl.so.2
soname_hccl := libhccl.so
facade_sources = $(wildcard $(root)/facade/* $(root)/$(1)/*) $(root)/export/sagecomm.h $(root)/internal/runner/annotate.h
.SECONDEXPANSION:
$(facades): $(root)/torch_ext/sagecomm/lib/libsagecomm_%.so: $$(call facade_sources,$$*) | compilers
	@mkdir -p $(@D)
	$${CC:-gcc} $(call facade_flags,$*) -o $@.new -ldl
	@mv $@.new $@

# Fails for a library that lacks functions of a vendor's, so that it could not be loaded without that vendor's libraries.
needs_no_vendor = @! grep -E ' UND (cu[A-Z]|nvml|nccl|acl[a-z]*[A-Z]|Hccl|cnrt|cncl|cndev|dcmi)' <<<"$$(readelf -W --dyn-syms $(1))"

# Cross-compiled, so it is not loaded. The Python package of a C compiler for all targets comes along: about 90 MB.
zig := $(root)/build/zig
arm64 := $(root)/build/arm64/libsagecomm.so
.PHONY: core-arm64
core-arm64: $(zig)/.ready ## build the core and the libraries over it for arm64 into build/arm64
	cd $(root) && GOARCH=arm64 CC=$(root)/tools/arm64-cc CUDA_REQUIRED=yes WITHOUT_TESTING=yes \
	  $(go) build -buildvcs=false -trimpath -buildmode=c-shared $(core_ldflags) -o $(arm64) ./export
	$(root)/tools/arm64-cc $(call facade_flags,nccl) -o $(dir $(arm64))libsagecomm_nccl.so -ldl
	$(root)/tools/arm64-cc $(call facade_flags,hccl) -o $(dir $(arm64))libsagecomm_hccl.so -ldl
	@grep -q AArch64 <<<"$$(readelf -h $(arm64))"
	@! grep NEEDED <<<"$$(readelf -d $(arm64))" | grep -vE '\[(lib(c|dl|m|pthread)|ld-linux.*)\.so'
	$(call needs_no_vendor,$(arm64))

$(zig)/.ready: $(root)/requirements-arm64.txt $(venv)/.ready
	$(py) -m pip install --quiet --disable-pip-version-check --upgrade --target $(zig) -r $(root)/requirements-arm64.txt
	@touch $@

# With the cuda.h of the oldest CUDA that the core is for: beside other headers functions have other names and parameters. The package of
# 3.5 MB comes along, of which the headers are kept.
cuda12 := $(root)/build/cuda12
with_cuda12 = cd $(root) && CUDA_INCLUDE=$(cuda12)/nvidia/cuda_runtime/include
.PHONY: core-cuda12
core-cuda12: $(cuda12)/libsagecomm.so ## check and build the core with the headers of CUDA 12 into build/cuda12

$(cuda12)/libsagecomm.so: $(core_sources) $(cuda12)/.ready | compilers
	$(with_cuda12) WITHOUT_TESTING=yes $(go) vet -trimpath ./internal/device/cuda ./internal/lazylink
	$(with_cuda12) WITHOUT_TESTING=yes $(go) build -buildvcs=false -trimpath -buildmode=c-shared $(core_ldflags) -o $@ ./export
	$(call needs_no_vendor,$@)

$(cuda12)/.ready: $(root)/requirements-cuda12.txt $(venv)/.ready
	@rm -rf $(cuda12)/nvidia*
	$(py) -m pip install --quiet --disable-pip-version-check --no-deps --target $(cuda12) -r $(root)/requirements-cuda12.txt
	@rm -rf $(cuda12)/nvidia/cuda_runtime/lib
	@touch $@

# shim_build.py finds out itself what is out of date, also when torch's version changes.
shim: $(venv)/.ready | compilers ## build the C++ extension for the installed torch
	@$(py) $(root)/torch_ext/shim_build.py

# tests/emulator/README.md. Prints nothing if nothing is out of date.
.PHONY: beds
beds: $(venv)/.ready | compilers ## build the emulated accelerators of the tests
	@$(py) $(root)/tests/emulator/build.py
	@$(py) $(root)/tests/emulator/simdev_build.py

# NVRTC, the compiler, comes with torch: no GPU and no driver is needed.
.PHONY: ptx
ptx: $(venv)/.ready ## compile the kernels for CUDA devices to PTX, which is committed
	$(py) $(root)/tools/ptx

# ---- use ----

.PHONY: demo bench
demo: build ## train the example on two ranks
	$(py) $(root)/examples/train_digits.py

bench: build ## run all benchmarks but bench/trees.py, which compares two checkouts
	cd $(root) && $(go) test -run '^$$' -bench . -benchtime 200ms ./...
	$(py) -m sagecomm bench all --compare gloo
	@for script in $(filter-out %/trees.py,$(wildcard $(root)/bench/*.py)); do echo "== $$script"; $(py) $$script; done

# ---- tests ----

# docs/testing.md says what each target runs and how long it takes. Python's tests come last, so that pytest's summary
# is the last line.
.PHONY: test test-long
test: build beds ## run the quick tests: Go's, then Python's
	@$(MAKE) --no-print-directory test-go
	@$(MAKE) --no-print-directory test-python

test-long: build beds ## run all tests with coverage, long matrices and mutants, and the race detector everywhere
	@$(MAKE) --no-print-directory test-long-go
	@$(MAKE) --no-print-directory test-long-python

# With RERUN_FAILED=1, which CI sets, a test that fails runs once more, alone; `flaky: NAME` is printed if it passes
# then.
# Without vet, which `make lint` runs.
go_test = cd $(root) && $(if $(RERUN_FAILED),$(py) $(root)/tools/rerun-failed) $(go) test -vet=off -timeout 30m
# By default a process lingers for a second at its end, for reports of other threads. The tests start hundreds.
# TEST_THOROUGH: also tests that are too long for `make test` (tests/quick).
go_race = export GORACE=atexit_sleep_ms=0 TEST_THOROUGH=1; $(go_test) -race -short
# With AFTER_TEST=1, which CI sets, test-long leaves out what `make test-go-race test-python` has run, and coverage.
# With SHARE=0.25, it runs that part of the long cases of each of Python's tests (tests/python/drawing.py).
# Two workers; tests that promise a time run alone (tests/python/sharing.py).
pytest = cd $(root) && $(py) -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(if $(RERUN_FAILED),--rerun-failed)

# These packages compute, and promise no times: two run at once. The others run one at a time, because tests of another
# package disturb the times that ranks measure.
computing := /algo /internal/kernels /tests/devices /tests/emulator /tests/lint /tests/modelcheck /tests/runner/sanitize
two_at_once = -p 2 $$($(go) list ./... | grep $(computing:%=-e '%'))
one_at_a_time = -p 1 $$($(go) list ./... | grep -v $(computing:%=-e '%'))

raced := ./pgbackend ./internal/bootstrap ./internal/shmem
# Tests that compare many results. Most of their time passes in C, which the race detector does not see.
matrices := OfFullLength|BetweenHosts|OfEveryTypeAndReduction
.PHONY: test-go test-go-race test-python
test-go: build beds ## run Go's quick tests
	$(go_test) -short $(two_at_once)
	$(go_test) -short $(one_at_a_time)

test-go-race: build beds ## run the race detector where goroutines meet most
	cd $(root) && $(go) build -race $(raced)
	$(go_race) -p 1 -skip '$(matrices)' $(raced)

test-python: build beds ## run Python's quick tests
	$(pytest) -m 'not long'

# Coverage and the race detector run separately: counters that are safe under the race detector made pgbackend eight
# times as slow. The race detector leaves out packages without goroutines: the proofs of the plans and of the protocol,
# the kernels against their references, the rules about the sources, and the tests of C and C++ with sanitizers. It runs
# with -short, because it looks for races and not for wrong results.
without_race = /algo /internal/kernels /tests/lint /tests/modelcheck /tests/emulator /tests/runner/sanitize \
  $(if $(AFTER_TEST),$(raced:.%=sagecomm%$$))
# Coverage leaves out packages with C, which would be compiled once more, and the model of the protocol, which would
# take three times as long.
without_coverage = /export /internal/runner /internal/kernels /tests/
covered = $(if $(AFTER_TEST),,-coverprofile=$(root)/build/go.coverage.$(1) \
  -coverpkg=$$($(go) list ./... | grep -v $(without_coverage:%=-e %) | paste -sd,))
.PHONY: test-long-go test-long-python
test-long-go: build beds ## run all of Go's tests with coverage, and the race detector
	@mkdir -p $(root)/build
	$(go_test) $(call covered,1) $(two_at_once)
	$(go_test) $(call covered,2) $(one_at_a_time)
	cd $(root) && $(go) build -race ./...
	$(go_race) -p 1 $$($(go) list ./... | grep -v $(without_race:%=-e '%'))
ifdef AFTER_TEST
	$(go_race) -p 1 -run '$(matrices)' ./pgbackend
else
	@cd $(root)/build && { cat go.coverage.1; tail -n +2 go.coverage.2; } >go.coverage && \
	  cd $(root) && $(go) tool cover -func=build/go.coverage | awk '/^total:/ { print "Go statement coverage: " $$NF }'
endif

test-long-python: build beds ## run all of Python's tests with coverage
	$(pytest) $(if $(SHARE),--share=$(SHARE)) $(if $(AFTER_TEST),-m long,--cov)

# The tests of streams and events run under a few seeds of the random schedule; this runs them under SEEDS=50.
streams := TestCProgramOnADevice|TestGraphsOfACProgram|TestAPeerOfGraphsDies|TestHCCLFacade
.PHONY: test-streams
test-streams: build beds ## run the tests on emulated devices under SEEDS=50 seeds
	cd $(root) && SEEDS=$(or $(SEEDS),50) $(go) test -vet=off -p 1 -count 1 -timeout 5h ./tests/devices
	cd $(root) && SEEDS=$(or $(SEEDS),50) $(go) test -vet=off -p 1 -count 1 -timeout 5h -run '$(streams)' ./tests/go
	cd $(root) && SEEDS=$(or $(SEEDS),50) $(py) -m pytest -n 2 tests/python/test_simdev_*.py tests/python/test_fake_cuda*.py \
	  tests/python/test_device_*.py tests/python/test_*_devices.py tests/python/test_cuda_*.py \
	  tests/python/test_nccl_engine.py tests/python/test_nccl_graphs.py tests/python/test_nccl_torch.py tests/python/test_gpu_check.py

.PHONY: test-hosts
test-hosts: build beds ## run the tests of groups over several hosts: all of the packages that carry links, and those of hosts alone
	cd $(root) && TEST_MANY_RANKS=1 $(go) test -vet=off -count 1 -timeout 30m ./pgbackend ./internal/handshake ./internal/shadow ./internal/transport/tcp ./internal/verdict
	cd $(root) && $(go) run ./tests/faults -match apart
	cd $(root) && $(py) -m pytest tests/python/test_hosts*.py tests/python/test_elastic.py tests/python/test_launchers.py tests/python/test_ray.py
	cd $(root) && $(py) tests/suites/run.py network_2x1 network_2x2 network_4x2

# docs/testing.md, Mutants. CI checks only that each patch applies.
.PHONY: test-mutants
test-mutants: build beds ## take one order of device operations out at a time, and run the tests that must notice
	cd $(root) && $(py) tests/mutants/run.py

# The whole of which the tests run a random part (docs/reliability.md).
.PHONY: faults kills soak
faults: compilers ## run every cell of the fault matrix once
	cd $(root) && $(go) run ./tests/faults

kills: compilers ## kill ranks at 500 random moments
	cd $(root) && $(go) run ./tests/faults -kills 500

MINUTES ?= 60
soak: build ## run faults, deaths and random programs for MINUTES=60
	cd $(root) && $(go) run ./tests/faults -soak $(MINUTES)m -python $(py)

# An input that fails stays in testdata/fuzz of its package, and is a test of it from then on.
.PHONY: fuzz
fuzz: compilers ## run every fuzzer for SECONDS=60, or those of the packages IN="./internal/shadow ..."
	cd $(root) && for package in $(or $(IN),$$($(go) list ./...)); do \
	  for name in $$(grep -hso '^func Fuzz[A-Za-z]*' $$($(go) list -f '{{$$dir := .Dir}}{{range .TestGoFiles}}{{$$dir}}/{{.}} {{end}}{{range .XTestGoFiles}}{{$$dir}}/{{.}} {{end}}' $$package) /dev/null | cut -d ' ' -f 2); do \
	    $(go) test -vet=off -run '^$$' -fuzz "^$$name\$$" -fuzztime $(or $(SECONDS),60)s \
	      -fuzzminimizetime 2s -parallel 1 $$package || exit 1; \
	  done; \
	done

# docs/torch-suites.md. `make test` runs a few of them.
.PHONY: test-suites
test-suites: build ## run torch's own tests of a backend
	cd $(root) && $(py) tests/suites/run.py

.PHONY: test-torch
test-torch: compilers ## build and test with another torch: VERSION=2.13.0
	@test -n '$(VERSION)' || { echo 'which torch? for example: make test-torch VERSION=2.13.0' >&2; exit 2; }
	$(root)/tools/test-torch $(VERSION)

# Lightning, Accelerate, DeepSpeed and Ray Train, by the scripts of docs/frameworks.md; about 650 MB of packages.
frameworks := $(root)/build/frameworks
.PHONY: test-frameworks
test-frameworks: build $(frameworks)/.ready ## run the scripts of docs/frameworks.md
	$(root)/tools/test-frameworks $(frameworks)

$(frameworks)/.ready: $(root)/requirements-frameworks.txt $(root)/tools/test-frameworks $(venv)/.ready
	$(root)/tools/test-frameworks --install $(frameworks)
	@touch $@

# docs/vllm.md. vLLM's build for CPU needs another torch than .venv has, and so an extension built for that: about 7 GB.
vllm := $(root)/build/vllm
.PHONY: test-vllm
test-vllm: build $(vllm)/.ready ## serve a small model with vLLM on CPU: WHAT="bindings contract tokens kill measure"
	WHAT='$(WHAT)' $(root)/tools/test-vllm $(vllm)

$(vllm)/.ready: $(root)/requirements-vllm.txt $(root)/tools/test-vllm $(root)/tests/python/vllm_needs.py \
  $(root)/torch_ext/pyproject.toml $(root)/torch_ext/setup.py | build
	$(root)/tools/test-vllm --install $(vllm)
	@touch $@

# What programs need of NCCL and HCCL, by their wheels. It needs a package index, and is for changes of the versions that are listed.
.PHONY: check-symbols
check-symbols: $(venv)/.ready ## compare the lists of functions of NCCL and HCCL with the wheels that they are of
	$(py) $(root)/tools/check-symbols $(root)/build/wheels

.PHONY: wheel test-wheel
wheel: compilers $(venv)/.ready ## build the wheel into dist
	@rm -rf $(root)/dist $(root)/torch_ext/build/lib* $(root)/torch_ext/build/bdist*
	$(py) -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w $(root)/dist $(root)/torch_ext
	@ls -l $(root)/dist

test-wheel: wheel ## try the wheel in an environment of its own
	$(root)/tools/test-wheel $(root)/dist/*.whl

# docs/gpu-check.md. The package works by itself, on another machine as well.
gpu_check := $(root)/build/gpu-check/tests/python/gpu_check.py
.PHONY: gpu-package gpu-check
gpu-package: build ## build build/gpu-check, which checks CUDA on a machine with a GPU
	$(root)/tools/gpu-package

gpu-check: gpu-package ## build it, and run it if this machine has a GPU of NVIDIA
	@if [ -e /dev/nvidiactl ]; then \
	  PYTHONPATH=$(root)/build/gpu-tools/site $(root)/build/gpu-tools/python3.12 $(gpu_check) --json $(root)/build/gpu-check.json; \
	else \
	  echo "sagecomm: gpu-check: this machine has no GPU of NVIDIA. Take build/gpu-check to one, and run" \
	    "python build/gpu-check/tests/python/gpu_check.py there"; \
	fi

# ---- style ----

# Two targets, so that `make -j2` checks what needs Go's compiler beside the rest.
.PHONY: lint lint-go lint-others fmt docs
lint: lint-go lint-others ## check format and style of all languages

lint-go: compilers $(venv)/.ready
	@cd $(root) && unformatted=$$(tools/gofmt -l $(wildcard $(go_dirs) $(root)/tests)); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; fi
	cd $(root) && $(go) vet ./...
	cd $(root) && $(go) run $(staticcheck) ./...
	$(root)/tools/licenses --check

lint-others: $(venv)/.ready
	$(if $(c_sources),$(venv)/bin/clang-format --dry-run -Werror $(c_sources))
	cd $(root) && $(venv)/bin/ruff check $(wildcard $(python_sources))
	cd $(root) && $(venv)/bin/ruff format --check $(wildcard $(python_sources))
	cd $(root) && $(venv)/bin/mypy
	$(py) $(root)/tools/ptx --check

fmt: $(venv)/.ready ## format all sources
	cd $(root) && tools/gofmt -w $(wildcard $(go_dirs) $(root)/tests)
	$(if $(c_sources),$(venv)/bin/clang-format -i $(c_sources))
	cd $(root) && $(venv)/bin/ruff check --fix $(wildcard $(python_sources))
	cd $(root) && $(venv)/bin/ruff format $(wildcard $(python_sources))

docs: $(venv)/.ready ## write the pages that are generated
	cd $(root) && $(go) generate ./internal/env
	$(root)/tools/python-api
	$(root)/tools/licenses

.PHONY: clean
clean: ## remove everything that was built or installed here
	rm -rf $(venv) $(root)/.toolchain $(root)/build $(root)/dist $(root)/torch_ext/build $(root)/torch_ext/*.egg-info \
	  $(root)/tests/emulator/build $(root)/torch_ext/sagecomm/lib $(root)/torch_ext/sagecomm/_C.*.so $(root)/torch_ext/sagecomm/_build_info.py \
	  $(root)/.mypy_cache $(root)/.pytest_cache $(root)/.ruff_cache $(root)/.coverage*
