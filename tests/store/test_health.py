"""Who answers, who is silent or broken, and what clients tell of themselves, over a run."""

import math

import numpy as np
import pytest
from scipy.stats import sem

from fedwarden.core.notes import Note
from fedwarden.core.reported import MOST, told
from fedwarden.core.types import Rejection, RoundRecord, WatchRecord
from fedwarden.store.health import Contribution, agreement, contribution, contributions, healths
from fedwarden.store.series import Series
from fedwarden.store.story import Story


def record(t, clients, reported=None, rejected=(), harm=None):
    n = len(clients)
    values = np.zeros(n) if harm is None else np.array(harm)
    watches = () if harm is None else (WatchRecord("harm", values, values, 3.0, np.zeros(n, bool)),)
    refused = tuple(Rejection(client, Note.of(kind)) for client, kind in rejected)
    return RoundRecord(
        t, tuple(clients), np.ones(n), np.ones(n) / n, watches, np.zeros(n, bool), rejected=refused,
        reported=reported or {},
    )  # fmt: skip


RUN = [
    record(1, "ab", {"train/loss": {"a": 2.0, "b": 3.0}, "reply/seconds": {"a": 1.0, "b": 9.0}}),
    record(2, "a", {"train/loss": {"a": 1.0}, "reply/seconds": {"a": 2.0}}, [("b", "no_answer")]),
    record(3, "a", {"reply/seconds": {"a": 6.0}, "evaluate/accuracy": {"c": 0.5}}, [("b", "failed")]),
    record(4, "a", {"train/loss": {"a": 0.5}}, [("b", "no_answer"), ("a", "answered_twice")]),
]


def test_who_answered_and_since_when_not():
    found = healths(Series.of(RUN))
    a, b, c = (found[client] for client in "abc")
    assert (a.answered, a.refused, a.asked, a.silent_since) == ((1, 2, 3, 4), (4,), 4, None)
    assert (b.answered, b.silent, b.broken, b.asked, b.last, b.silent_since) == ((1,), (2, 4), (3,), 4, 1, 2)
    assert (a.seconds, b.seconds) == (2.0, 9.0)
    assert str(b) == (
        "answered in 1 of 4 rounds, typically in 9 s; no answer in 2 rounds from 2 to 4; an error in round 3, "
        "and none since round 2"
    )
    assert (c.asked, c.last, dict(c.told)) == (0, None, {"evaluate/accuracy": 0.5})
    assert dict(a.told) == {"train/loss": 0.5}
    assert math.isnan(a.bytes)


def test_one_client_cannot_fill_the_ledger_with_names():
    flood = {f"x{i}": float(i) for i in range(10_000)}
    found = told("train/", [("mallory", flood), ("a", {"loss": 1.0}), ("b", {"loss": 2.0})])
    assert len(found) == MOST
    assert found["train/loss"] == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize("cut", [0, 30, 60])
def test_new_names_in_every_round_do_not_fill_the_memory(cut):
    rounds = [
        record(t, "ab", {"train/loss": {"a": 1.0, "b": 2.0}} | {f"train/x{t}-{i}": {"b": 1.0} for i in range(31)})
        for t in range(1, 61)
    ]
    series = Series.joined([Series.of(rounds[:cut]), Series.of(rounds[cut:])])
    assert len(series.reported) == 64
    assert np.isfinite(series.reported["train/loss"]).all()


def test_another_clients_names_do_not_hide_a_falling_loss():
    rounds = [
        record(t, "ab", {"train/a_loss": {"b": 1.0}, "train/loss": {"a": 3.0 / t}}, harm=[0.3 + 0.001 * t, -0.3])
        for t in range(1, 8)
    ]
    assert Story.of(rounds).at_odds("a").startswith("it reports a falling loss")


@pytest.mark.parametrize(
    ("losses", "harm", "odd"),
    [
        ([3.0, 2.0, 1.5, 1.0, 0.8, 0.5], 0.3, True),
        ([0.5, 0.8, 1.0, 1.5, 2.0, 3.0], 0.3, False),
        ([3.0, 2.0, 1.5, 1.0, 0.8, 0.5], -0.3, False),
        ([3.0, 0.5], 0.3, False),
    ],
)
def test_a_falling_loss_beside_harm_is_at_odds(losses, harm, odd):
    rounds = [
        record(t, "ab", {"train/loss": {"a": loss}}, harm=[harm + 0.001 * t, -harm]) for t, loss in enumerate(losses, 1)
    ]
    story = Story.of(rounds)
    words = story.at_odds("a")
    assert bool(words) is odd
    assert story.at_odds("b") == ""  # which tells nothing
    if odd:
        assert words.startswith("it reports a falling loss (2.5 to 0.65), and harms the model")


def test_without_samples_the_way_of_its_updates_stands_in():
    rounds = [record(t, "ab", {"update/cosine": {"a": 0.5 + 0.01 * t, "b": -0.4 - 0.01 * t}}) for t in range(1, 6)]
    story = Story.of(rounds)
    with_them, against = (story.contribution(client) for client in "ab")
    assert (with_them.kind, with_them.of, with_them.rounds) == ("helps", "cosine", 5)
    assert against.kind == "no help"  # and never harm: a way is no proof of it
    assert str(against).startswith("its updates point away from the others': cosine -0.43 ± 0.007")
    assert story.contribution("nobody") is None
    assert Story.of([record(1, "a")]).contribution("a") is None
    assert agreement(np.array([-1.0, -1.0, -1.0])).kind == "no help"


TEN = np.full(40, 10.0)


@pytest.mark.parametrize(
    ("mean", "kind"), [(-0.02, "helps"), (0.0001, "unclear"), (-0.0001, "unclear"), (0.005, "no help"), (0.05, "harms")]
)
def test_the_mean_over_rounds_with_its_error(mean, kind):
    """Harm of .01 of each of ten clients is where harm begins: a tenth of a loss for all."""
    noise = np.random.default_rng(0).normal(0.0, 0.005, size=40)
    harm = mean + noise - noise.mean()
    found = contribution(harm, TEN)
    assert found.mean == pytest.approx(-mean)
    assert found.error == pytest.approx(sem(harm))
    assert (found.kind, found.rounds) == (kind, 40)


def test_harm_is_that_of_a_client_among_so_many():
    harm = np.tile([0.004, 0.006], 20)
    assert contribution(harm, TEN).kind == "no help"
    assert contribution(harm, 10 * TEN).kind == "harms"


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_few_rounds_tell_nothing(rounds):
    found = contribution(np.array([-1.0] * rounds + [np.nan] * (5 - rounds)), TEN[:5])
    assert (found.kind, found.rounds) == ("unclear", rounds)
    assert math.isnan(found.error)


def test_of_a_run_every_client_that_was_measured():
    rounds = [record(t, "abc", harm=[-0.3 - 0.01 * t, 0.3 + 0.01 * t, np.nan]) for t in range(1, 6)]
    rounds += [record(6, "a", harm=[-0.5])]
    found = contributions(Series.of(rounds))
    assert {c: (x.kind, x.rounds) for c, x in found.items()} == {"a": ("helps", 6), "b": ("harms", 5)}
    assert found["b"].mean == pytest.approx(-0.33)


def test_where_harm_is_not_watched_there_is_nothing_to_tell():
    assert contributions(Series.of([record(1, "a")])) == {}


def test_in_words():
    words = {
        "helps": "helps the model: its updates lower the loss by 0.012 ± 0.003 per round",
        "no help": "does not help the model: its updates raise the loss by 0.012 ± 0.003 per round",
        "harms": "harms the model: its updates raise the loss by 0.012 ± 0.003 per round",
        "unclear": "no measurable contribution",
    }
    for kind, text in words.items():
        assert str(Contribution(kind, 0.0123 if kind == "helps" else -0.0123, 0.00312, 20)) == text
