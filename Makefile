# Verbs only; CMake builds. Every verb sets up what it needs first, on a bare Debian 12 or Ubuntu 24.04 too.
ARGS ?=
PREFIX ?= /usr/local
BASE ?=
export CMAKE_C_COMPILER_LAUNCHER ?= $(shell command -v ccache)
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(CMAKE_C_COMPILER_LAUNCHER)
# The thread sanitizer of g++ 12 refuses the address randomisation of newer kernels. Some containers do not permit a
# program to turn it off.
FIXED_ADDRESSES = $$(setarch -R true 2>/dev/null && echo setarch -R)

# One line for each step; its output is in build/PRESET/….log.
CONFIGURE = @tools/dev/step 'configure $(1)' build/$(1)/configure.log cmake --preset $(1)
BUILD = @tools/dev/step 'compile $(1)' build/$(1)/compile.log cmake --build --preset $(1) $(if $(2),--target $(2))

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-all test-rdma prove fuzz bench check asan tsan report format install wheel packages dist clean

help:
	@echo 'make demo      train an MLP on MNIST: 1 parameter server, 3 workers (ARGS= more flags of gradrail train)'
	@echo 'make test      all that a change can break, then the tests that skipped and why (ARGS= options of ctest)'
	@echo 'make test-fast tests without other processes, sockets and sleeps'
	@echo 'make test-all  make test, long tests, the RDMA lab, searches, planted faults, packages in a new Debian (root)'
	@echo 'make test-rdma suites over soft-RoCE in virtual machines, no RDMA hardware (ARGS= flags, such as --list)'
	@echo 'make prove     all states of small clusters, then mutations of the protocol that the search must find'
	@echo 'make fuzz      each decoder with libFuzzer, one minute each (ARGS= flags and names of decoders, such as --help)'
	@echo 'make bench     one gradient exchange beside its peers, in one run (ARGS= flags of gradrail bench peers)'
	@echo 'make check     format, documents, locks, clang-tidy on changes since BASE='
	@echo 'make asan      make test under the address and undefined-behaviour sanitizers'
	@echo 'make tsan      make test under the thread sanitizer'
	@echo 'make report    sizes of folders, classes and functions, shares of comments: to read, not to meet'
	@echo 'make format    clang-format on every tracked C++ file'
	@echo 'make install   program, libraries, headers, data under PREFIX=$(PREFIX)'
	@echo 'make wheel     a Python wheel for Linux hosts with glibc 2.36 or newer, in build/wheels'
	@echo 'make packages  Debian packages of this Debian or Ubuntu, in build/packages'
	@echo 'make dist      wheel, Debian packages, source archive and SHA256SUMS of the last commit, in build/dist'
	@echo 'make clean     remove the build folders of the presets'

demo:
	@tools/setup --for demo
	$(call CONFIGURE,release)
	$(call BUILD,release,gradrail)
	build/release/bin/gradrail train --model mlp --ps 1 --workers 3 $(ARGS)

test:
	@tools/setup --for test
	$(call CONFIGURE,release)
	$(call BUILD,release)
	@tools/dev/run_tests release $(ARGS)

test-fast:
	@tools/setup --for demo
	$(call CONFIGURE,release)
	$(call BUILD,release,fast_tests)
	@tools/dev/run_tests --level fast release $(ARGS)

test-all:
	@tools/setup --for test-all
	@tools/dev/test_all $(ARGS)

# Looking at the list needs no build.
test-rdma:
ifeq ($(filter --list --help -h,$(ARGS)),)
	@tools/setup --for test-all
	$(call CONFIGURE,release)
	$(call BUILD,release)
endif
	@tests/rdma/lab.py $(ARGS)

prove:
	@tools/setup --for demo
	$(call CONFIGURE,release)
	$(call BUILD,release,prove)
	build/release/tests/prove full
	tools/dev/prove_mutations build/release

fuzz:
	@tools/setup --for fuzz
	$(call CONFIGURE,fuzz)
	$(call BUILD,fuzz,decoders)
	@tools/dev/fuzz $(ARGS)

asan:
	@tools/setup --for test
	$(call CONFIGURE,asan)
	$(call BUILD,asan)
	@tools/dev/run_tests asan $(ARGS)

tsan:
	@tools/setup --for test
	@$(FIXED_ADDRESSES) tools/dev/step 'configure tsan' build/tsan/configure.log cmake --preset tsan
	@$(FIXED_ADDRESSES) tools/dev/step 'compile tsan' build/tsan/compile.log cmake --build --preset tsan
	@$(FIXED_ADDRESSES) tools/dev/run_tests tsan $(ARGS)

bench:
	@tools/setup --for bench
	$(call CONFIGURE,release)
	$(call BUILD,release)
	build/release/bin/gradrail bench peers $(ARGS)

# clang-tidy reads the generated headers, hence the build.
check:
	@tools/setup --for check
	@tools/dev/check_self_test
	@tools/dev/check style
	$(call CONFIGURE,release)
	$(call BUILD,release)
	@BASE=$(BASE) tools/dev/check tidy build/release

report:
	@tools/setup --for check
	@tools/dev/measure

format:
	@tools/setup --for check
	git ls-files -z '*.cc' '*.h' '*.cu' '*.cuh' | xargs -0 -r clang-format -i

install:
	@tools/setup --for demo
	$(call CONFIGURE,release)
	$(call BUILD,release,gradrail gradrail_shared)
	cmake --install build/release --prefix $(PREFIX) --strip

wheel:
	@tools/setup --for wheel
	tools/dev/build_wheel

packages:
	@tools/setup --for packages
	$(call CONFIGURE,release)
	$(call BUILD,release,gradrail gradrail_shared)
	tools/package/build_packages

dist: packages wheel
	tools/package/build_dist

clean:
	rm -rf build/release build/dev build/asan build/tsan build/fuzz build/bare build/wheel build/wheels build/packages build/dist
