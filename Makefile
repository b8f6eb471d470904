PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := .venv-peers
APPFL := .venv-appfl
PARALLEL := -n auto --maxprocesses 4

.PHONY: setup demo test slow test-all browser lint docs wheel bench peers appfl clean

setup: $(STAMP)

$(STAMP): pyproject.toml research/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("fedwarden needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables pyhocon  # of nvflare: built from source
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]' -e ./research
	@touch $(STAMP)

demo: setup
	$(BIN)/fedwarden demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest $(PARALLEL) $(or $(TESTS),-m 'not slow' --dist loadfile)

browser:
	@if ! command -v chromedriver >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get install -qq -y chromium chromium-driver >/dev/null 2>&1 \
		|| (apt-get update -qq && apt-get install -qq -y chromium chromium-driver) >/dev/null 2>&1 \
		|| echo "no chromium could be installed; the tests in a browser are skipped"; \
	fi

slow: setup
	$(BIN)/python -m pytest -m slow $(PARALLEL) --dist worksteal

test-all: browser
	$(MAKE) test TESTS='--dist worksteal'

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: setup
	$(BIN)/python tools/try_wheel.py

bench: setup
	$(BIN)/python benchmarks/guard.py
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python benchmarks/dashboard.py
	$(BIN)/python benchmarks/startup.py

peers: $(PEERS)/.installed

$(PEERS)/.installed: benchmarks/peers-requirements.txt constraints.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check -r benchmarks/peers-requirements.txt
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check --no-deps byzfl==0.0.11 pfl==0.6.0 dp-accounting==0.6.0 prv-accountant==0.2.0
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check hatchling editables
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e . -e ./research
	@touch $@

appfl: $(APPFL)/.installed
	$(APPFL)/bin/python -m pytest tests/on_appfl

$(APPFL)/.installed: pyproject.toml constraints.txt
	test -x $(APPFL)/bin/python || $(PYTHON) -m venv $(APPFL)
	$(APPFL)/bin/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(APPFL)/bin/pip install --quiet --disable-pip-version-check hatchling editables
	$(APPFL)/bin/pip install --quiet --disable-pip-version-check --no-build-isolation $$(grep '^torch==' constraints.txt) pytest hypothesis -e '.[appfl]'
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) $(APPFL) .venv-wheel dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
