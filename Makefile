# The chores of this project. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
TOOLKIT := tests/engines/sagemaker/twin/toolkit
EMULATOR := tests/fakeaws/emulator
UV_VERSION := 0.13.8
# A job of these tests must never land in the records of the person who runs them.
TEST_HOME := $(CURDIR)/.cache/test-home
# The number of the cluster that `make cluster-up` makes: several may run side by side.
BED ?= 0
# No test is run again to make it pass: one that fails now and then is a defect of the test or a race of ours.
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist worksteal
# How many tests run at once. Those of `make test` wait more than they compute: four take two thirds of the time of two.
WORKERS := 2
timed = @start=$$SECONDS; trap 'echo "make $@: exit $$?, $$((SECONDS - start)) s"' EXIT;

.PHONY: help
help: ## list the chores
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | sort | awk -F ':.*?## ' '{ \
	  line = sprintf("  make %-19s", $$1); count = split($$2, words, " "); \
	  for (i = 1; i <= count; i++) { \
	    if (length(line) + length(words[i]) >= 79) { print line; line = sprintf("%26s", "") } \
	    line = line " " words[i] } \
	  print line }'
	@echo "What stays outside of this folder: docs/guides/what-stays.md"

.PHONY: setup
setup: $(STAMP) ## make .venv with Windlass, torch and the tools (once; needs Python 3.11+, git, make)
	@:

$(STAMP): requirements.lock pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" UV_VERSION="$(UV_VERSION)" bash tools/setup.sh
	@touch $@

.PHONY: demo
demo: ## train on real handwritten digits, 2 nodes × 2 ranks, on this machine
	$(timed) $(MAKE) --no-print-directory setup; WINDLASS_BIN=$(BIN)/windlass bash tools/demo.sh

.PHONY: test
test: WORKERS := 4
test: ## lint, and the tests a person waits for (at most 5 minutes on 2 cores)
	$(timed) $(MAKE) --no-print-directory setup lint; QUICK=1 $(PYTEST) -m "not slow and not cluster"

.PHONY: server-build
server-build: setup ## build the S3 server of the tests into the cache of this machine (once; 3 minutes, needs Go)
	@$(BIN)/python -m tests.servers

.PHONY: test-slow
test-slow: WORKERS := 3
test-slow: server-build azurite ## the slower tests of this machine (25 minutes); NIGHTLY=1: those too that CI leaves out (hours)
	$(timed) $(PYTEST) -m "slow and not cluster" --durations=15

.PHONY: test-aws
test-aws: aws-env ## Terraform against an emulated account of AWS: every kill, every statement of the policies (an hour)
	$(timed) NIGHTLY=1 $(PYTEST) tests/clusters -m slow --durations=15

.PHONY: cluster-build
cluster-build: setup ## build the programs of that cluster into the cache of this machine (once; 10 minutes)
	@bash tools/apt.sh cluster && $(BIN)/python -m tests.cluster.bed build

.PHONY: cluster-up
cluster-up: cluster-build ## bring up a real Kubernetes cluster of two nodes here (root)
	@$(BIN)/python -m tests.cluster.bed up --index $(BED)

.PHONY: cluster-down
cluster-down: setup ## end that cluster and leave nothing of it
	@$(BIN)/python -m tests.cluster.bed down --index $(BED)

.PHONY: test-cluster
test-cluster: setup ## the tests on a real cluster: one of its own, or yours by KUBECONFIG and WINDLASS_TEST_CONTEXT
	$(timed) [ -n "$${WINDLASS_TEST_CONTEXT:-}" ] || $(MAKE) --no-print-directory cluster-build; \
	  $(PYTEST) tests/cluster -m "cluster and not operators" --durations=15

.PHONY: test-operators
test-operators: setup ## the tests on a cluster with Kubeflow's operators, Kueue, Karpenter, helm and load balancers (an hour)
	$(timed) [ -n "$${WINDLASS_TEST_CONTEXT:-}" ] || { bash tools/apt.sh cluster; $(BIN)/python -m tests.cluster.bed build-operators; }; \
	  NIGHTLY=1 $(PYTEST) tests/cluster -m "cluster and operators" --durations=15

.PHONY: verdicts
verdicts: setup ## run all inputs of tests/verdicts, and count those of which `why` is right (10 minutes; at least 95 %)
	$(timed) $(BIN)/python -m tests.verdicts $(CASES)

.PHONY: nightly
nightly: setup ## all tests: those of CI, and those that it leaves out for their time (root; a night)
	NIGHTLY=1 .ci/run
	$(MAKE) --no-print-directory test-operators chaos-cluster

.PHONY: chaos
chaos: setup ## kill, fill and spoil 300 runs at random moments; `make chaos SEED=n` plays one again
	$(timed) NIGHTLY=1 CHAOS_SEED=$(SEED) $(BIN)/pytest tests/chaos/test_chaos.py -n $(if $(SEED),0 -s,2) --dist worksteal

.PHONY: chaos-cluster
chaos-cluster: setup ## strike 100 runs that a real cluster supervises, three at a time (root, an hour); `make chaos-cluster SEED=n` plays one again
	$(timed) $(MAKE) --no-print-directory cluster-build; \
	  WINDLASS_TEST_BED=$(BED) CHAOS_SEEDS=100 CHAOS_SEED=$(SEED) $(BIN)/pytest tests/cluster/test_chaos_inside.py \
	    -n $(if $(SEED),0 -s,3) --dist worksteal

.PHONY: horovod
horovod: setup ## build Horovod for example 04 into .cache/horovod-env (3 to 9 minutes, once; needs Open MPI)
	@bash tools/horovod.sh

.PHONY: lint
lint: setup ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check -q . && $(BIN)/ruff format -q --check .
	@MYPY_NUM_WORKERS=2 $(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports

.PHONY: format
format: setup ## put the code into the one shape that lint accepts
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format -q .

.PHONY: examples-env
examples-env: setup ## install what examples 05 and 06 import into .cache/examples-env (half a minute, once)
	@bash tools/examples-env.sh

.PHONY: frameworks-env
frameworks-env: setup ## install what examples/frameworks import into .cache/frameworks-env (3 GB beside torch, a minute, once)
	@bash tools/frameworks-env.sh

.PHONY: curves-env
curves-env: setup ## install libraries that write metrics, for tests, into .cache/curves-env (a minute, once)
	@bash tools/curves-env.sh

.PHONY: inference-env
inference-env: setup ## install AWS's sagemaker-inference, for tests, into .cache/inference-env (seconds, once)
	@bash tools/inference-env.sh

.PHONY: trackers-env
trackers-env: setup ## install the experiment trackers of a guide into .cache/trackers-env (a minute, once)
	@bash tools/trackers-env.sh

.PHONY: sagemaker-env
sagemaker-env: setup ## install AWS's toolkit and drivers, for tests, into .cache/sagemaker-env (half a minute, once)
	@bash tools/sagemaker-env.sh

.PHONY: aws-env
aws-env: setup ## install the emulator of AWS and checkov, for tests, into .cache (a minute, once)
	@bash tools/aws-env.sh

.PHONY: azurite
azurite: setup ## install Azurite, for tests, into .cache/azurite (a minute, once)
	@bash tools/azurite.sh

.PHONY: docs
docs: setup ## build the documentation into site/, which needs no network; refuses broken links
	@$(BIN)/python tools/reference.py
	@said=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1) || { echo "$$said"; exit 1; }
	@! grep -rlE '<(script|link|img)[^>]*(src|href)="?https?:' site --include=*.html || { echo "docs: these load from another host"; exit 1; }
	@echo "docs: site/index.html"

.PHONY: pictures
pictures: setup ## draw the pictures of README and docs from real runs (3 minutes, needs Debian's chromium)
	@bash tools/apt.sh browser
	@$(BIN)/python tools/picture.py && $(BIN)/python -m tools.pictures

.PHONY: wheel
wheel: setup ## build the wheel and the source archive into dist/
	@$(BIN)/python tools/wheel.py

.PHONY: test-wheel
test-wheel: setup ## run the wheel in clean environments of Python 3.11, 3.12 and 3.13, those that are here (half a minute)
	$(timed) $(BIN)/python tools/wheel.py --test $(PYTHONS)

.PHONY: size
size: setup ## installed size and package count of the core (at most 12 packages, 30 MB)
	@$(BIN)/python tools/size.py

# Those on a cluster bring up one of their own (root).
BENCH_HELPERS := $(addprefix bench/,common.py fake_pods.py onbed.py spawn.py stage_peers.py stream_ways.py supervised.py)
BENCH_CLUSTER := $(addprefix bench/,scale.py submit.py workloads.py)
BENCH := $(filter-out $(BENCH_HELPERS),$(wildcard bench/*.py))

.PHONY: bench
bench: setup ## every figure that the docs claim, beside its peer's (hours)
	@for file in $(BENCH); do $(BIN)/python $$file || exit 1; done

.PHONY: bench-smoke
bench-smoke: setup ## every benchmark on this machine once, at its smallest sizes and without peers (a minute)
	$(timed) for file in $(filter-out $(BENCH_CLUSTER),$(BENCH)); do $(BIN)/python $$file --smoke || exit 1; done

.PHONY: bench-smoke-cluster
bench-smoke-cluster: setup ## the same of the benchmarks on a cluster, two at once, each on its own (root; 2 minutes)
	$(timed) printf '%s\n' $(BENCH_CLUSTER) | xargs -P 2 -I FILE $(BIN)/python FILE --smoke

.PHONY: lock
lock: setup ## resolve the dependencies anew into requirements.lock
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --upgrade --group dev --extra all pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --upgrade -c requirements.lock examples/requirements.in -o examples/requirements.lock
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --upgrade -c requirements.lock examples/frameworks/requirements.in -o examples/frameworks/requirements.lock
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --upgrade -c requirements.lock -c examples/requirements.lock tests/worker/curves/requirements.in -o tests/worker/curves/requirements.lock
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --upgrade -c requirements.lock tests/docs/trackers/requirements.in -o tests/docs/trackers/requirements.lock
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --upgrade -c requirements.lock $(TOOLKIT)/requirements.in -o $(TOOLKIT)/requirements.lock
	@$(BIN)/uv pip compile -q --no-deps --generate-hashes --no-emit-index-url --no-header \
	  --upgrade $(TOOLKIT)/bare.in -o $(TOOLKIT)/bare.lock
	@for name in requirements checkov; do $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --upgrade $(EMULATOR)/$$name.in -o $(EMULATOR)/$$name.lock; done
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --upgrade tests/servers/azurite/requirements.in -o tests/servers/azurite/requirements.lock

.PHONY: clean
clean: ## remove what the chores made here, .venv too; names what stays outside of this folder
	@bash tools/clean.sh
