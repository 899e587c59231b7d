# `make demo` and `make test` are the two commands. Each makes the environment that it needs.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
JOBS ?= 2
# Histories whose threads hand over to each other leave a core idle at every switch, and so do tests that wait for files.
MORE_JOBS ?= $(shell expr $(JOBS) '*' 3 / 2)
PYTEST := -m pytest -n $(JOBS)
HISTORIES ?= 20000
STORE_HISTORIES ?= 5000
REAL_HISTORIES ?= 300
SPINE_HISTORIES ?= 1000
ARRANGEMENT_HISTORIES ?= 100
VIEW_HISTORIES ?= 60
COPY_HISTORIES ?= 100
SEED ?= 0
FLAVOUR ?= mixed
# Where the environment forbids Python to keep what it compiles, each of the many processes would compile it again.
unexport PYTHONDONTWRITEBYTECODE
# Output of targets that run beside each other, one after the other.
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.PHONY: demo demo-local demos spark test suites check sim sim-beside sim-real crash replay planted soak bench lint unit determinism clean help

help:            ## what there is
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/  /'

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Timespine needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

# Python compiles what a process imports, and keeps it: that is less than pip would compile.
$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]'
	@command -v java > /dev/null || test -n "$$JAVA_HOME" || $(RUN) -m pip install --quiet --disable-pip-version-check -e '.[dev,java]'
	@touch $@ $(VENV)/.runtime $(VENV)/.spark

# Without Java a JRE comes from PyPI.
$(VENV)/.spark: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[spark,cli,views]'
	@command -v java > /dev/null || test -n "$$JAVA_HOME" || $(RUN) -m pip install --quiet --disable-pip-version-check -e '.[spark,cli,views,java]'
	@touch $@ $(VENV)/.runtime

# With STORE=s3://bucket/prefix the pipeline needs the adapters of stores in buckets; nothing else is started.
$(VENV)/.spark-remote: pyproject.toml | $(VENV)/.spark
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[spark,cli,views,s3,postgres]'
	@touch $@

demo: $(VENV)/.spark $(if $(STORE),$(VENV)/.spark-remote)            ## a pipeline on Spark, from a stream of changes to vacuum; STORE=s3://bucket/prefix CONSENSUS=postgresql://host/database
	@$(RUN) -m examples.spark_pipeline.pipeline $(if $(STORE),--store '$(STORE)') $(if $(CONSENSUS),--consensus '$(CONSENSUS)')

demo-local: $(VENV)/.runtime            ## a small history on the embedded store, without Spark
	@$(RUN) -m examples.local_history

# Types are checked on one core, and the demos wait for a JVM now and then: beside each other they fill two cores.
test: $(VENV)/.dev            ## everything that must hold
	@$(MAKE) --no-print-directory -j2 $(SYNC) lint demos
	@$(MAKE) --no-print-directory -j2 suites sim-beside

# Tests wait for files, processes and a JVM now and then. Histories wait for nothing: with the lowest priority they take
# what the tests leave of two cores.
suites:
	@for each in unit determinism planted crash spark; do $(MAKE) --no-print-directory $$each || exit 1; done

sim-beside:
	@for each in sim sim-real; do nice -n 19 $(MAKE) --no-print-directory $$each || exit 1; done

demos: demo-local demo

check: lint            ## the quick version: lint, types, unit tests, 1,920 histories
	$(RUN) $(PYTEST) tests
	$(RUN) -m timespine.testing.simulate --jobs $(JOBS) --plan mixed:500:60 streams:500:60 schemas:200:60 kept:100:60 \
	stores:100:20 spines:200:60 arrangements:50:40 bucket:200:40 views:40:30 copies:30:20

lint: $(VENV)/.dev            ## ruff, mypy --strict, and the words of documents and docstrings
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(RUN) tests/docs/prose.py

unit: $(VENV)/.dev            ## unit and property tests; core and model must be covered to the last branch
	$(RUN) $(PYTEST) --durations=20 tests/core tests/model tests/testing --cov=src/timespine/core --cov=src/timespine/model --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100
	$(RUN) -m pytest -n $(MORE_JOBS) --durations=40 tests --ignore=tests/core --ignore=tests/model --ignore=tests/testing --ignore=tests/spark --ignore=tests/simulation
	$(RUN) -m pytest -n $(MORE_JOBS) tests/simulation
	$(RUN) -m timespine.testing.datadriven tests/scripts/*.txt

$(VENV)/spark-classes.jsa: | $(VENV)/.dev
	$(RUN) tests/spark/class_archive.py $@

spark: $(VENV)/.dev $(VENV)/spark-classes.jsa            ## reads, writes, streams and merges on Spark, and executors that are killed
	$(RUN) -m pytest -n $(MORE_JOBS) --dist loadfile --no-loadscope-reorder --durations=20 tests/spark

DETERMINISM := mixed:25:60 schemas:25:60 streams:25:60 kept:25:60 stores:10:60 arrangements:10:60 spines:25:60 bucket:25:60 views:10:60 copies:10:60

determinism: $(VENV)/.dev            ## 190 seeds replay identically, whatever the hash seed, with and without assertions
	@digest='s/.*flavour": "\([a-z]*\)", "histories": \([0-9]*\).*digest": "\([0-9a-f]*\).*/\2 seeds of \1 under two hash seeds, with and without assertions: \3/'; \
	PYTHONHASHSEED=1 $(RUN) -m timespine.testing.simulate --plan $(DETERMINISM) --jobs $(JOBS) --json > $(VENV)/first.json & first=$$!; \
	PYTHONHASHSEED=2 PYTHONOPTIMIZE=1 $(RUN) -m timespine.testing.simulate --plan $(DETERMINISM) --jobs 1 --json > $(VENV)/second.json || exit 1; \
	wait $$first || exit 1; \
	for each in first second; do sed "$$digest" $(VENV)/$$each.json > $(VENV)/$$each.txt; done; \
	diff $(VENV)/first.txt $(VENV)/second.txt || exit 1; cat $(VENV)/first.txt; \
	test $$(grep -c ' seeds of ' $(VENV)/first.txt) -eq $(words $(DETERMINISM))

planted: $(VENV)/.dev            ## every planted bug is caught by its pinned seed
	$(RUN) -m pytest -n $(MORE_JOBS) tests/simulation/test_planted.py -m slow

sim: $(VENV)/.dev            ## many simulated histories, of the core, of streams, stores, spines, a bucket, views and copies: make sim HISTORIES=20000 SEED=0
	$(RUN) -m timespine.testing.simulate --seed $(SEED) --jobs $(MORE_JOBS) --plan \
	mixed:$$(($(HISTORIES) / 2)):18 streams:$$(($(HISTORIES) / 2)):15 schemas:$$(($(HISTORIES) / 40)):20 kept:$$(($(HISTORIES) / 80)):50 \
	stores:$(STORE_HISTORIES):10 spines:$(SPINE_HISTORIES):60 arrangements:$(ARRANGEMENT_HISTORIES):40 real-spines:50:60 \
	bucket:$(HISTORIES):18 views:$(VIEW_HISTORIES):30 copies:$(COPY_HISTORIES):20

sim-real: $(VENV)/.dev            ## simulated histories with real Parquet bytes, on real files and SQLite
	$(RUN) -m timespine.testing.simulate --seed $(SEED) --jobs $(JOBS) --plan \
	real-mixed:$$(($(REAL_HISTORIES) / 2)):25 real-streams:$$(($(REAL_HISTORIES) / 2)):25

crash: $(VENV)/.dev            ## kill -9 of writers, readers and maintenance, at least fifty times
	$(RUN) -m pytest -n $(MORE_JOBS) --dist loadfile tests/crash -m slow

replay: $(VENV)/.dev            ## one history, step by step: make replay SEED=42 FLAVOUR=streams
	$(RUN) -m timespine.testing.simulate --histories 1 --flavour $(FLAVOUR) --seed $(SEED) --trace

soak: $(VENV)/.dev            ## hours instead of minutes: more histories, and the search for every planted bug
	$(RUN) -m pytest tests/client/commit/test_interrupts.py -m slow
	$(RUN) -m timespine.testing.simulate --histories 100000 --ops 60 --seed 1000000 --jobs $(JOBS)
	$(RUN) -m timespine.testing.simulate --flavour streams --histories 100000 --ops 60 --seed 1000000 --jobs $(JOBS)
	$(RUN) -m timespine.testing.simulate --flavour stores --histories 30000 --ops 40 --seed 1000000 --jobs $(JOBS)
	$(RUN) -m timespine.testing.simulate --flavour spines --histories 50000 --seed 1000000 --jobs $(JOBS)
	$(RUN) -m timespine.testing.simulate --flavour bucket --histories 300000 --ops 80 --seed 1000000 --jobs $(JOBS)
	$(RUN) -m timespine.testing.simulate --flavour views --histories 10000 --ops 40 --seed 1000000 --jobs $(JOBS)
	$(RUN) -m timespine.testing.simulate --flavour copies --histories 20000 --ops 40 --seed 1000000 --jobs $(JOBS)
	$(RUN) -m timespine.testing.simulate --histories 10000 --ops 400 --seed 2000000 --jobs $(JOBS)
	$(RUN) -m timespine.testing.simulate --real --histories 20000 --ops 60 --seed 3000000 --jobs $(JOBS)
	EXAMPLES_TIMES=20 $(RUN) -m pytest tests/core tests/model tests/columnar
	MACHINE_EXAMPLES=2000 $(RUN) -m pytest tests/client/test_machine.py
	EXAMPLES_TIMES=50 $(RUN) -m pytest tests/client/write/change tests/client/catalog/test_create_in_transaction.py tests/cli/test_cli_processes.py tests/views/test_engine.py tests/views/test_every_time.py tests/views/test_delta.py tests/arrangement/test_cursor.py
	$(RUN) tests/simulation/planted.py
	REMOTE_KILLS=20 $(RUN) -m pytest tests/crash/test_remote_kills.py tests/crash/test_stream_kills.py tests/location/bucket/test_bucket_faults.py tests/location/test_stores_under_faults.py
	$(RUN) -m pytest tests/spark -m slow
	for round in 1 2 3 4; do $(RUN) -m pytest tests/spark/test_cluster.py || exit 1; done

$(VENV)/.bench: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[dev,bench]'
	@touch $@ $(VENV)/.dev $(VENV)/.spark $(VENV)/.runtime

bench: $(VENV)/.bench            ## the same work on us and on peers, in one run: make bench WORKS="commit-100 lookup"
	$(RUN) -m bench $(WORKS) --json $(VENV)/bench.json --markdown docs/benchmarks.md

clean:            ## remove the environment
	rm -rf $(VENV)
