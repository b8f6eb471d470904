"""What differs in a client in doubt, against numbers worked out by hand."""

import numpy as np
import pytest
import torch

from fedwarden.core.types import Cohort, OutputLayer, first_columns, output_layer
from fedwarden.guard.deviation import deviations
from fedwarden.updates.updates import Updates

SHAPES, NAMES = [(4, 2), (4,), (3, 4), (3,)], ["0.weight", "0.bias", "2.weight", "2.bias"]
USUAL, ODD = np.arange(6) < 5, np.arange(6) == 5


def rows(seed=0):
    """Five clients about zero; the sixth deviates in the third array alone, and raises the bias of class 1 alone."""
    found = np.random.default_rng(seed).normal(0, 0.01, (6, 27))
    found[5, 12:24] += 1.0
    found[:5, 24:] = -0.1
    found[5, 24:] = [-0.1, 0.2, -0.1]
    return found


def cohort(given, layers=None, output=None):
    return Cohort(1, tuple("abcdef"), Updates.of(given), np.ones(6), output=output, layers=layers)


@pytest.mark.parametrize("named", [True, False])
def test_the_layer_and_the_class_by_hand(named):
    found = rows()
    split = [list(np.split(row, [8, 12, 24])) for row in found]
    layers = first_columns(NAMES, SHAPES) if named else None
    told = deviations(cohort(split, layers, output_layer(SHAPES)), ODD, USUAL)
    far = np.square(found - found[:5].mean(axis=0))
    parts = np.array([part.sum(axis=1) for part in np.split(far, [8, 12, 24], axis=1)]).T
    shares = parts / parts.sum(axis=1, keepdims=True)
    assert told.keys() == {"f"}
    assert told["f"]["layer"] == ("2.weight" if named else 3)
    assert (told["f"]["layers"], told["f"]["teaches"]) == (4, (1,))
    assert "unlearns" not in told["f"]
    assert told["f"]["share"] == pytest.approx(shares[5, 2])
    assert told["f"]["usual"] == pytest.approx(np.median(shares[:5, 2]))


def test_of_a_flat_row_no_layer_is_named_and_nothing_is_read_without_a_doubt():
    flat = cohort(torch.tensor(rows()))
    assert deviations(flat, ODD, USUAL) == {"f": {}}
    assert deviations(flat, np.zeros(6, bool), USUAL) == deviations(flat, ODD, ODD) == {}


def test_a_client_that_deviates_as_the_others_do_has_no_layer_of_its_own():
    scaled = rows()
    scaled[5] = 5.0 * scaled[0]
    scaled[:, 24:] = scaled[:, :3]
    cut = Updates.of(scaled, measured=[(0, 8), (8, 12), (12, 24), (24, 27)])
    told = deviations(Cohort(1, tuple("abcdef"), cut, np.ones(6), output=OutputLayer(12, 24, 0, ())), ODD, USUAL)
    assert "teaches" not in told["f"]
    assert told["f"].get("share", 0.0) < 0.7


def test_large_layers_are_sampled():
    found = np.zeros((6, 40_000), np.float32)
    found[:, ::7] = np.arange(6)[:, None]
    found[5, 20_000:] += 9.0
    cut = Updates.of(found, measured=[(0, 20_000), (20_000, 40_000)])
    told = deviations(Cohort(1, tuple("abcdef"), cut, np.ones(6)), ODD, USUAL)["f"]
    assert (told["layer"], told["layers"]) == (2, 2)
    assert told["usual"] == pytest.approx(0.5, abs=0.05)
