# make artifact   the six notebooks, the figures, the paper (a chat arm and a blocked arm are trained live)
# make test       every check but the two longest
# make long       those two: the desk base trained anew, a real pretrained model through the same code (10 minutes)
# make figures    figures, tables and paper from stored results, in seconds
# make notebooks  runs the six notebooks in place, for committing them with outputs
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY = .venv/bin/python
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM = false

.PHONY: artifact test long figures notebooks bench clean
artifact: .venv/ready
	$(PY) -m talklib artifact

test: .venv/ready
	$(PY) -m ruff check --quiet .
	$(PY) -m pytest -q -n 2 --dist loadfile

long: .venv/ready
	$(PY) -m bench.real_model --fetch || echo "no real model: its tests skip by name"
	TALKLIB_FULL=1 $(PY) -m pytest -q -rs -n 2 --dist loadfile tests/test_real_model.py tests/test_desk.py

figures: .venv/ready
	$(PY) -m talklib figures

notebooks: .venv/ready
	$(PY) -m talklib artifact --in-place

bench: .venv/ready
	$(PY) -m bench

.venv/ready: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf build
