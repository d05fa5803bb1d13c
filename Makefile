# Everything here works on a machine that has Python >= 3.11, a C++ compiler and make.
.PHONY: help venv demo check test

PY := .venv/bin/python

help:
	@echo "make demo   chat with the bundled model on two virtual cards and re-split it"
	@echo "make test   lint, types, import contracts and the tests"
	@echo "make check  the same without the tests"
	@echo "make venv   only make .venv; the first time this builds llama.cpp"

venv:
	@sh tools/python tools/setup_venv.py

demo: venv
	@$(PY) -m workbench demo

check: venv
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -c "import importlinter.cli; importlinter.cli.lint_imports_command()"

test: check
	$(PY) -m pytest -n 2 --dist loadfile -m "not alone and not gpu"
	$(PY) -m pytest -m "alone or gpu"
