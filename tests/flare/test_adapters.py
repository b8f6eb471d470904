"""Adapters in NVIDIA FLARE: products of any rank are combined, and what cannot be is rejected."""

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedwarden.core.errors import ConfigError
from fedwarden.guard.adapters import CUT, at_rank
from fedwarden.nvflare import GuardedAggregator

from .sites import SITES, answer

D_IN, D_OUT, RANK = 12, 9, 4
A, B = "q.lora_A", "q.lora_B"


def lora(kind=np.asarray):
    rng = np.random.default_rng(0)
    shapes = {A: (RANK, D_IN), B: (D_OUT, RANK)}
    return {name: kind(np.asarray(rng.normal(size=shape), np.float32)) for name, shape in shapes.items()}


def sent(site, rank=RANK):
    rng = np.random.default_rng(int(site.partition("-")[2]))
    start = at_rank(lora(), rank)
    return {k: np.asarray(v + 0.01 * rng.normal(size=v.shape), np.float32) for k, v in start.items()}


def product(params):
    return RANK / len(params[A]) * np.asarray(params[B], float) @ np.asarray(params[A], float)


def guarded(**options):
    aggregator = GuardedAggregator(adapters={"kind": "lora", **options})
    aggregator.sent = lora()
    return aggregator


def test_sites_of_other_ranks_are_summed_exactly():
    aggregator, ranks = guarded(), dict.fromkeys(SITES, RANK) | {SITES[0]: 2, SITES[1]: 8}
    models = {site: sent(site, rank) for site, rank in ranks.items()}
    for site, params in models.items():
        aggregator.accept_model(answer(site, params))
    made = aggregator.aggregate_model()
    starts = {site: product(at_rank(lora(), rank)) for site, rank in ranks.items()}
    steps = [product(models[site]) - starts[site] for site in SITES]
    u, s, v = np.linalg.svd(product(lora()) + sum(steps) / len(steps))
    np.testing.assert_allclose(product(made.params), (u[:, :RANK] * s[:RANK]) @ v[:RANK], atol=1e-5)
    assert 0 < aggregator.record.metrics[CUT] < 0.1
    assert not aggregator.record.rejected


def narrow(params):
    """The factors as int8, with one scale each."""
    found = {name: np.float32(np.abs(a).max() / 127) for name, a in params.items()}
    return {k: np.rint(a / found[k]).astype(np.int8) for k, a in params.items()} | {
        f"{k}.scale": scale for k, scale in found.items()
    }


def test_factors_may_come_as_int8():
    aggregator = guarded()
    for site in SITES:
        aggregator.accept_model(answer(site, narrow(sent(site))))
    made = aggregator.aggregate_model()
    assert aggregator.record.rejected == ()
    want = guarded()
    for site in SITES:
        want.accept_model(answer(site, sent(site)))
    np.testing.assert_allclose(product(made.params), product(want.aggregate_model().params), atol=0.1)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({**lora(), B: lora()[B][:, :2]}, "expected \\(9, 4\\)"),
        ({A: lora()[A]}, "sent no array 'q.lora_B'"),
        ({**lora(), A: np.full((RANK, D_IN), np.nan, np.float32)}, "NaN, Inf"),
        ({**narrow(lora()), f"{A}.scale": np.float32(np.nan)}, "has a scale of nan"),
    ],
)
def test_a_site_whose_factors_do_not_fit_is_rejected(params, says):
    aggregator = guarded()
    for site in SITES[1:]:
        aggregator.accept_model(answer(site, sent(site)))
    aggregator.accept_model(answer(SITES[0], params))
    made = aggregator.aggregate_model()
    (rejection,) = aggregator.record.rejected
    assert rejection.client_id == SITES[0]
    assert np.isfinite(product(made.params)).all()
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(str(rejection.reason))


def test_differences_of_factors_and_an_unknown_model_leave_the_model_as_it_is():
    aggregator = guarded()
    for site in SITES:
        aggregator.accept_model(answer(site, {k: v - lora()[k] for k, v in sent(site).items()}, ParamsType.DIFF))
    aggregator.aggregate_model()
    assert {r.reason.kind for r in aggregator.record.rejected} == {"adapters_difference"}
    blind = GuardedAggregator(adapters="lora")
    for site in SITES:
        blind.accept_model(answer(site, sent(site)))
    assert blind.aggregate_model().params == {}
    assert "does not know which adapters" in str(blind.record.notes[0])


def test_tensors_stay_tensors_and_a_wrong_table_is_refused():
    aggregator = GuardedAggregator(adapters="lora")
    aggregator.sent = lora(torch.from_numpy)
    for site in SITES:
        aggregator.accept_model(answer(site, sent(site)))
    made = aggregator.aggregate_model()
    assert isinstance(made, FLModel)
    assert made.params[A].dtype == torch.float32
    with pytest.raises(ConfigError, match="did you mean 'rank'"):
        guarded(ranks=3)
