"""A run is continued by its own experiment only, and in spite of bad replies."""

import logging
from functools import partial

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp import strategy as flower

import fedwarden as fw
from fedwarden.flower import Guarded
from fedwarden.store.ledger import Ledger
from flower.conftest import quiet  # noqa: F401
from flower.nodes import BAD, NODES, FragileGrid, Killed, LocalGrid, content, crowd_with, honest, model, state, trained

from .replies import CRAFTED, HOSTILE, evaluating, raw

Dying = partial(FragileGrid, dies_in=3)


def start(home, strategy=flower.FedAvg, rounds=4, grid=LocalGrid, arrays=None, warden="auto", resume=True, **options):
    guarded = Guarded(strategy(), warden, name="mine", home=home, resume=resume, **options)
    guarded.start(grid({node: honest(node) for node in NODES}), arrays or model(), rounds)
    return guarded


def wider():
    return ArrayRecord({**model(), "more": Array(np.zeros(2, np.float32))})


def other_dtype():
    return ArrayRecord({k: Array(v.astype(np.float64)) for k, v in state(model()).items()})


def strict():
    return fw.Warden(fw.Warden.preset("auto").watches, "quarantine", admission=fw.Admission(count_ratio=2.0))


OTHERS = {
    "the strategy": ({"strategy": flower.FedAdam}, "strategy"),
    "the preset": ({"warden": "pid-made"}, "watches"),
    "an option of the preset": ({"warden": lambda: fw.Warden.preset("pid_made", k=3.0)}, "watches"),
    "trusted nodes": ({"warden": lambda: fw.Warden.preset("auto", trusted=["103"])}, "policy"),
    "the policy": ({"warden": lambda: fw.Warden(fw.Warden.preset("auto").watches, "observe")}, "policy"),
    "the admission": ({"warden": strict}, "admission"),
    "who combines": ({"aggregator": "median"}, "aggregator"),
    "the buffers": ({"buffers": ("bias",)}, "model"),
    "the names of arrays": ({"arrays": wider}, "model"),
    "the dtypes": ({"arrays": other_dtype}, "model"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_experiments_run_is_not_continued(kind, tmp_path, caplog):
    change, part = OTHERS[kind]
    change = {k: v() if k in ("warden", "arrays") and callable(v) else v for k, v in change.items()}
    with pytest.raises(Killed):
        start(tmp_path, grid=Dying)
    caplog.set_level(logging.WARNING, "flwr")
    other = start(tmp_path, **change)
    (line,) = [r.getMessage() for r in caplog.records if "not continued" in r.getMessage()]
    assert line.startswith("fedwarden: run 1 (mine) is not continued, since it differs in ")
    assert part in line
    assert "run 2 starts at round 1" in line
    assert other.done == 0
    with Ledger(tmp_path) as ledger:
        assert [(r.id, r.state, r.rounds) for r in ledger.runs()] == [(2, "done", 4), (1, "failed", 2)]
    assert start(tmp_path, rounds=6).done == 2  # and the first experiment can still be continued, for more rounds
    with Ledger(tmp_path) as ledger:
        assert [(r.id, r.state, r.rounds) for r in ledger.runs()] == [(2, "done", 4), (1, "done", 6)]


def test_a_reply_that_would_end_a_run_ends_neither_it_nor_its_resume(tmp_path):
    """The bad node sends a crafted header, or a lie, in every round and every evaluation, before the cut and after."""
    crafted = list(CRAFTED.values())

    def worst(message):
        t = int(message.content["config"]["server-round"])
        if message.metadata.message_type == "evaluate":
            return evaluating({"acc": 1e300, HOSTILE: 1.0} if t % 2 else {"acc": float("nan")})(message)
        return [Message(content({**trained(message, BAD), "fc.bias": raw(crafted[4 * t])}), reply_to=message)]

    with pytest.raises(Killed):
        Guarded(flower.FedAvgM(server_momentum=0.9), home=tmp_path).start(Dying(crowd_with(worst)), model(), 6)
    again = Guarded(flower.FedAvgM(server_momentum=0.9), home=tmp_path, resume=True)
    result = again.start(LocalGrid(crowd_with(worst)), model(), 6)
    assert again.done == 2
    assert sorted(result.train_metrics_clientapp) == [3, 4, 5, 6]
    fair = Guarded(flower.FedAvgM(server_momentum=0.9), home=tmp_path / "fair")
    expected = fair.start(LocalGrid({n: honest(n) for n in NODES if n != BAD}), model(), 6)
    for name, value in state(expected.arrays).items():
        np.testing.assert_allclose(state(result.arrays)[name], value, rtol=1e-4, atol=1e-5)
    with Ledger(tmp_path) as ledger:
        records = ledger.records(1)
    assert [[r.client_id for r in record.rejected] for record in records] == [[str(BAD)]] * 6
    assert all(record.metrics["evaluate/acc"] == pytest.approx(0.5) for record in records)


def test_the_same_experiment_is_continued_without_a_word(tmp_path, caplog):
    for warden in ("auto", "pid_made"):
        with pytest.raises(Killed):
            start(tmp_path / warden, grid=Dying, warden=fw.Warden.preset(warden))
        assert start(tmp_path / warden, warden=warden).done == 2
    assert not [r for r in caplog.records if "not continued" in r.getMessage()]


def test_a_run_without_what_tells_experiments_apart_is_not_continued(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.start("mine", "flower", {"strategy": "FedAvg", "rounds": 3}, {})
    assert start(tmp_path).journal.recorder.run == 2
