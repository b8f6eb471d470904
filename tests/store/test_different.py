"""Clients that are different: which they are, by hand, and the sentence about each."""

import numpy as np
import pytest

from fedwarden.core.notes import Note
from fedwarden.core.types import RoundRecord
from fedwarden.store.round import RoundStory, advice
from fedwarden.store.story import Story

IDS = tuple("abcd")


def doubt(client, **values):
    return Note.of("on_trial", client, watches=("far",), words="it lies far out", **values)


def run(*notes_by_round):
    rounds = [RoundRecord(t, IDS, np.ones(4), np.ones(4), notes=notes) for t, notes in enumerate(notes_by_round, 1)]
    return Story.of(rounds)


@pytest.mark.parametrize(
    ("doubts", "told"),
    [
        ([12], True),  # now
        ([3, 5, 7, 9, 11], True),  # in half of the last ten rounds, 3 to 12
        ([3, 5, 7, 9], False),
        ([1, 2, 3, 4, 5], False),  # two of these are older
    ],
)
def test_who_is_different(doubts, told):
    series = run(*[(doubt("b"),) if t in doubts else () for t in range(1, 13)])
    assert list(series.different) == ["b"] * told


def test_harm_that_was_measured_and_the_word_of_the_operator_end_it():
    assert run((doubt("a"), doubt("b", harmful=True))).different.keys() == {"a"}
    assert advice("b", doubt("b", harmful=True)) == ""
    for kind in ("word_trusted", "word_readmitted"):
        assert not run((doubt("a"),), (Note.of(kind, "a", by="me", reason="known"),)).different
    untrusted = Note.of("word_untrusted", "a", by="me", reason="")
    assert run((doubt("a"),), (untrusted, doubt("a"))).different.keys() == {"a"}


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({}, ""),
        (
            {"lone": True},
            "; weights that it alone moves lead to one class, as those of a backdoor do, and are left out",
        ),
        (
            {"layer": "fc.weight", "layers": 4, "share": 0.5, "usual": 0.25},
            "; 50 % of its deviation lies in layer fc.weight, where the median client has 25 %",
        ),
        (
            {"layer": 2, "layers": 4, "share": 0.5, "usual": 0.25},
            "; 50 % of its deviation lies in part 2 of 4 of the model, where the median client has 25 %",
        ),
        (
            {"teaches": (3, 5), "unlearns": (1,)},
            "; it teaches classes 3 and 5, which hardly any other client does; it unlearns class 1, which hardly any "
            "other client does",
        ),
        ({"layer": None, "share": "x", "teaches": 7}, ""),  # a ledger may come from anywhere
    ],
)
def test_the_sentence_says_what_differs_besides(values, what):
    record = RoundRecord(3, ("west wing",), np.ones(1), np.ones(1), notes=(doubt("west wing", **values),))
    told = str(RoundStory(record).reason("west wing"))
    assert told == f"Client west wing was on trial in round 3: it lies far out{what}."


def test_what_to_do_is_about_the_run_or_where_it_is_done_the_next_one():
    head = "Client west wing is different, harm not shown. If you know why it differs, "
    note = doubt("west wing")
    assert advice("west wing", note, 7) == f"{head}run `fedwarden trust 7 'west wing'`."
    assert advice("west wing", note) == f"{head}give the guard of the next run trusted = ['west wing']."


def test_a_run_closes_with_the_first_of_them_and_counts_the_rest():
    told = run(tuple(doubt(c) for c in IDS)).closing(7, done=False)
    assert [line[:8] for line in told] == ["Client a", "Client b", "Client c", "1 more c"]
    assert told[-1] == "1 more client is different: fedwarden show 7"


def test_clients_that_act_as_one_are_named_though_none_stood_out():
    copies = Note.of("copies_share", "a", "b", leading=0)
    assert run((copies,), (), (copies,)).sentences == [
        "Clients a and b act as one: they sent identical updates in 2 of 3 rounds and share one vote.",
        "No watch was set, so no client was judged.",
    ]
