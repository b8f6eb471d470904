"""Clients of different speed in the simulator."""

from itertools import islice

import numpy as np
import pytest
import torch

from fedwarden.core.errors import ConfigError
from fedwarden.core.reported import STALENESS
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario
from fedwarden.store import checkpoint


def table(asynchronous, rounds=12, clients=8, **more):
    return {
        "rounds": rounds,
        "data": {"clients": clients, "limit": 60 * clients},
        "model": {"name": "mlp", "hidden": [16]},
        "train": {"workers": 1},
        "asynchronous": asynchronous,
        **more,
    }


def federation(*arguments, **more):
    return Federation(load_scenario(table(*arguments, **more)))


def test_a_buffer_of_all_clients_is_the_round_of_a_synchronous_run():
    alike, rounds = federation({"buffer": 8}, 4), federation(None, 4)
    records, expected = list(alike.play()), list(rounds.play())
    assert torch.equal(alike.params, rounds.params)
    for a, b in zip(records, expected, strict=True):
        assert a.client_ids == b.client_ids
        assert set(a.reported.pop(STALENESS).values()) == {0.0}
        assert a.metrics == b.metrics


def test_fast_clients_answer_more_often_and_slow_ones_are_stale():
    speeds = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1]
    records = list(federation({"buffer": 2, "speeds": speeds}, 60).play())
    replies = {c: sum(c in r.client_ids for r in records) for c in map(str, range(8))}
    assert [len(r.client_ids) for r in records] == [8, *[2] * 59]  # the first waits for half a window, or for all
    assert replies["7"] < min(n for c, n in replies.items() if c != "7") / 5
    # seven clients fold 3.5 buffers while one of them works, so some 35 while the slow one does
    ages = [r.reported[STALENESS]["7"] for r in records if "7" in r.client_ids]
    assert ages[0] == 0
    assert 20 < ages[1] < 50


def test_each_client_trains_from_the_model_that_it_was_sent():
    """By hand: the last round of a run without a guard, from the model of the version that each reply began from."""
    run = federation({"buffer": 3, "speeds": 10.0, "rate": 1.0}, 9, guard={"preset": "none"})
    models, records = [run.params], []
    for record in run.play():
        records.append(record)
        models.append(run.params)
    ages = records[-1].reported[STALENESS]
    assert len(set(ages.values())) > 1
    steps, counts = [], []
    for client, age in ages.items():
        version = 8 - int(age)
        out = torch.empty(1, len(run.params))
        run.engine.train(models[version], version + 1, [client], out)
        steps.append((out[0] - models[version]) / np.sqrt(1 + age))
        counts.append(len(run.world.rows[client]))
    expected = models[8] + sum(n * s for n, s in zip(counts, steps, strict=True)) / sum(counts)
    assert torch.allclose(models[9], expected, atol=1e-5)


def test_a_resumed_run_is_the_same_as_one_that_was_not_interrupted(tmp_path):
    plan = ({"buffer": 2, "speeds": 10.0}, 14)
    attack = {"attacks": [{"name": "sign_flip", "count": 2}]}
    whole = federation(*plan, **attack)
    expected = list(whole.play())
    first = federation(*plan, **attack)
    began = list(islice(first.play(), 6))
    checkpoint.save(tmp_path / "state", first.state_dict())
    second = federation(*plan, **attack)
    second.load_state_dict(checkpoint.load(tmp_path / "state"))
    records = [*began, *second.play()]
    assert [(r.client_ids, r.metrics, r.reported) for r in records] == [
        (r.client_ids, r.metrics, r.reported) for r in expected
    ]
    assert torch.equal(second.params, whole.params)


def test_clients_that_are_no_longer_asked_leave_the_buffers_to_the_rest():
    guard = {"watches": [{"signal": "update_norm", "rule": {"name": "offset", "limit": 2.0}, "start_round": 1}]}
    run = federation(
        {"buffer": 2, "speeds": 10.0},
        20,
        attacks=[{"name": "scaling", "count": 1}],
        guard={**guard, "policy": "quarantine"},
    )
    records = list(run.play())
    out = next(i for i, r in enumerate(records) if "0" in r.excluded)
    assert all("0" not in r.client_ids for r in records[out + 1 :])


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"buffer": 0}, "buffer"),
        ({"bufer": 2}, "buffer"),
        ({"speeds": 0.5}, "speeds"),
        ({"speeds": [1.0, 2.0]}, "2 for 8 clients"),
    ],
)
def test_wrong_plans_are_refused(plan, message):
    with pytest.raises(ConfigError, match=message):
        federation(plan)


@pytest.mark.slow
def test_attackers_are_left_out_and_slow_clients_are_not():
    """Digits, replies one by one: the bars of the how-to page for one seed."""
    run = Federation(
        load_scenario(
            table({"buffer": 1, "speeds": 10.0}, 140, 20)
            | {
                "data": {"clients": 20},
                "train": {"workers": 1, "momentum": 0.9, "epochs": 2, "batch_size": 16},
                "attacks": [{"name": "sign_flip", "count": 4}],
                "guard": {"preset": "auto", "options": {"alike": True}},
            }
        )
    )
    replies, out = dict.fromkeys(run.clients, 0), {}
    for record in run.play():
        for client, weight in zip(record.client_ids, record.weights, strict=True):
            replies[client] += 1
            if weight == 0:
                out.setdefault(client, replies[client])
    assert set(out) <= set("0123")
    assert all(n <= 8 for n in out.values())
    assert {client for client in "0123" if replies[client] >= 8} <= set(out)
