"""No client owns the average of a metric."""

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp import strategy as flower

import fedwarden as fw
from fedwarden.flower import Guarded
from fedwarden.guard.metrics import largest_metric
from flower.conftest import quiet  # noqa: F401
from flower.nodes import BAD, LocalGrid, crowd_with, honest, model, one_round

from .replies import evaluating


@pytest.mark.parametrize("n", [2, 3, 4, 8, 20, 100])
@pytest.mark.parametrize("lie", [1e300, -1e300, 1e9, [1e300]])
def test_one_evaluation_does_not_own_the_average(n, lie):
    rng = np.random.default_rng(n)
    fair = rng.uniform(0.4, 0.9, size=n - 1)
    listed = isinstance(lie, list)
    nodes = {100 + i: evaluating({"acc": [float(v)] if listed else float(v)}) for i, v in enumerate(fair)}
    nodes[99] = evaluating({"acc": lie})
    guarded, grid = Guarded(flower.FedAvg()), LocalGrid(nodes)
    guarded.configure_train(1, model(), ConfigRecord(), grid)
    replies = grid.send_and_receive(guarded.configure_evaluate(1, model(), ConfigRecord(), grid))
    guarded.record = fw.RoundRecord(1, (), np.zeros(0), np.zeros(0))
    found = guarded.aggregate_evaluate(1, replies)["acc"]
    found = found[0] if listed else found
    others = fair.mean() * (n - 1) / n  # the liar adds or takes at most ten times the largest, in its share of 1/n
    assert abs(found - others) <= max(1, 10 * fair.max()) / n + 1e-9
    (note,) = guarded.record.notes
    assert str(note).startswith("evaluation of client 99: its metric 'acc' is ")
    assert "counts as" in str(note)


@pytest.mark.parametrize("n", [2, 3, 5, 10, 100])
def test_honest_metrics_are_never_cut(n):
    """Accuracies of any spread, and losses that differ by less than a factor of ten."""
    rng = np.random.default_rng(n)
    for _ in range(200):
        shares = rng.choice([0.0, 1e-9, 0.01, 0.5, 1.0], size=(n, 1))
        assert np.isinf(largest_metric(shares)).all()
        losses = 10 ** rng.uniform(0, 1) * rng.uniform(1, 9.99, size=(n, 1))
        assert (np.abs(losses) <= largest_metric(losses)).all()
        assert (np.abs(1000 * losses) <= largest_metric(-1000 * losses)).all()


def test_fewer_than_half_of_the_clients_together_do_not_own_the_average():
    values = np.array([[0.5], [0.6], [0.7], [1e300], [1e300]])
    assert largest_metric(values).tolist() == [7.0]


def test_a_metric_of_training_is_bounded_too():
    guarded = Guarded(flower.FedAvg())
    _, metrics = one_round(guarded, crowd_with(honest(BAD, {"train_loss": 1e300})))
    assert metrics["train_loss"] == pytest.approx((7 * 0.5 + 5.0) / 8)  # ten times the others' 0.5
    (note,) = guarded.record.notes
    assert str(note) == f"client {BAD}: its metric 'train_loss' is 1e+300, far from the others', and counts as 5"
    assert note.clients == (str(BAD),)
