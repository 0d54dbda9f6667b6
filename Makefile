# `make demo` and `make test` set up a fresh machine. They need only Python >= 3.11 and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
FLOWER := .flower-venv
FLOWER_STAMP := $(FLOWER)/.installed
RELEASE := .release-venv
RELEASE_STAMP := $(RELEASE)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo quick test nightly flower mutants soak lint format docs notebooks gallery release release-check canary guard reproduction experiment bench bench-gpu clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

# Python compiles modules on import, so pip need not. Some container images disable the bytecode
# cache, which adds 5 s to each test process.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile

# Python 3.11's own pip is slower: 35 s instead of 30 s.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Python >= 3.11 is needed, this is {v.major}.{v.minor}: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --upgrade -c constraints.txt pip

$(STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@ $(DEMO_STAMP)

# The demo needs only these extras, which halves the time.
$(DEMO_STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[accounting,plot,report]'
	@touch $@

demo: $(DEMO_STAMP)  ## compare selection policies on digits (half a minute, no download)
	$(BIN)/pause-jax compare

# With worksteal, a worker runs neighbouring tests, which share fixtures and compiled programs. A
# third worker on two cores would compile many of them again. Waiting OpenBLAS threads spin: on a
# busy machine, one test took 26 s of CPU time instead of 8.
# After a crash of a worker, xdist may wait forever.
TEST := -m pytest -n 2 --dist worksteal --max-worker-restart 0
quick test nightly release-check: export OPENBLAS_NUM_THREADS := 1

quick: $(STAMP)  ## run the quick tests (at most two minutes; ARGS=... for pytest)
	$(BIN)/python $(TEST) -m "not slow and not nightly" $(ARGS)

test: $(STAMP)  ## run the tests, without the nightly ones (a quarter of an hour the first time; ARGS=... for pytest)
	$(BIN)/python $(TEST) -m "not nightly" $(ARGS)

nightly: $(STAMP)  ## run the notebooks, guides and experiments at small size, and other long tests (ten minutes)
	$(BIN)/python $(TEST) -m nightly $(ARGS)

# Flower and its data sets need older versions of these five packages.
$(FLOWER_STAMP): pyproject.toml constraints.txt tests/flower/requirements.txt
	$(PYTHON) -m venv $(FLOWER)
	grep -vE '^(fsspec|packaging|protobuf|rich|typer)==' constraints.txt > $(FLOWER)/constraints.txt
	$(FLOWER)/bin/python $(INSTALL) -c $(FLOWER)/constraints.txt -r tests/flower/requirements.txt -e .
	@touch $@

flower: $(FLOWER_STAMP)  ## test on real Flower simulations, in a separate environment (three minutes)
	$(FLOWER)/bin/python -m pytest -n 2 --dist loadfile -o cache_dir=$(FLOWER)/.pytest_cache tests/flower

mutants: $(STAMP)  ## plant faults one at a time, which tests must catch (half an hour; NAME=part of a name in tools/mutants.txt)
	$(BIN)/python -m tools.mutants $(NAME)

soak: $(STAMP)  ## kill sweeps at 50 moments and generate 10,000 configs (half an hour; MOMENTS=, SOAK=)
	$(BIN)/python -m tools.soak $(MOMENTS)
	SOAK=$(or $(SOAK),10000) $(BIN)/python -m pytest -q tests/config/test_generated_configs.py

lint: $(STAMP)  ## check style, format, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy

format: $(STAMP)  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The demo's report is an example on the site. `make clean` removes it.
build/demo/report.html: | $(STAMP)
	rm -rf build/demo
	$(BIN)/pause-jax compare --out build --name demo > /dev/null

docs: $(STAMP) build/demo/report.html  ## build the site in build/site, with warnings as errors (a minute)
	rm -rf build/site
	$(BIN)/python -m sphinx -c docs -b html -W --keep-going -q -d build/doctrees . build/site
	cp build/demo/report.html build/site/example_report.html

notebooks: $(STAMP)  ## execute the notebooks and store their outputs (five CPU minutes; NAME=a notebook)
	$(BIN)/python -m tools.notebooks $(NAME)

gallery: $(STAMP)  ## recompute the curves of the policy gallery (ten minutes)
	$(BIN)/python -m tools.policy_gallery

$(RELEASE_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python $(INSTALL) -c constraints.txt build packaging twine
	@touch $@

release: $(RELEASE_STAMP)  ## build wheel and sdist in dist/, and test each in an empty environment
	rm -rf dist
	$(RELEASE)/bin/python -m build
	$(RELEASE)/bin/python -m twine check --strict dist/*
	$(RELEASE)/bin/python -m tools.release smoke dist/*

release-check: release $(STAMP)  ## run all tests with users' compiler options, and write docs/compatibility.md for every installed Python
	XLA_FLAGS= $(BIN)/python $(TEST)
	$(RELEASE)/bin/python -m tools.release check dist/*.whl
	$(RELEASE)/bin/python -m tools.release notebooks dist/*.whl

canary: $(STAMP)  ## test the newest packages on each installed Python (twenty minutes)
	$(BIN)/python -m tools.canary

guard: $(STAMP)  ## compare programs, kernels and times of small workloads with stored ones (WRITE=1 stores them)
	$(BIN)/python -m tools.guard $(if $(WRITE),--write)

reproduction: $(STAMP)  ## rewrite docs/reproduction.md from the experiments' verdicts
	$(BIN)/python -m tools.reproduction

experiment: $(STAMP)  ## run one experiment (NAME=folder in experiments; MNIST and CIFAR-10 also need DATA_DIR=folder)
	@test -f "experiments/$(NAME)/run.py" || { ls experiments/*/run.py | cut -d/ -f2; echo "which one? make experiment NAME=..."; exit 2; }
	$(BIN)/python -m experiments.$(NAME).run $(if $(DATA_DIR),--data-dir $(DATA_DIR))

bench: $(STAMP)  ## compare speed with other simulators in docs/benchmarks.md (up to an hour; DATA_DIR=folder adds MNIST)
	JAX_ENABLE_COMPILATION_CACHE=false $(BIN)/python -m benchmarks peers $(if $(DATA_DIR),--data-dir $(DATA_DIR))

bench-gpu: $(STAMP)  ## measure an accelerator with the JAX in .venv into build/accelerator, resumable (DATA_DIR=folder adds MNIST, CIFAR-10)
	$(if $(DATA_DIR),$(BIN)/python -m benchmarks data-parts --data-dir $(DATA_DIR) --out build/data-parts)
	$(BIN)/python -m benchmarks accelerator --minutes 120 --out build/accelerator $(if $(DATA_DIR),--data build/data-parts)

clean:  ## remove the environment and caches
	rm -rf $(VENV) $(FLOWER) $(RELEASE) .canary .bench .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist docs/api docs/gallery docs/command_line *.egg-info
