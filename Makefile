# make install | demo | test | check | docs | bench | data: each makes the virtual environment first if it is missing or out of date.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: install demo test check docs bench data clean help
help:
	@echo "make install  only make the virtual environment .venv, with the command .venv/bin/edgewise"
	@echo "make demo   train the four models on bundled Cora: a table, and reliability diagrams in out/demo"
	@echo "make test   run the tests"
	@echo "make check  ruff, mypy, import-linter"
	@echo "make docs   build the site in out/site; its first page is out/site/index.html"
	@echo "make bench  speed and memory, side by side with what one would otherwise run: the tables of docs/speed.md"
	@echo "make data   make the bundled datasets again from their source archive"

# torch goes first and by its exact version, so that a CPU build of it is taken where pip is shown one (PIP_FIND_LINKS,
# PIP_INDEX_URL); the build for Linux on PyPI comes with gigabytes of CUDA, and works too.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

install: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

# One thread a worker, of which there is one a core: two that share a core wait for each other.
test: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --dist loadfile

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "out/site/index.html"

# PGMax asks for far more than it imports, so it comes without its dependencies.
$(VENV)/.bench: $(VENV)/.installed benchmarks/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps pgmax==0.6.1
	@touch $@

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/metrics.py --page docs/speed.md
	$(BIN)/python benchmarks/inference.py --page docs/speed.md
	$(BIN)/python benchmarks/models.py --page docs/speed.md
	$(BIN)/python benchmarks/sweep.py --page docs/speed.md

data: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check unearth
	$(BIN)/python scripts/make_bundled_data.py

clean:
	rm -rf $(VENV) out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
