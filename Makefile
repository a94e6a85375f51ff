# `make app` and `make test` set up everything they need, from nothing but Python 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
PORT ?= 7860

.PHONY: app test lint tools screenshots clean

app: .venv/.app
	$(BIN)/python app.py --port $(PORT)

# Two workers of one thread each: most tests use one core only.
test: .venv/.test tools lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy rmdm train export app.py

# A stamp for each set of packages: pip runs again only when the pins change.
.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

.venv/.app: requirements.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

.venv/.test: requirements-dev.txt requirements.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@ .venv/.app

# A compiler, Node and Chromium make more tests run. Without them the tests are skipped, and the summary says which.
tools:
	@missing=""; \
	command -v g++ >/dev/null || missing="$$missing g++"; \
	command -v node >/dev/null || missing="$$missing nodejs npm"; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null \
			|| echo "could not install$$missing: the tests that need them are skipped"; \
	else echo "not found:$$missing: the tests that need them are skipped"; fi

# Every tab of the app in Chromium, light and dark, into assets/results/screenshots.
screenshots: .venv/.test tools
	$(BIN)/python -m tests.screenshots

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
