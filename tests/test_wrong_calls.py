"""Calls that come to mind first and are wrong: each is told in one sentence what was expected."""

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.policies import Quarantine

ROWS = np.eye(4)
IDS = tuple("abcd")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fw.Updates.of([{"w": torch.zeros(2)}] * 3), "got a dict: give the list of its values"),
        (lambda: fw.Updates(ROWS), r"Updates.of\(rows\)"),
        (
            lambda: fw.Cohort(1, IDS, ROWS, np.ones(4)),
            r"a cohort needs Updates, as Updates.of\(rows\) makes; got ndarray",
        ),
        (lambda: fw.Warden.preset("none").step(ROWS), "a warden judges a Cohort.*; got ndarray"),
        (lambda: fw.Warden("auto"), r"a preset is made by Warden.preset\('auto'\)"),
        (
            lambda: fw.Warden(fw.Watch("direction")),
            r"watches are a list, as \[Watch\('centroid_distance'\)\]; got Watch",
        ),
        (lambda: fw.Warden(["direction"]), "watches are a list.*; got 'direction'"),
        (lambda: fw.Warden(policy=Quarantine), r"a policy is a name, a table or an object; .* write Quarantine\(\)"),
        (lambda: fw.Warden.preset("auto", policy="obserw"), "there is no policy 'obserw'; did you mean 'observe'"),
        (
            lambda: fw.Warden.preset({"name": "auto"}),
            r"a preset comes first, as in Warden.preset\('auto'\); got {'name'",
        ),
        (lambda: fw.Warden.preset("auto", alhpa=0.1), "no option 'alhpa'; did you mean 'alpha'"),
        (
            lambda: fw.simulate({}, guard=fw.Warden.preset("auto")),
            'guard is the name of a preset or a table as {"preset": "auto", "policy": "observe"}; got Warden',
        ),
        (lambda: fw.aggregate(fw.Updates.of(ROWS), "median"), "the name of an aggregator comes first"),
        (lambda: fw.aggregate({"f": 1}, ROWS), "a name or a table with a 'name'"),
    ],
)
def test_it_is_told_what_was_expected(call, said):
    with pytest.raises((TypeError, ValueError, fw.ConfigError), match=said):
        call()


def test_an_aggregator_is_a_name_or_a_table_as_in_a_scenario():
    table = fw.aggregate({"name": "trimmed_mean", "b": 1}, ROWS)
    assert torch.equal(table.update, fw.aggregate("trimmed_mean", ROWS, b=1).update)
