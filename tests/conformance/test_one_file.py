"""An extension is one file: it is checked by name, and a law that it breaks is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedwarden

MINE = '''
"""A rule, an aggregator and an attack of one's own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import fedwarden as fw
from fedwarden.aggregators import Median


@fw.register("rule", "mine")
@dataclass(frozen=True)
class Mine:
    """Flag scores beyond k quartile distances above the upper quartile."""

    k: float = 3.0

    def __call__(self, scores, test):
        if not len(scores):
            return fw.Verdict(scores > 0, np.inf)
        low, high = np.quantile(scores, [0.25, 0.75])
        threshold = float(high + self.k * (high - low))
        return fw.Verdict(scores > threshold, threshold)


@fw.register("aggregator", "mine", exempt={"translation": "it halves every update", "identical": "it halves them",
                                           "near-agreement": "it halves every update"})
@dataclass(frozen=True)
class HalfTheMedian:
    """Half of the median, per coordinate."""

    def step(self, state, cohort, weights):
        state, result = Median().step(state, cohort, weights)
        return state, fw.Aggregate(result.update / 2)


@fw.register("attack", "mine")
@dataclass(frozen=True)
class Reverse:
    """The own update backwards."""

    knowledge: ClassVar[str] = "own"

    def forge(self, view, rng):
        return -view.own
'''

BROKEN = {
    "rule": ("np.quantile(scores, [0.25, 0.75])", "np.quantile(scores[:3], [0.25, 0.75])", "permutation"),
    "aggregator": ("result.update / 2", "result.update[1:] / 2", "finite-update"),
    "attack": ("return -view.own", "return view.own.mul_(-1)", "updates-change-in-a-copy"),
}


ONE_AND_MORE = ["rule", *(pytest.param(kind, marks=pytest.mark.slow) for kind in BROKEN if kind != "rule")]


@pytest.fixture
def conform(tmp_path):
    """Run the command in a folder that holds the extension, or a changed one."""

    def call(*args, text=MINE):
        (tmp_path / "my_rule.py").write_text(text)
        source = str(Path(fedwarden.__file__).parents[1])
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), source]), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "fedwarden.conformance", *args, "--import", "my_rule"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)

    return call


@pytest.mark.parametrize("kind", ONE_AND_MORE)
def test_one_file_keeps_the_laws(conform, kind):
    done = conform(kind, "mine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{kind} mine\n")
    assert " 0 broken, " in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("kind", ONE_AND_MORE)
def test_a_broken_one_fails_with_the_laws_name(conform, kind):
    sound, wrong, law = BROKEN[kind]
    assert sound in MINE
    done = conform(kind, "mine", "--json", text=MINE.replace(sound, wrong))
    assert done.returncode == 1, done.stdout + done.stderr
    (component,) = json.loads(done.stdout)["components"]
    assert (component["kind"], component["name"]) == (kind, "mine")
    assert law in {finding["law"] for finding in component["laws"] if finding["status"] == "broken"}
