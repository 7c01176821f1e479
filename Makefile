# iobench: every target sets up what it needs. `make` alone shows this list.
#
#   make bench PYTHON=python3   uses an environment that is already there and installs nothing
#   make bench BUDGET=30        seconds of measuring
#   make probe-dram ARGS="-a threads=1 --quick"
#   make compare A=reports/x/1 B=reports/x/2

.DEFAULT_GOAL := help
SHELL := /bin/bash
BUDGET ?= 105
ARGS ?=
CONSTRAINTS ?= constraints.txt

# The newest run, unless the user names one: make report RUN=reports/<machine>/<time>
RUN ?= $(shell ls -1dt reports/*/*/records.jsonl 2>/dev/null | head -n 1)

# The extra for the NVIDIA driver that is loaded: 580 and newer run CUDA 13, older ones CUDA 12.
DRIVER := $(shell sed -n 's/^NVRM version:.* \([0-9][0-9]*\)\.[0-9.]* .*/\1/p' /proc/driver/nvidia/version 2>/dev/null)
EXTRA ?= $(if $(DRIVER),$(if $(shell [ "$(DRIVER)" -ge 580 ] && echo new),cuda13,cuda12))
comma := ,

ifdef PYTHON
PY := env PYTHONPATH=$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PYTHON)
READY :=
TESTREADY :=
LINTREADY :=
else
# The first of these that is 3.11 or newer makes the environment.
BASE_PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
PY := .venv/bin/python
READY := .venv/.ready$(EXTRA)
TESTREADY := .venv/.ready-test
LINTREADY := .venv/.ready-lint
endif
IOBENCH := $(PY) -m iobench

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-20s %s\n", $$1, $$2}'

.PHONY: bench
bench: $(READY) ## measure this machine: every probe, fitted models, verdicts, report (BUDGET=105 seconds)
	@$(IOBENCH) run --budget $(BUDGET) $(ARGS)

.PHONY: test
test: $(TESTREADY) ## run the tests; no hardware needed
	$(PY) -m pytest -q $(ARGS)

# A machine for each file of tests, two at a time, where pytest-xdist is there.
SIDE_BY_SIDE = $(shell $(PY) -c 'import xdist' 2>/dev/null && echo --numprocesses 2 --dist loadfile)
.PHONY: lab
lab: $(TESTREADY) ## tests on emulated hardware (NUMA, CXL, NVMe, soft-RoCE) in a virtual machine; Debian, a few minutes
	IOBENCH_LAB=$${IOBENCH_LAB:-1} $(PY) -m pytest -q $(SIDE_BY_SIDE) tests/lab $(ARGS)

.PHONY: lint
lint: $(LINTREADY) ## check style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

.PHONY: list
list: $(READY) ## list the probes
	@$(IOBENCH) list

.PHONY: topology
topology: $(READY) ## show this machine as a graph with limits
	@$(IOBENCH) topology $(ARGS)

PROBES := cxl numa pcie hbm p2p kv gemm dram loaded weights allreduce rdma null
.PHONY: probe-nvlink probe-ib probe-gds
probe-nvlink: $(READY) ## all-reduce over NVLink (NCCL)
	@$(IOBENCH) run allreduce -a transport=nvlink --budget 65 $(ARGS)
probe-ib: $(READY) ## all-reduce over InfiniBand or RoCE (NCCL)
	@$(IOBENCH) run allreduce -a transport=ib $(ARGS)
probe-gds: $(READY) ## weight loading into GPU memory: page cache, O_DIRECT, GPUDirect Storage, other loaders
	@$(IOBENCH) run weights -a target=gpu $(ARGS)

.PHONY: $(PROBES:%=probe-%)
probe-cxl: ## CXL memory: latency, KV block gathers, streams and mixes
probe-numa: ## every NUMA node's memory to and from GPUs; without one, to the CPUs of every node
probe-pcie: ## host to GPU and back over PCIe: bandwidth and latency
probe-hbm: ## GPU memory: bandwidth and latency
probe-p2p: ## GPU to GPU over NVLink or PCIe: bandwidth and latency
probe-kv: ## KV-cache reads of a decode step: contiguous, paged, quantised
probe-gemm: ## matrix products with the shapes of prefill and decode
probe-dram: ## host memory: bandwidth and latency
probe-loaded: ## host memory: latency against the bandwidth achieved meanwhile
probe-weights: ## weight loading into host memory: page cache, mmap, O_DIRECT
probe-allreduce: ## all-reduce over every transport this machine has (NCCL; gloo without GPUs)
probe-rdma: ## RDMA verbs between two processes or two hosts: latency, bandwidth, jitter under load
probe-null: ## the harness itself
$(PROBES:%=probe-%): probe-%: $(READY)
	@$(IOBENCH) run $* $(ARGS)

.PHONY: fit
fit: $(READY) .have-run ## fit the latency models of the newest run, or of RUN=...
	@$(IOBENCH) fit $(RUN)

.PHONY: check
check: $(READY) .have-run ## judge every number of the newest run, or of RUN=...
	@$(IOBENCH) check $(RUN)

.PHONY: claims
claims: $(READY) ## judge published figures by physics: FILE=..., else those that this project started from
	@$(IOBENCH) claims $(if $(FILE),$(FILE),topologies/claims/sits2026.csv)

.PHONY: report
report: $(READY) .have-run ## write the report of the newest run, or of RUN=...
	@$(IOBENCH) report $(RUN)

.PHONY: compare published
compare: $(READY) ## compare runs: A=... B=..., or RUNS="A B C" (folders, logs, published:NAME); ARGS="--at 8K,1M"
	@if [ $(words $(A) $(B) $(RUNS)) -lt 2 ]; then echo "compare needs two runs: make compare A=reports/x/1 B=reports/x/2, or RUNS=\"published:h100-nvlink published:a100-nvlink\"" >&2; exit 2; fi
	@$(IOBENCH) compare $(A) $(B) $(RUNS) $(ARGS)
published: $(READY) ## list the published curves to compare with, and whose numbers they are
	@$(IOBENCH) published

.PHONY: crosscheck-rdma crosscheck-nccl crosscheck-dram crosscheck-loaded crosscheck-gather crosscheck-storage crosscheck-weights crosscheck-memory crosscheck-gpu crosscheck-repeat crosscheck-startup
crosscheck-dram: $(READY) ## memory kernels beside C and likwid-bench or mbw, interleaved
	@$(IOBENCH) crosscheck dram $(ARGS)
crosscheck-loaded: $(READY) ## both ends of the loaded-latency curve beside the memory probe's chase and read, interleaved
	@$(IOBENCH) crosscheck loaded $(ARGS)
crosscheck-gather: $(READY) ## gathers of KV blocks beside C, interleaved; on CXL memory where there is some
	@$(IOBENCH) crosscheck gather $(ARGS)
crosscheck-storage: $(READY) ## O_DIRECT reads beside fio, interleaved
	@$(IOBENCH) crosscheck storage $(ARGS)
crosscheck-weights: $(READY) ## loads of a checkpoint beside fio, safetensors, fastsafetensors and runai-model-streamer, in one table
	@$(IOBENCH) crosscheck weights $(ARGS)
crosscheck-memory: $(READY) ## host memory that an O_DIRECT load of 8 GiB takes (writes and removes 8 GiB here)
	@$(IOBENCH) crosscheck memory $(ARGS)
crosscheck-gpu: $(READY) ## GPU copies and latencies beside nvbandwidth (from PATH or PEER=...), interleaved
	@$(if $(PEER),PEER=$(PEER)) $(IOBENCH) crosscheck gpu $(ARGS)
crosscheck-rdma: $(READY) ## latencies and bandwidth of verbs beside perftest, interleaved
	@$(IOBENCH) crosscheck rdma $(ARGS)
crosscheck-nccl: $(READY) ## all-reduce beside nccl-tests (from PATH or PEER=...), interleaved; TRANSPORT=nvlink|shm|socket, RANKS=2,4,8, ALGO=ring|tree
	@$(foreach name,PEER TRANSPORT RANKS ALGO,$(if $($(name)),$(name)=$($(name)))) $(IOBENCH) crosscheck nccl $(ARGS)
crosscheck-repeat: $(READY) ## two runs in a row: does the second lie in the first's intervals?
	@$(IOBENCH) crosscheck repeat $(ARGS)
crosscheck-startup: $(READY) ## how long --help and list take
	@$(IOBENCH) crosscheck startup $(ARGS)

.PHONY: bench-fit bench-intervals bench-scale
bench-fit: $(READY) ## how well left-out sizes of published curves are predicted: CURVES=FILE.csv
	@if [ -z "$(CURVES)" ]; then echo "bench-fit needs a table of curves: make bench-fit CURVES=FILE.csv" >&2; exit 2; fi
	@$(IOBENCH) bench-fit $(CURVES)
bench-intervals: $(READY) ## do the intervals of fitted models hold the truth: 1,000 synthetic curves (a minute or two)
	@$(IOBENCH) bench-fit $(ARGS)
bench-scale: $(READY) ## how well 8 ranks are predicted from 2 and 4 of published curves: CURVES=FILE.csv
	@if [ -z "$(CURVES)" ]; then echo "bench-scale needs a table of curves: make bench-scale CURVES=FILE.csv" >&2; exit 2; fi
	@$(IOBENCH) bench-scale $(CURVES)

.PHONY: bench-scale-records
bench-scale-records: $(READY) ## a million points judged, fitted, reported; 10,000 runs checked for outliers: 60 s, 4 GiB?
	@$(IOBENCH) crosscheck records $(ARGS)

.PHONY: bench-import fuzz
bench-import: $(READY) ## how fast a log is read: 100 MB of nccl-tests text in 10 s?
	@$(IOBENCH) crosscheck importing $(ARGS)
fuzz: $(TESTREADY) ## mutate logs for 10 CPU-minutes: no traceback, no hang, no growth (SECONDS=600 SEED=0)
	@$(PY) tests/fuzz/fuzz_importers.py $(or $(SECONDS),600) $(or $(SEED),0)

.PHONY: clean
clean: ## remove the environment and caches; reports stay
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: .have-run
.have-run:
	@if [ -z "$(RUN)" ]; then echo "no run below reports/ yet: make bench" >&2; exit 2; fi

.venv/.ready$(EXTRA): pyproject.toml $(CONSTRAINTS)
	@if [ -z "$(BASE_PYTHON)" ]; then echo "iobench needs Python 3.11 to 3.13: install one, or make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; exit 2; fi
	@echo "setting up .venv $(if $(EXTRA),with the extra $(EXTRA) for driver $(DRIVER)) (once; a few minutes) ..."
	@[ -x .venv/bin/python ] || $(BASE_PYTHON) -m venv .venv
	@.venv/bin/python -m pip install -q --disable-pip-version-check -c $(CONSTRAINTS) -e .$(if $(EXTRA),[$(EXTRA)])
	@touch $@

.venv/.ready-test: .venv/.ready$(EXTRA)
	@.venv/bin/python -m pip install -q --disable-pip-version-check -c $(CONSTRAINTS) -e ".[test$(if $(EXTRA),$(comma)$(EXTRA))]"
	@touch $@

.venv/.ready-lint: .venv/.ready$(EXTRA)
	@.venv/bin/python -m pip install -q --disable-pip-version-check -c $(CONSTRAINTS) -e ".[lint$(if $(EXTRA),$(comma)$(EXTRA))]"
	@touch $@
