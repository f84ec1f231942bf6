# Every target sets up what it needs; the second time that costs nothing. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help serve serve-vllm test check unit bench chaos soak vllm-gpu upgrade format rpc lock chart clean
MAKEFLAGS += --no-print-directory

ARGS ?=
ROUNDS ?= 3
SEEDS ?= 2000
PYTHON ?=
export PYTHON

GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
VLLM_VENV := $(if $(GPU),.venv-vllm-gpu,.venv-vllm)
TINY_MODEL := build/tiny-model-0
MODEL ?= $(TINY_MODEL)

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

serve: ## run QLM on this machine with emulated engines (ARGS="..." goes to qlm serve)
	@scripts/setup.sh serve
	@exec .venv/bin/qlm serve $(ARGS)

serve-vllm: ## the same with a real vLLM, on the GPU if there is one (MODEL=... names a model)
	@scripts/setup.sh serve
	@scripts/install_vllm_$(if $(GPU),gpu,cpu).sh
	@[ "$(MODEL)" != "$(TINY_MODEL)" ] || $(VLLM_VENV)/bin/python -m scripts.make_tiny_model $(TINY_MODEL)
	@exec .venv/bin/qlm serve --vllm "$(MODEL)" --vllm-python $(VLLM_VENV)/bin/python \
		$(if $(GPU),--vllm-gpu,--vllm-cpu --vllm-pythonpath scripts/vllm_cpu) $(ARGS)

test: ## everything: checks, unit tests, real RabbitMQ, real Redis, real vLLM (PYTEST_ARGS="...")
	@scripts/test.sh all

check: ## formatting, lint, types, import rules, structure, words
	@scripts/test.sh check

unit: ## the fast tests only
	@scripts/test.sh unit

.PHONY: reference
reference: ## write docs/reference anew from the code
	@scripts/setup.sh dev
	@.venv/bin/python -m scripts.reference

.PHONY: examples
examples: ## record the examples of the HTTP reference anew, from emulated engines
	@scripts/setup.sh dev
	@.venv/bin/python -m scripts.record_examples
	@.venv/bin/python -m scripts.reference

.PHONY: pictures
pictures: ## take the pictures of the live page anew, of a busy emulated cluster
	@scripts/setup.sh dev
	@scripts/install_servers.sh
	@.venv/bin/python -m qlm.planner.warm_up
	@PYTHONPATH=tests .venv/bin/python -m scripts.page_pictures

bench: ## the benchmarks (ARGS="...")
	@scripts/setup.sh dev
	@scripts/install_servers.sh
	@PYTHONPATH=tests .venv/bin/python -m benchmarks $(ARGS)

chaos: ## kill every part in turn, under load, ROUNDS times (ARGS="..."), and account for each request
	@scripts/setup.sh dev
	@scripts/install_servers.sh
	@.venv/bin/python -m qlm.planner.warm_up
	@PYTHONPATH=tests .venv/bin/python -m benchmarks.chaos --rounds $(ROUNDS) $(ARGS)

.PHONY: clients
clients: ## clients that others wrote, at a QLM with emulated engines (ARGS="langchain litellm")
	@scripts/setup.sh dev
	@PYTHONPATH=tests .venv/bin/python -m benchmarks.clients.run $(ARGS)

soak: ## simulate the whole system under faults with SEEDS seeds; property tests with many new examples
	@scripts/setup.sh dev
	@.venv/bin/python -m qlm.planner.warm_up
	@PYTHONPATH=tests .venv/bin/python -m simulation --seeds $(SEEDS) $(ARGS)
	@HYPOTHESIS_PROFILE=soak .venv/bin/python -m pytest -q -n auto --timeout 3600 -m "hypothesis and not servers and not vllm"

vllm-gpu: ## run the tests of QLM's scheduler in a vLLM on this machine's GPU (about 10 GB to install)
	@scripts/setup.sh dev
	@scripts/install_vllm_gpu.sh
	@QLM_TEST_GPU=1 .venv/bin/python -m pytest -q -m vllm tests/contract/test_vllm_scheduler.py

upgrade: ## stop and start every part in turn, under load, as an update does (FROM=WHEEL, ARGS="...")
	@scripts/setup.sh dev
	@scripts/install_servers.sh
	@.venv/bin/python -m qlm.planner.warm_up
	@PYTHONPATH=tests .venv/bin/python -m benchmarks.upgrade $(if $(FROM),--from $(FROM)) $(ARGS)

.PHONY: installs
installs: ## install the tree, the wheel and each extra in empty environments, and use them (WHAT="wheel plots")
	@scripts/setup.sh dev
	@.venv/bin/python -m scripts.installs $(WHAT)

format: ## rewrite the code in the house format
	@scripts/setup.sh dev
	@.venv/bin/ruff format --quiet .
	@.venv/bin/ruff check --quiet --fix --select I .

rpc: ## generate the stubs of the gRPC API from its proto
	@scripts/setup.sh dev
	@scripts/generate_rpc.sh

lock: ## renew requirements/*.lock (UPGRADE=1 for newer versions)
	@scripts/setup.sh dev
	@scripts/lock.sh

chart: ## renew what the Helm chart takes from elsewhere: dashboard, alerts, keys of the configuration
	@scripts/setup.sh dev
	@.venv/bin/python scripts/chart.py

clean: ## delete the environments, caches and what was built
	@rm -rf .venv .venv-vllm .venv-vllm-gpu build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache .coverage htmlcov
	@rm -rf pacer/npm/node_modules pacer/npm/dist benchmarks/clients/*/node_modules
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
