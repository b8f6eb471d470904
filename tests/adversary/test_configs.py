"""Recorded configurations with one value changed: they are read, or refused in words."""

import copy
import random
from dataclasses import replace

import pytest

from fedwarden.core.errors import FedwardenError
from fedwarden.sim.recorded import recorded_scenario, truth_of
from fedwarden.sim.whatif import decide_again
from fedwarden.store.ledger import Ledger

from .damage import SEED, fill

ODD = (
    None, -1, 0, 1.5, 2**62, 1e300, float("inf"), float("nan"), 10**30, True, "", "x", "\x1b", "gesd", "a" * 1000, [],
    [1], [[1]], {}, {"name": "gesd"}, {"name": 5},
)  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, played):
    with Ledger(fill(tmp_path_factory.mktemp("sound"), played), read_only=True) as ledger:
        return ledger.run(1), ledger.records(1)


def paths(value, at=()):
    """Every place in a tree of tables and lists."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*at, key)
        yield from paths(value[key], (*at, key))


def changed(config, rng):
    new = copy.deepcopy(config)
    places = list(paths(new))
    guard = [p for p in places if p[0] == "guard"]
    *parents, last = rng.choice(guard if rng.random() < 0.5 else places)
    at = new
    for key in parents:
        at = at[key]
    if isinstance(at, dict) and rng.random() < 0.2:
        at.pop(last)
    else:
        at[last] = rng.choice(ODD)
    return new


def attack(recorded, many):
    run, records = recorded
    refused = 0
    for i in range(many):
        other = replace(run, config=changed(run.config, random.Random(f"{SEED} {i}")))
        for use in (truth_of, recorded_scenario, lambda other: decide_again(other, records)):
            try:
                use(other)
            except FedwardenError:
                refused += 1
            except BaseException:
                print(f"seed {SEED}, case {i}")
                raise
    return refused


@pytest.mark.parametrize("many", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_changed_configuration_is_read_or_refused_in_words(recorded, many):
    assert attack(recorded, many) > many // 10
