# The only commands a newcomer needs. All run as root on Debian 12 or newer from a clean
# clone: what they need is installed by "make setup", which each of them runs first.

PYTHON_VENV := .venv/bin/python
# Further arguments for pytest, for instance PYTEST_ARGS='tests/unit -k ids'; '-n0' runs all tests
# in one process, one after the other.
PYTEST_ARGS ?=
# Further arguments for the soak, for instance SOAK_ARGS='--seed 7'.
SOAK_ARGS ?=
# For the harnesses; for instance INTEROP_ARGS='--fast langchain'.
INTEROP_ARGS ?= --save

.DEFAULT_GOAL := help
# The parts share .venv and build directories; each is parallel inside where it pays.
.NOTPARALLEL:
.PHONY: help setup test demo bench soak soak-short interop lint dist clean \
	lint-style lint-format lint-types lint-layers lint-native lint-shell

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## Install what is missing, build the native programs; quick when there is nothing to do
	@scripts/setup.sh

test: setup ## Run the native and the Python tests (PYTEST_ARGS='...' for pytest)
	$(MAKE) -C native test
	$(PYTHON_VENV) -m pytest -n2 $(PYTEST_ARGS)

demo: setup ## Run the main job on ten real bugs with scripted policies
	.venv/bin/skerry demo

bench: setup ## Run all benchmarks, write bench/results
	.venv/bin/skerry bench --all

soak: setup ## An hour of churn with faults injected; fails if anything is lost, left or grows
	PYTHONPATH=tests $(PYTHON_VENV) -m soak --seconds 3600 $(SOAK_ARGS)

soak-short: setup ## The same for eleven minutes (SOAK_ARGS='--seed N' repeats a run)
	PYTHONPATH=tests $(PYTHON_VENV) -m soak --seconds 660 $(SOAK_ARGS)

interop: setup ## Run the harnesses of others on Skerry, write README's table (INTEROP_ARGS='--fast inspect')
	PYTHONPATH=.:tests $(PYTHON_VENV) -m interop $(INTEROP_ARGS)

lint: setup ## Check style, types, the direction of imports, the C code and the scripts
	@# All findings at once, not only the first tool's.
	@$(MAKE) --no-print-directory --keep-going \
		lint-style lint-format lint-types lint-layers lint-native lint-shell

lint-style:
	.venv/bin/ruff check

lint-format:
	.venv/bin/ruff format --check

lint-types:
	.venv/bin/mypy

lint-layers:
	.venv/bin/lint-imports

lint-native:
	$(MAKE) -C native lint

lint-shell:
	shellcheck --external-sources scripts/*.sh .ci/run

dist: setup ## Build the wheel, with the native programs in it, into dist/
	@# setuptools would put what it finds of an earlier build into the wheel.
	rm -rf build/lib build/bdist.* dist
	@# An installed Skerry has the example tasks too, for `skerry demo`.
	rm -rf src/skerry/_tasks && cp -R examples/tasks src/skerry/_tasks
	@# Equal commits give equal wheels.
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || date +%s) \
		$(PYTHON_VENV) -m build --wheel --outdir dist
	@for program in skerry-spawn skerry-init skerry-zygote.so; do \
		$(PYTHON_VENV) -m zipfile --list dist/*.whl | grep "skerry/_native/$$program " >/dev/null || \
		{ echo "error: $$program is not in the wheel" >&2; exit 1; }; \
	done
	rm -rf src/skerry/_tasks

clean: ## Remove everything made in the checkout (the cache in /var/cache/skerry stays)
	[ ! -f native/Makefile ] || $(MAKE) -C native clean
	rm -rf .venv build dist src/*.egg-info src/skerry/_native bench/results/raw \
		.mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*
	find src tests bench scripts examples interop -name __pycache__ -prune -exec rm -rf {} +
