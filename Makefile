# What is done with this repository. Every target first sets itself up in .venv; make VENV= uses what PYTHON has instead.
PYTHON ?= python3
VENV ?= .venv
PYTEST_FLAGS ?= -n 2 --dist worksteal

RUN := $(if $(VENV),$(VENV)/bin/python,$(PYTHON))
READY := $(if $(VENV),$(VENV)/.ready)
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check
# One compile at a time in each of pytest's processes, and no trials of the C++ compiler, 12 s in each cold process.
INDUCTOR := OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 TORCHINDUCTOR_VEC_ISA_OK=1

# Tests of reports open them in it.
BROWSER := /usr/bin/chromedriver

.PHONY: test test-versions demo bench lint format

test: lint $(BROWSER)
	$(INDUCTOR) $(RUN) -m pytest $(PYTEST_FLAGS)

# All releases of PyTorch, or make test-versions VERSIONS="2.11 2.15".
test-versions: $(READY)
	$(INDUCTOR) PYTEST_ADDOPTS="$(PYTEST_FLAGS)" $(RUN) tools/test_versions.py $(VERSIONS)

demo: $(READY)
	$(RUN) -u tools/demo.py

bench: $(READY)
	$(RUN) tools/bench_engine.py
	$(RUN) tools/bench_hook.py
	$(RUN) tools/bench_build.py
	$(RUN) tools/bench_commands.py

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(READY)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

$(VENV)/.ready: pyproject.toml requirements/torch.txt requirements/dev.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or later is needed: make PYTHON=..." if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	@echo "Installing torch and the development tools in $(VENV) (once, some minutes)"
	$(PIP) --requirement requirements/torch.txt --constraint requirements/dev.txt
	$(PIP) --requirement requirements/dev.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $@

$(BROWSER):
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		echo "Installing Chromium, to test reports in (once)"; \
		{ apt-get update -qq && apt-get install -qq --yes --no-install-recommends chromium chromium-driver > /dev/null; } \
		|| echo "Chromium could not be installed: tests of reports in a browser are skipped"; \
	else echo "No Chromium: for tests of reports in a browser, install chromium and chromium-driver"; fi
