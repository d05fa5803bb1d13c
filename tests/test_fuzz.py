"""The fuzzer's targets on their seeds, on what is near them, and on what the search has found."""

import random
import subprocess
import sys
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.cases import CASES
from tests.fuzz.mutate import mutate
from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS

NEAR = 100
"""So many inputs near each seed set; the search proper is `python -m tests.fuzz`."""


def test_every_target_has_seeds() -> None:
    assert SEEDS.keys() == TARGETS.keys()
    assert CASES.keys() <= TARGETS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds(name: str) -> None:
    for seed in SEEDS[name]():
        TARGETS[name](seed)


@pytest.mark.parametrize(("name", "at"), [(name, at) for name, found in CASES.items() for at in range(len(found))])
def test_what_was_found(name: str, at: int) -> None:
    TARGETS[name](CASES[name][at])


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_near(name: str) -> None:
    seeds = SEEDS[name]()

    @settings(max_examples=NEAR, deadline=None, derandomize=True, database=None)
    @given(st.integers(0, len(seeds) - 1), st.integers(0, 2**32))
    def near(at: int, seed: int) -> None:
        TARGETS[name](mutate(seeds[at], random.Random(seed)))

    near()


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name: str) -> None:
    @settings(max_examples=NEAR, deadline=None, derandomize=True, database=None)
    @given(st.binary(max_size=200))
    def any_bytes(data: bytes) -> None:
        TARGETS[name](data)

    any_bytes()


def test_a_missing_fuzzer_is_named() -> None:
    """Without atheris the command says what to install."""
    hide = "import sys; sys.modules['atheris'] = None; sys.argv = ['fuzz', 'wire']; import runpy; " \
           "runpy.run_module('tests.fuzz', run_name='__main__')"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "pip install" in done.stderr
    assert find_spec("tests.fuzz.__main__") is not None
