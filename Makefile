# Each target first creates or updates the virtual environment .venv with the packages that it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --dist loadfile

.PHONY: help install demo test test-slow check docs bench bench-quick bench-scale bench-uai data clean
help:
	@echo "make install    create the virtual environment .venv with the command .venv/bin/edgewise"
	@echo "make demo       train the paper's four models on Cora; print their scores, draw reliability diagrams in out/demo"
	@echo "make test       run the tests"
	@echo "make test-slow  run the tests that take minutes or need large packages (Ray, netcal, pgmpy, DGL, Playwright)"
	@echo "make check      run ruff, mypy and import-linter"
	@echo "make docs       build the documentation in out/site (start at out/site/index.html)"
	@echo "make bench      measure speed and memory, and update the tables of docs/speed.md; about an hour"
	@echo "make bench-quick  show all ratios on smaller inputs, in a few minutes"
	@echo "make bench-scale  measure tables of a billion rows of edges, drawn in the folder DATA=...; half an hour, 25 GB of disk"
	@echo "make bench-uai  measure the errors of inference on the instances in the folder UAI=..., and update docs/inference-errors.md"
	@echo "make data       rebuild the bundled datasets from their source archive"

# Install the exact version of torch first, so that pip takes a CPU build where PIP_FIND_LINKS or PIP_INDEX_URL offers one.
# The Linux build on PyPI also works, but brings gigabytes of CUDA libraries.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e ".[test]"
	@touch $@

# torchcp requires large packages for its training losses and language models, so it is installed without dependencies,
# and into a folder of its own, because its wheel also contains a package named tests.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps --target $(VENV)/torchcp torchcp==1.2.1
	@touch $@

install: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

# One single-threaded test process per core: threads of two processes that share a core would wait for each other.
test: $(VENV)/.installed-test
	$(PYTEST) -m "not slow"

# Property tests run here again, with more examples.
test-slow: $(VENV)/.installed-dev
	HYPOTHESIS_PROFILE=thorough $(PYTEST) -m "slow or hypothesis" tests

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "out/site/index.html"

# PGMax requires far more packages than it imports, so it is installed without its dependencies.
$(VENV)/.bench: $(VENV)/.installed-dev benchmarks/requirements.txt
	$(PIP) -r benchmarks/requirements.txt
	$(PIP) --no-deps pgmax==0.6.1
	@touch $@

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/metrics.py --page docs/speed.md
	$(BIN)/python benchmarks/inference.py --page docs/speed.md
	$(BIN)/python benchmarks/calibration.py --page docs/speed.md
	$(BIN)/python benchmarks/conformal.py --page docs/speed.md
	$(BIN)/python benchmarks/models.py --page docs/speed.md
	$(BIN)/python benchmarks/kernels.py --page docs/speed.md
	$(BIN)/python benchmarks/limits.py --page docs/speed.md
	$(BIN)/python benchmarks/growth.py --page docs/speed.md
	$(BIN)/python benchmarks/sweep.py --page docs/speed.md
	$(BIN)/python benchmarks/report.py --page docs/speed.md

bench-quick: $(VENV)/.bench
	@for name in metrics inference calibration conformal models kernels growth report scale; do \
		$(BIN)/python benchmarks/$$name.py --quick || exit 1; done

# The tables are kept in the folder, so that another run does not draw them again.
bench-scale: $(VENV)/.bench
	@test -n "$(DATA)" || { echo "Expected a folder for the tables, 25 GB: make bench-scale DATA=folder"; exit 1; }
	$(BIN)/python benchmarks/scale.py --data "$(DATA)" --page docs/speed.md

# The instances are not part of the project: docs/inference-errors.md says where to find them.
bench-uai: $(VENV)/.bench
	@test -n "$(UAI)" || { echo "Expected the folder of the instances: make bench-uai UAI=folder"; exit 1; }
	$(BIN)/python benchmarks/uai.py "$(UAI)" --page docs/inference-errors.md

data: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check unearth
	$(BIN)/python scripts/make_bundled_data.py

clean:
	rm -rf $(VENV) out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
