"""One law for all engines: of the same replies and with the same secret the guard decides the same everywhere.

Rows are decided once, by ``Warden.decide``. Flower's strategies, NVIDIA FLARE's aggregator, column shards and a replay
must come to the same weights and notes; where the server's rule is the mean, the new model is the same as well, and
each other strategy makes of the guarded replies what it makes of the decided rows without a guard.
"""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.core.types import Word
from fedwarden.guard.decide import Decision
from fedwarden.guard.replay import replay
from fedwarden.store.round import RoundStory

SHAPES = {"fc.weight": (40, 30), "fc.bias": (40,)}
D, QUIET = 1240, 12  # numbers of a model; the first ones hardly move, but for one client
HONEST = [str(i) for i in range(100, 110)]
LONG, LONE, COPIES, LATE = "110", "111", ("112", "113"), ("114", "115")
ROUNDS, JOINS, SECRET = range(1, 13), 7, 1
TOLERANCE = 1e-6


def start():
    return np.random.default_rng(0).normal(size=D).astype(np.float32)


def crowd(t):
    """The clients of a round; two newcomers join late."""
    return [*HONEST, LONG, LONE, *COPIES, *(LATE if t >= JOINS else ())]


def examples(client):
    return 10.0 + int(client) % 3


def sent(client, t):
    """The whole model that a client sends: a common step with noise, and what makes it unlike the others."""
    seed = COPIES[0] if client in COPIES else client
    rng = np.random.default_rng([int(seed), t])
    delta = 0.1 + 0.05 * rng.normal(size=D)
    delta[:QUIET] = 1e-5 * rng.normal(size=QUIET)
    if client == LONG:
        delta *= -8
    if client == LONE:
        delta[:QUIET] = 0.8
    return (start() + delta).astype(np.float32)


def warden():
    return fw.Warden.preset("auto", secret=SECRET)


@dataclass(frozen=True)
class Round:
    """What the warden decided, the rows and counts to combine, and the model that the mean makes of them."""

    decision: Decision
    record: fw.RoundRecord
    model: np.ndarray
    rows: dict[str, np.ndarray]
    counts: dict[str, float]


def cohort(t):
    base = torch.from_numpy(start())
    ids = crowd(t)
    updates = fw.Updates.of([torch.from_numpy(sent(c, t)) for c in ids], base)
    return fw.Cohort(t, ids, updates, [examples(c) for c in ids], base)


@pytest.fixture(scope="module")
def law():
    guard, found = warden(), []
    for t in ROUNDS:
        decision = guard.decide(cohort(t))
        outcome = guard.combine(decision)
        ids, kept = decision.cohort.client_ids, np.flatnonzero(decision.kept).tolist()
        rows = {ids[i]: np.concatenate([part.numpy() for part in decision.rows.sent(i)]) for i in kept}
        counts = {ids[i]: float(decision.weights[i] * decision.cohort.num_examples[i]) for i in kept}
        found.append(Round(decision, outcome.record, start() + outcome.update.numpy(), rows, counts))
    return found


def weights_of(record):
    return dict(zip(record.client_ids, record.weights.tolist(), strict=True))


def flags_of(record):
    return {c for c, flag in zip(record.client_ids, record.flagged.tolist(), strict=True) if flag}


def notes_of(record):
    return Counter((note.kind, note.clients) for note in record.notes)


def assert_decided(record, expected):
    assert record.round == expected.round
    assert set(record.client_ids) == set(expected.client_ids)
    assert weights_of(record) == pytest.approx(weights_of(expected), abs=TOLERANCE)
    assert flags_of(record) == flags_of(expected)
    assert (record.excluded, record.suspended) == (expected.excluded, expected.suspended)
    assert RoundStory(record).in_doubt == RoundStory(expected).in_doubt
    assert {(kind, frozenset(who)) for kind, who in notes_of(record)} == {
        (kind, frozenset(who)) for kind, who in notes_of(expected)
    }
    for watch, same in zip(record.watches, expected.watches, strict=True):
        scores, others = (dict(zip(r.client_ids, w.scores.tolist(), strict=True))
                          for r, w in ((record, watch), (expected, same)))  # fmt: skip
        assert scores == pytest.approx(others, rel=1e-4, abs=1e-5), watch.name


def test_the_replies_try_all_that_a_guard_does(law):
    """The attacker is on trial and skipped, and shortened; rows are cut; copies share a vote; newcomers share one."""
    turns = [RoundStory(r.record).in_doubt.get(LONG) for r in law]
    assert {"on trial", "skipped"} <= set(turns)
    for r in law:
        ids = r.decision.cohort.client_ids
        assert RoundStory(r.record).in_doubt.get(LONG) != "on trial" or r.decision.factors[ids.index(LONG)] < 1
        assert ("lone_weights", (LONE,)) in notes_of(r.record)
        assert np.abs(r.rows[LONE][:QUIET] - start()[:QUIET]).max() < 0.1  # it sent 0.8
        assert ("copies_share", COPIES) in notes_of(r.record)
        assert not flags_of(r.record) & {*HONEST, *COPIES, *LATE}
    joined = law[JOINS - 1].decision
    assert joined.weights[[joined.cohort.client_ids.index(c) for c in LATE]].tolist() == [0.5, 0.5]


def test_a_trusted_client_is_not_in_doubt_nor_under_its_bound():
    """It is shortened to three median lengths as every client is, and has full weight; it stays flagged."""
    guard = warden()
    for t in ROUNDS:
        decision = guard.decide(cohort(t), word=Word(trusted=frozenset({LONG, LONE})))
        i, j = (decision.cohort.client_ids.index(c) for c in (LONG, LONE))
        lengths = decision.cohort.updates.lengths()
        usual = np.median(np.delete(lengths, i))
        assert decision.factors[i] * lengths[i] == pytest.approx(3 * usual, rel=0.1)
        assert decision.weights[i] == 1
        assert RoundStory(decision.record()).in_doubt.get(LONG) is None
        assert LONG in flags_of(decision.record())
        if not decision.factors[j] < 1:
            np.testing.assert_allclose(torch.cat(decision.rows.sent(j)).numpy(), sent(LONE, t), atol=TOLERANCE)


def arrays_of(model):
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES.values()])
    return {name: part.reshape(SHAPES[name]) for name, part in zip(SHAPES, np.split(model, ends), strict=False)}


def flat(arrays):
    return np.concatenate([np.asarray(arrays[name], np.float64).ravel() for name in SHAPES])


def strategies():
    flower = pytest.importorskip("flwr.serverapp.strategy")
    return {
        "FedAvg": flower.FedAvg,
        "FedProx": lambda: flower.FedProx(proximal_mu=0.1),
        "FedAvgM": lambda: flower.FedAvgM(server_momentum=0.9),
        "FedAdam": flower.FedAdam,
        "FedMedian": flower.FedMedian,
        "FedTrimmedAvg": lambda: flower.FedTrimmedAvg(beta=0.2),
        "Krum": lambda: flower.Krum(num_malicious_nodes=1),
        "MultiKrum": lambda: flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=5),
        "Bulyan": lambda: flower.Bulyan(num_malicious_nodes=1),
    }


STRATEGIES = "FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan"
MEANS = "FedAvg", "FedProx"


def flower_round(strategy, t, replies):
    """One round of a strategy with these models and counts; what it combines."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

    from flower.nodes import LocalGrid

    base = ArrayRecord({name: Array(a) for name, a in arrays_of(start()).items()})
    grid = LocalGrid({int(client): None for client in replies})
    messages = list(strategy.configure_train(t, base, ConfigRecord(), grid))
    made = []
    for k, message in enumerate(sorted(messages, key=lambda m: m.metadata.dst_node_id)):
        message.metadata.__dict__["_message_id"] = f"{t}-{k}"
        model, count = replies[str(message.metadata.dst_node_id)]
        content = RecordDict({
            "arrays": ArrayRecord({name: Array(a.copy()) for name, a in arrays_of(model).items()}),
            "metrics": MetricRecord({"num-examples": count}),
        })  # fmt: skip
        made.append(Message(content, reply_to=message))
    arrays, _ = strategy.aggregate_train(t, made)
    return flat({name: array.numpy() for name, array in arrays.items()})


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_guarded_strategy_combines_what_the_warden_decides(name, law, monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    make = strategies()[name]
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    from fedwarden.flower import Guarded

    guarded, plain = Guarded(make(), warden()), make()
    for t, expected in zip(ROUNDS, law, strict=True):
        made = flower_round(guarded, t, {c: (sent(c, t), examples(c)) for c in crowd(t)})
        assert_decided(guarded.record, expected.record)
        alone = flower_round(plain, t, {c: (expected.rows[c], expected.counts[c]) for c in expected.rows})
        np.testing.assert_allclose(made, alone, rtol=0, atol=TOLERANCE)
        if name in MEANS:
            np.testing.assert_allclose(made, expected.model, rtol=0, atol=TOLERANCE)


def test_flares_aggregator_combines_what_the_warden_decides(law, monkeypatch, tmp_path):
    pytest.importorskip("nvflare")
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

    from fedwarden.nvflare import GuardedAggregator

    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path))
    aggregator = GuardedAggregator(warden(), weigh_by="steps")
    for t, expected in zip(ROUNDS, law, strict=True):
        aggregator.sent = arrays_of(start())
        for client in crowd(t):
            meta = {"client_name": client, "steps": examples(client)}
            params = arrays_of(sent(client, t))
            aggregator.accept_model(FLModel(params_type=ParamsType.FULL, params=params, meta=meta))
        made = aggregator.aggregate_model()
        aggregator.reset_stats()
        assert_decided(aggregator.record, expected.record)
        np.testing.assert_allclose(flat(made.params), expected.model, rtol=0, atol=TOLERANCE)
    aggregator.close()


def test_a_replay_decides_the_same(law):
    replayed = replay([r.record for r in law], warden())
    for found, expected in zip(replayed, law, strict=True):
        decided = expected.decision.judgement.weights
        np.testing.assert_allclose(found.weights, decided, rtol=0, atol=TOLERANCE)
        assert flags_of(found) == flags_of(expected.record)
        assert found.excluded == expected.record.excluded
        told = ("on_trial", "left_out", "lone_weights", "copies_share")
        both = ({note for note in notes_of(r) if note[0] in told} for r in (found, expected.record))
        assert next(both) == next(both)


@pytest.mark.slow
def test_shards_combine_what_the_warden_decides(law, tmp_path):
    ray = pytest.importorskip("ray")
    from fedwarden.shards import Shards

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    np.save(tmp_path / "base.npy", start())
    guard = warden()
    try:
        with Shards(D, 2) as shards:
            for t, expected in zip(ROUNDS, law, strict=True):
                shards.begin(tmp_path / "base.npy")
                for client in crowd(t):
                    shards.take(client, sent(client, t), examples(client))
                outcome = guard.step(*shards.cohort(t))
                assert_decided(outcome.record, expected.record)
                shards.write(outcome.update, Path(tmp_path / "out.npy"), add_base=True)
                np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected.model, rtol=0, atol=TOLERANCE)
    finally:
        ray.shutdown()
