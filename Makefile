# What is done with this repository. Every target first sets itself up in .venv; make VENV= uses what PYTHON has instead.
PYTHON ?= python3
VENV ?= .venv
PYTEST_FLAGS ?= -n 2 --dist worksteal

RUN := $(if $(VENV),$(VENV)/bin/python,$(PYTHON))
READY := $(if $(VENV),$(VENV)/.ready)
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
# With byte code, also where the environment says otherwise: tests start many interpreters, and take 3 minutes less.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check

# Where make test-lowest has its packages.
LOWEST := .venv/lowest

# Tests of reports open them in it.
BROWSER := /usr/bin/chromedriver

.PHONY: test test-all pytest test-lowest test-versions demo bench lint ruff words mypy format

# mypy takes 18 s of CPU time in a fresh clone, so it runs beside the tests.
test: ruff words
	@$(MAKE) --no-print-directory --jobs=2 mypy pytest MARKED="not slow"

# With the tests that are marked slow, and with more examples where these are drawn.
test-all: ruff words $(BROWSER)
	@$(MAKE) --no-print-directory --jobs=2 mypy pytest

pytest: $(READY)
	$(RUN) -m pytest -m "$(MARKED)" $(PYTEST_FLAGS)

# With the lowest release of each package that a user may have, and without torch: tables, datasets and the commands.
test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest $(PYTEST_FLAGS)

# All releases of PyTorch, or make test-versions VERSIONS="2.11 2.15".
test-versions: $(READY)
	PYTEST_ADDOPTS="$(PYTEST_FLAGS)" $(RUN) tools/test_versions.py $(VERSIONS)

demo: $(READY)
	$(RUN) -u tools/demo.py

bench: $(READY)
	$(RUN) tools/bench_engine.py
	$(RUN) tools/bench_hook.py
	$(RUN) tools/bench_compile.py
	$(RUN) tools/bench_build.py
	$(RUN) tools/bench_commands.py
	$(RUN) tools/bench_startup.py

lint: ruff words mypy

ruff: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

# Words that cost a second reading, in docstrings.
words: $(READY)
	$(RUN) tools/check_words.py

mypy: $(READY)
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

$(LOWEST)/.ready: requirements/lowest.txt requirements/dev.txt
	$(PYTHON) -c 'import sys; sys.exit("make PYTHON=... test-lowest needs Python 3.10 to 3.12" if not (3, 10) <= sys.version_info < (3, 13) else 0)'
	$(PYTHON) -m venv $(LOWEST)
	awk -F '[= ]' 'NR == FNR { named[$$1] } !($$1 in named)' requirements/lowest.txt requirements/dev.txt > $(LOWEST)/others.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: \
		--requirement requirements/lowest.txt --constraint $(LOWEST)/others.txt pytest pytest-xdist hypothesis pyyaml
	touch $@

$(BROWSER):
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		echo "Installing Chromium, to test reports in (once)"; \
		{ apt-get update -qq && apt-get install -qq --yes --no-install-recommends chromium chromium-driver > /dev/null; } \
		|| echo "Chromium could not be installed: tests of reports in a browser are skipped"; \
	else echo "No Chromium: for tests of reports in a browser, install chromium and chromium-driver"; fi
