"""Steps from a common vector against the formula, on rows that came in one piece and in layers."""

import numpy as np
import pytest
import torch

from fedwarden.updates.formed import Steps
from fedwarden.updates.updates import Updates

A, B = np.array([0.5, -1.0, 0.0]), np.array([-2.0, 0.0, 1.0])


@pytest.fixture(params=["array", "layers", "whole models"])
def rows(request):
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 7))).float()
    if request.param == "array":
        return x, Updates.of(x, measured=[(0, 5)])
    if request.param == "layers":
        return x, Updates.of([[row[:5], row[5:]] for row in x], measured=[(0, 5)])
    base = torch.arange(7.0)
    return x, Updates.of(x + base, base=base, measured=[(0, 5)])


def test_a_row_is_a_multiple_of_itself_and_of_the_common_vector(rows):
    x, updates = rows
    c = torch.linspace(-1, 1, 7)
    want = torch.tensor(A)[:, None].float() * c + torch.tensor(B)[:, None].float() * x
    want[:, 5:] = 0.0  # not measured
    steps = Steps(updates, c, A, B)
    torch.testing.assert_close(torch.stack([torch.cat(steps.sent(i)) for i in range(3)]), want, atol=1e-5, rtol=1e-5)
    whole = torch.cat([block for _, _, block in steps.blocks()], dim=1)
    torch.testing.assert_close(whole, want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat(steps.select([2]).sent(0)), want[2], atol=1e-5, rtol=1e-5)
    assert (steps.array, steps.base, len(steps), steps.d) == (None, None, 3, 7)
