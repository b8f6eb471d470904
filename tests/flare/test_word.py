"""The operator's word in a job of NVIDIA FLARE: said between its rounds, obeyed from the next one on."""

from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from nvflare.app_common.abstract.fl_model import ParamsType

from fedwarden.nvflare import GuardedAggregator
from fedwarden.store.ledger import Ledger
from fedwarden.store.recorder import Recorder
from fedwarden.store.word import said_in, say

from .sites import BAD, SITES, LocalFedAvg, answer, honest, model, reversing


class Operated(LocalFedAvg):
    """A job beside which an operator speaks once a round has ended."""

    words: ClassVar[dict] = {}

    def save_model(self, model):
        super().save_model(model)
        with Ledger() as ledger:
            for kind, site in self.words.get(self.aggregator.record.round, ()):
                say(ledger, ledger.run().id, kind, site, "alice", "because")


def play(words, rounds, kind=ParamsType.FULL, bad=reversing, **options):
    crowd = {site: bad(site, kind) if site == BAD else honest(site, kind) for site in SITES}
    aggregator = GuardedAggregator(run_name="job", **options)
    controller = Operated(crowd, aggregator, model(), rounds)
    controller.words = words
    controller.run()
    aggregator.close()
    with Ledger() as ledger:
        run = ledger.run().id
        return controller, ledger.records(run), said_in(ledger, run)


def weight(record, site):
    return dict(zip(record.client_ids, record.weights.tolist(), strict=True)).get(site, 0.0)


@pytest.mark.parametrize("kind", [ParamsType.FULL, ParamsType.DIFF])
def test_an_excluded_site_weighs_nothing_until_it_is_readmitted(kind):
    """The controller chooses whom it asks, so an excluded site may answer all the same."""
    words = {2: [("exclude", "site-2")], 4: [("readmit", "site-2")]}
    _, records, said = play(words, 6, kind, honest)
    assert [weight(r, "site-2") > 0 for r in records] == [True, True, False, False, True, True]
    assert ["site-2" in r.excluded for r in records] == [False, False, True, True, False, False]
    assert [(s.round, s.kind) for s in said] == [(3, "exclude"), (5, "readmit")]
    assert [(r.round, n.kind) for r in records for n in r.notes] == [(3, "word_excluded"), (5, "word_readmitted")]


def test_what_an_earlier_run_left_names_the_sites_that_are_there():
    with Ledger() as ledger:
        ledger.start("before", "nvflare", {}, {})
        for site in ("site-2", "elsewhere"):
            say(ledger, 1, "exclude", site, "alice", "")
    _, records, said = play({}, 2, bad=honest, options={"standing": "before"})
    assert [(r.excluded, weight(r, "site-2")) for r in records] == [(("site-2",), 0.0)] * 2
    assert [(s.client, s.round) for s in said] == [("elsewhere", None), ("site-2", 1)]


def test_the_word_holds_in_a_round_in_which_nobody_is_judged():
    """Whole models of a round whose model nobody knows: their median counts, without the site that is excluded."""
    with Ledger() as ledger:
        assert ledger.runs() == []
    aggregator = GuardedAggregator(run_name="job")
    for t in (1, 2):
        for site in SITES:
            shift = 100.0 if site == "site-1" else 0.0
            aggregator.accept_model(answer(site, {k: np.asarray(v + shift, np.float32) for k, v in model().items()}))
        aggregator.aggregate_model()
        aggregator.reset_stats()
        aggregator.service.last = aggregator.sent = None  # it was never told of a model
        if t == 1:
            with Ledger() as ledger:
                say(ledger, 1, "exclude", "site-1", "alice", "")
    assert aggregator.record.excluded == ("site-1",)
    assert weight(aggregator.record, "site-1") == 0
    assert aggregator.service.guard.excluded == ("site-1",)
    aggregator.close()


def test_a_word_that_cannot_be_read_ends_no_job(caplog, monkeypatch):
    hear = Recorder.word

    def word(recorder, t, there):
        if t == 3:
            raise OSError("the disk is away")
        return hear(recorder, t, there)

    monkeypatch.setattr(Recorder, "word", word)
    crowd = {site: honest(site) for site in SITES}
    aggregator = GuardedAggregator(run_name="job")
    controller = Operated(crowd, aggregator, model(), 4)
    controller.words = {1: [("exclude", "site-2")]}
    controller.run()
    aggregator.close()
    with Ledger() as ledger:
        assert ["site-2" in r.excluded for r in ledger.records(1)] == [False, True, True, True]
    assert "the operator's word cannot be read for round 3: the disk is away" in caplog.text
