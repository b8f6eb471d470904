"""The juror's mod: its number is that of a loop over its examples, though a new process answers every message."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.flower import Guarded, GuardedGroups, jury_mod
from fedwarden.store.ledger import Ledger

from .nodes import BASES, NODES, LocalGrid, asking, content, evaluated, model, of_node, state, through, trained

EXAMPLES = np.random.default_rng(0).normal(size=(8, 3))


def losses(arrays, context):
    """The squares of a linear model's outputs."""
    return (EXAMPLES @ arrays["w"].numpy()) ** 2


def ask(t, w, kind="train"):
    return asking(t, {"w": np.asarray(w, np.float32)}, kind)


def answer(message, here, measure=losses):
    return through(jury_mod(measure), message, here, lambda arrays: arrays).content["metrics"]


def share(now, before):
    pairs = [(float((x @ now) ** 2), float((x @ before) ** 2)) for x in EXAMPLES]
    return sum(a > b for a, b in pairs) / len(pairs)


def test_the_number_compares_with_the_model_that_the_node_received_last():
    models, here = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32), of_node()
    assert answer(ask(1, models[0]), here)["worse"] == -1
    assert answer(ask(2, models[1]), here)["worse"] == share(models[1], models[0])
    assert answer(ask(3, models[2]), here)["worse"] == share(models[2], models[1])
    assert "worse" not in answer(ask(3, models[3], kind="evaluate"), here)
    assert answer(ask(5, models[4]), here)["worse"] == share(models[4], models[2])  # it was not asked in round 4


def test_a_server_that_repeats_a_round_gets_the_same_number():
    models, here = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32), of_node()
    told = [answer(ask(t, models[t]), here)["worse"] for t in (1, 2, 2, 2, 3, 3)]
    assert told[1] == told[2] == told[3] == share(models[2], models[1])
    assert told[4] == told[5] == share(models[3], models[2])


def test_losses_that_cannot_be_measured_or_compared_never_disturb_the_training(caplog):
    def broken(arrays, context):
        raise RuntimeError("no data")

    here = of_node()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert answer(ask(1, [1.0, 0, 0]), here, broken)["worse"] == -1
        assert answer(ask(2, [1.0, 0, 0]), here)["worse"] == -1
        assert answer(ask(3, [1.0, 0, 0]), here, lambda *_: [1.0])["worse"] == -1
    assert "no data" in caplog.text
    assert "expected the losses of the same 8 examples as before; got 1" in caplog.text


def reporting(node, number):
    def reply(message):
        if message.metadata.message_type == "evaluate":
            return evaluated(message)
        metrics = {"num-examples": 10, "train_loss": 0.5, "worse": number(message)}
        return [Message(content(trained(message, node), metrics), reply_to=message)]

    return reply


def test_what_jurors_report_in_training_reaches_the_guard(tmp_path):
    """All nodes report, as the strategy wants; only the named ones are heard."""
    first = NODES[0]

    def number(message):
        t = int(message.content["config"]["server-round"])
        return -1.0 if t == 1 else t / 10

    nodes = {node: reporting(node, number if node == first else lambda _: 0.9) for node in NODES}
    guarded = Guarded(flower.FedAvg(), fw.Warden.preset("auto", jurors=[str(first)]), home=tmp_path)
    guarded.start(LocalGrid(nodes), model(), num_rounds=4)
    assert [number for number, _ in guarded.warden.memory.hearings.past] == pytest.approx([0.2, 0.3, 0.4])
    with Ledger(tmp_path) as ledger:
        records = ledger.records(1)
    assert records[-1].reported["train/worse"][str(first)] == pytest.approx(0.4)
    assert [w.name for w in records[-1].watches][-1] == "jury"


class Cut(Exception):
    pass


def cut_in(last):
    """An evaluation that ends the run in a round."""

    def cut(t, arrays):
        if t == last:
            raise Cut
        return MetricRecord({})

    return cut


def test_a_resumed_server_goes_on_with_what_the_jurors_said(tmp_path):
    nodes = {node: reporting(node, lambda m: int(m.content["config"]["server-round"]) / 10) for node in NODES}

    def guarded():
        warden = fw.Warden.preset("auto", jurors=[str(NODES[0])], secret=3)
        return Guarded(flower.FedAvg(), warden, home=tmp_path, name="app", resume=True)

    with pytest.raises(Cut):
        guarded().start(LocalGrid(nodes), model(), num_rounds=4, evaluate_fn=cut_in(2))
    again = guarded()
    again.start(LocalGrid(nodes), model(), num_rounds=4)
    assert [number for number, _ in again.warden.memory.hearings.past] == pytest.approx([0.1, 0.2, 0.3, 0.4])


def differing(node, seen):
    """A node that reports at random, and keeps what it was sent; two of them are in doubt after three rounds."""

    def reply(message):
        if message.metadata.message_type == "evaluate":
            return evaluated(message)
        t = int(message.content["config"]["server-round"])
        got = state(message.content["arrays"])
        seen[t, node] = got
        step = {k: np.random.default_rng([node, 0]).normal(size=v.shape) for k, v in got.items()}
        made = trained(message, node)
        if node in NODES[:2]:
            made = {k: np.asarray(v + 4 * step[k], np.float32) for k, v in got.items()}
        metrics = {"num-examples": 10, "train_loss": 0.5, "worse": float(np.random.default_rng([node, t]).random())}
        return [Message(content(made, metrics), reply_to=message)]

    return reply


@pytest.mark.parametrize("base", ["FedAvg", "FedAdam"])
def test_paired_jurors_are_sent_two_models_and_their_replies_count_as_from_one(tmp_path, base):
    seen, steps = {}, {}

    class Watched(fw.Warden):
        def decide(self, cohort, *more):
            steps[cohort.round] = (cohort, self.apart, self.shift)
            return super().decide(cohort, *more)

    jurors = [str(node) for node in NODES[4:]]
    warden = fw.Warden.preset("auto", jurors=jurors, paired=True, secret=2)
    warden.__class__ = Watched
    guarded = Guarded(BASES[base](), warden, home=tmp_path)
    guarded.start(LocalGrid({node: differing(node, seen) for node in NODES}), model(), num_rounds=12)
    tested = 0
    for t, (cohort, apart, shift) in steps.items():
        sent = {c: np.concatenate([v.reshape(-1) for v in seen[t, int(c)].values()]) for c in cohort.client_ids}
        for c in cohort.client_ids:
            want = cohort.params.numpy() + (shift.numpy() if c in apart else 0.0)
            np.testing.assert_allclose(sent[c], want, atol=1e-6)
            assert c in jurors or c not in apart
        if apart:
            tested += 1
            assert np.abs(shift.numpy()).max() > 0.01
            for i in (i for i, c in enumerate(cohort.client_ids) if int(c) not in NODES[:2]):
                update = cohort.updates.select([i]).weighted_sum(np.ones(1)).numpy()
                assert np.abs(update + 0.1).max() < 0.12  # as trained from the one model
    assert tested > 4


class TwoRecords(flower.FedAvg):
    """Sends its nodes more arrays than the model's."""

    def configure_train(self, server_round, arrays, config, grid):
        for message in super().configure_train(server_round, arrays, config, grid):
            more = ArrayRecord({"c": Array(np.ones(2))})
            message.content = RecordDict({"more": more, **message.content})
            yield message


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_juror_that_returns_the_other_model_unchanged_is_idle(tmp_path, dtype):
    """Also where the strategy sends other arrays too."""
    idle, apart = NODES[-1], []

    def narrow(node):
        def reply(message):
            messages = differing(node, {})(message)
            for record in [m.content.array_records.get("arrays", {}) for m in messages]:
                sent = message.content["arrays"] if node == idle else record
                record.update({k: Array(np.asarray(a.numpy().astype(dtype))) for k, a in sent.items()})
            return messages

        return reply

    class Watched(fw.Warden):
        def decide(self, cohort, rejected, *more):
            apart.append(str(idle) in self.apart)
            assert [(r.client_id, r.reason.kind) for r in rejected] == []
            assert str(idle) in cohort.client_ids
            assert not cohort.updates.select([cohort.client_ids.index(str(idle))]).weighted_sum(np.ones(1)).any()
            return super().decide(cohort, rejected, *more)

    warden = fw.Warden.preset("auto", jurors=[str(node) for node in NODES[4:]], paired=True, secret=2)
    warden.__class__ = Watched
    arrays = ArrayRecord({k: Array(np.asarray(a.numpy().astype(dtype))) for k, a in model().items()})
    Guarded(TwoRecords(), warden, home=tmp_path).start(LocalGrid({n: narrow(n) for n in NODES}), arrays, num_rounds=8)
    assert {*apart} == {True, False}


def test_a_resumed_server_sends_its_jurors_the_same_models(tmp_path):
    def run(home, evaluate_fn, seen):
        warden = fw.Warden.preset("auto", jurors=[str(node) for node in NODES[4:]], paired=True, secret=2)
        guarded = Guarded(flower.FedAvg(), warden, home=home, name="app", resume=True)
        nodes = {node: differing(node, seen) for node in NODES}
        guarded.start(LocalGrid(nodes), model(), num_rounds=12, evaluate_fn=evaluate_fn)

    whole, parts = {}, {}
    run(tmp_path / "a", lambda t, arrays: MetricRecord({}), whole)
    with pytest.raises(Cut):
        run(tmp_path / "b", cut_in(9), parts)
    run(tmp_path / "b", lambda t, arrays: MetricRecord({}), parts)
    assert whole.keys() == parts.keys()
    for key, arrays in whole.items():
        for name, value in arrays.items():
            np.testing.assert_allclose(value, parts[key][name], atol=1e-5)  # nodes answer in any order


@pytest.mark.parametrize("base", [name for name in BASES if name.startswith("DP")])
def test_a_second_model_is_refused_where_noise_hides_single_updates(base):
    jurors = [str(node) for node in NODES[4:]]
    with pytest.raises(ConfigError, match="shows one update without the noise of DifferentialPrivacy"):
        Guarded(BASES[base](), fw.Warden.preset("auto", jurors=jurors, paired=True))
    Guarded(BASES[base](), fw.Warden.preset("auto", jurors=jurors))


@pytest.mark.parametrize("paired", [False, True])
def test_jurors_are_refused_where_groups_hide_their_reports(paired):
    with pytest.raises(ConfigError, match=r"a group hides its members' reports: got 104 and 105; leave guard.jurors"):
        GuardedGroups(flower.FedAvg(), warden=fw.Warden.preset("auto", jurors=["104", "105"], paired=paired))
