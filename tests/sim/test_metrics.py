"""Metrics against plain computations and hand-made records."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import f1_score as sklearn_f1

import fedwarden as fw
from fedwarden.core.notes import Note
from fedwarden.core.types import WatchRecord
from fedwarden.sim.metrics import (
    Detection,
    detection,
    f1_score,
    first_verdicts,
    round_detection,
    watch_quality,
)
from fedwarden.store.series import Series


def record(t, ids, weights, flagged, excluded=(), rejected=()):
    return fw.RoundRecord(
        t, tuple(ids), np.ones(len(ids)), np.array(weights), flagged=np.array(flagged, bool), excluded=tuple(excluded),
        rejected=tuple(fw.Rejection(c, fw.Note.of("idle")) for c in rejected),
    )  # fmt: skip


def test_detection_is_the_first_round_a_client_was_left_out_by_a_verdict():
    records = [
        record(1, "abcd", [0.25] * 4, [1, 0, 0, 0]),  # a is flagged and kept, as by observe
        record(2, "abcd", [0.0, 0.5, 0.5, 0.0], [1, 0, 0, 0], excluded="a", rejected="d"),  # d is no verdict
        record(3, "bcd", [0.0, 0.5, 0.5], [1, 0, 0], excluded="a"),  # b is left out of this round only
        record(4, "bcd", [0.5, 0.5, 0.0], [0, 0, 0], excluded="a"),  # d is not picked, and not flagged
    ]
    found = detection(records, {"a": range(1, 5), "c": range(1, 5)})
    assert found == Detection(("a", "c"), ("a",), ("b",), {"a": 2, "b": 3}, {"a": 2})
    assert (found.recall, found.precision) == (0.5, 0.5)


def test_who_is_excluded_without_taking_part_counts_too():
    found = detection([record(5, "bc", [0.5, 0.5], [0, 0], excluded=("a",))], {"a": {1}})
    assert found.first_excluded == {"a": 5}
    assert (found.recall, found.precision) == (1.0, 1.0)


def test_f1_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    for _ in range(50):
        truth, found = rng.integers(0, 2, 9), rng.integers(0, 2, 9)
        counts = [int(((found == a) & (truth == b)).sum()) for a, b in ((1, 1), (1, 0), (0, 1))]
        assert f1_score(*counts) == pytest.approx(sklearn_f1(truth, found, zero_division=1.0))
    assert Detection(tuple("abcd"), tuple("ab"), ("x",), {}).f1 == pytest.approx(4 / 7)


def test_a_client_in_doubt_that_is_skipped_is_not_excluded():
    turns = [Note.of(kind, "a", watches=("far",), words="") for kind in ("on_trial", "left_out")]
    records = [
        replace(record(1, "abc", [0.4, 0.3, 0.3], [1, 0, 0]), notes=(turns[0],)),
        replace(record(2, "abc", [0, 0.5, 0.5], [1, 0, 0]), notes=(turns[1],)),
        record(3, "abc", [0.5, 0, 0.5], [0, 1, 0], excluded="b"),
    ]
    found = detection(records, {"a": range(1, 4)})
    assert (found.caught, found.wronged, found.first_excluded) == ((), ("b",), {"b": 3})
    assert Series.of(records).excluded_in == {"b": 3}
    assert first_verdicts(records) == {"a": 1, "b": 3}


def test_left_out_before_it_attacks_is_wronged():
    """a is left out of round 1 and again of round 4, its second as an attacker; b for good, before it begins."""
    records = [
        record(1, "abc", [0, 0.5, 0.5], [1, 0, 0]),
        record(2, "abc", [0.5, 0, 0.5], [0, 1, 0], excluded="b"),
        record(3, "ac", [0.5, 0.5], [0, 0], excluded="b"),
        record(4, "ac", [0, 1.0], [1, 0], excluded="b"),
        record(5, "ac", [0, 1.0], [1, 0], excluded="b"),
    ]
    found = detection(records, {"a": {3, 4, 5}, "b": {3, 5}})
    assert found == Detection(("a", "b"), ("a",), ("a", "b"), {"a": 1, "b": 2}, {"a": 2})
    assert (found.recall, found.precision, found.f1) == (0.5, 1 / 3, 0.4)


def test_a_round_by_hand():
    """a is caught in its pause, b attacks and is in the model, c is wronged, e is let in as an honest client."""
    now = record(4, "abcde", [0, 0.3, 0, 0, 0.7], [1, 0, 1, 0, 0], rejected="d")
    truth = {"a": {1, 2}, "b": {4, 5}, "d": {4}, "e": {5}}
    want = {"precision": 0.5, "recall": 0.5, "f1": 0.5, "false_exclusions": 1.0, "let_in": 1.0}
    assert round_detection(now, truth) == want
    gone = record(5, "be", [0.5, 0.5], [0, 0], excluded="ac")
    want = {"precision": 0.5, "recall": 1 / 3, "f1": 0.4, "false_exclusions": 1.0, "let_in": 2.0}
    assert round_detection(gone, truth) == want
    quiet = {"precision": 1.0, "recall": 1.0, "f1": 1.0, "false_exclusions": 0.0, "let_in": 0.0}
    assert round_detection(record(1, "ab", [0.5, 0.5], [0, 0]), {}) == quiet


def scored(t, ids, scores, name="far"):
    x = np.array(scores, dtype=float)
    watch = WatchRecord(name, x, x, np.inf, np.zeros(len(x), bool))
    return fw.RoundRecord(t, tuple(ids), np.ones(len(x)), np.ones(len(x)), (watch,), np.zeros(len(x), bool))


def pairs(attackers, honest):
    return np.mean([(a > h) + 0.5 * (a == h) for a in attackers for h in honest])


def test_quality_against_counted_pairs():
    rng = np.random.default_rng(0)
    ids = [str(i) for i in range(60)]
    truth = {c: range(2, 9) for c in ids[:10]}
    rounds = [np.round(rng.normal(0, 1, 60) + np.where(np.arange(60) < 10, 1.5, 0), 1) for _ in range(8)]
    found = watch_quality([scored(t, ids, x) for t, x in enumerate(rounds, 1)], truth)["far"]
    bad, good = np.concatenate([x[:10] for x in rounds[1:]]), np.concatenate([x[10:] for x in rounds[1:]])
    assert found["auroc"] == pytest.approx(pairs(bad, good))
    assert found["auroc_by_round"] == pytest.approx(np.mean([pairs(x[:10], x[10:]) for x in rounds[1:]]))
    for key, rate in (("tpr_at_1", 0.01), ("tpr_at_5", 0.05)):
        allowed = [x for x in sorted({*bad, *good, 99.0}) if np.mean(good >= x) <= rate]
        assert found[key] == pytest.approx(np.mean(bad >= allowed[0]))
    assert 0 < found["tpr_at_1"] < found["tpr_at_5"] < 1


def test_quality_leaves_out_who_was_not_judged_pauses_or_has_nobody_to_compare_with():
    truth = {"a": {2, 4}}
    records = [
        scored(1, "abc", [0, 1, 2]),  # before the attack
        scored(2, "abc", [5, 1, math.nan]),  # c was rejected
        scored(3, "abc", [0, 1, 2]),  # a pauses
        scored(4, "ab", [math.nan, 1]),  # a was rejected
        scored(4, "a", [0]),
    ]
    want = {"auroc": 1.0, "auroc_by_round": 1.0, "tpr_at_1": 1.0, "tpr_at_5": 1.0}
    assert watch_quality(records, truth) == {"far": want}
    assert watch_quality(records[:1], truth) == {}
    assert watch_quality(records, {}) == {}


def test_a_suspension_counts_only_if_it_stands_at_the_end():
    """a comes back, b is suspended again and stays so, c is excluded for good after a suspension."""

    def after(t, excluded, suspended):
        ids = ("a", "b", "c", "d")
        flags = np.array([c in excluded for c in ids])
        return fw.RoundRecord(
            t, ids, np.ones(4), np.where(flags, 0.0, 1.0), (), flags, tuple(excluded), suspended=tuple(suspended)
        )

    rounds = [after(1, "abc", "abc"), after(2, "ac", "a"), after(3, "c", ""), after(4, "bc", "b"), after(5, "bc", "b")]
    found = detection(rounds, {"c": range(1, 9)})
    assert found.first_excluded == {"c": 1, "b": 4}
    assert (found.caught, found.wronged) == (("c",), ("b",))
