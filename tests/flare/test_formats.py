"""Sites that send int8 with scales."""

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from nvflare.app_common.abstract.fl_model import ParamsType

from .sites import BAD, SITES, answer, model, sent
from .test_aggregator import close, combine, crowd, guarded, rejected

KINDS = [ParamsType.FULL, ParamsType.DIFF]


def quantised(params):
    """As int8, by output row where there are rows, of NumPy and of torch."""
    made = {}
    for name, array in params.items():
        rows = array.reshape(len(array), -1) if array.ndim else array.reshape(1, 1)
        scale = np.asarray(np.abs(rows).max(axis=1) / 127, np.float32)
        made[name] = np.rint(rows / scale[:, None]).astype(np.int8).reshape(array.shape)
        made[f"{name}.scale"] = torch.from_numpy(scale)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_int8_is_that_of_floats(kind):
    answers = [answer(site, quantised(sent(site, model(), kind)), kind) for site in SITES]
    aggregator = guarded()
    made = combine(aggregator, answers)
    want = combine(guarded(), crowd(kind))
    assert rejected(aggregator) == set()
    assert list(made.params) == list(want.params)
    for name, value in want.params.items():
        np.testing.assert_allclose(made.params[name], value, atol=0.02)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, [1.0, 1.0], None])
@pytest.mark.parametrize("kind", KINDS)
def test_one_site_with_a_bad_scale_or_none_is_rejected(scale, kind):
    bad = quantised(sent(BAD, model(), kind))
    if scale is None:
        del bad["fc.weight.scale"]
    else:
        bad["fc.weight.scale"] = np.asarray(scale, np.float32)
    aggregator = guarded()
    made = combine(aggregator, [*crowd(kind, but=[BAD]), answer(BAD, bad, kind)])
    assert rejected(aggregator) == {BAD}
    assert "scale" in str(aggregator.record.rejected[0].reason)
    close(made.params, combine(guarded(), crowd(kind, but=[BAD])).params)
