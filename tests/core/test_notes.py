"""Notes: data with a sentence for every kind, and no note that cannot be told."""

import json
import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.notes import SENTENCES, Note

NAMES = ("names", "watches")
SAMPLES = {"shape": (4,), "expected": (2, 2), **dict.fromkeys(NAMES, ("first", "second"))}
scalars = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)


def fields(kind):
    """What the sentence of a kind is made of, with the format of each."""
    made = SENTENCES[kind]
    if isinstance(made, str):
        return {name: spec for _, name, spec, _ in string.Formatter().parse(made) if name}
    return dict.fromkeys(made.__code__.co_varnames[: made.__code__.co_argcount], "")


def example(kind):
    """A note of a kind with a value of its own for every field: a number where the sentence formats one."""
    own = [f for f in fields(kind) if f not in ("clients", "cause", "s")]
    made = {f: SAMPLES.get(f, 31 + i if fields(kind)[f] or f == "many" else f"<{f}>") for i, f in enumerate(own)}
    cause = Note.of("idle") if "cause" in fields(kind) else None
    return Note(kind, ("ann", "bob") if "clients" in fields(kind) else (), made, cause)


@pytest.mark.parametrize("kind", SENTENCES)
def test_every_kind_has_a_sentence_with_all_its_values(kind):
    note = example(kind)
    told = str(note)
    assert told != str(replace(note, kind="unknown")).replace("unknown", kind)  # a note that has no sentence
    for name, value in note.values.items():
        if name == "many" and "names" in note.values:
            value -= 2  # those that are not named
        for part in value if name in NAMES else (value,):
            assert str(part) in told, name
    assert ("clients ann and bob" in told) == bool(note.clients)
    assert ("idle: it returned the model unchanged" in told) == (note.cause is not None or kind == "idle")


def test_one_of_many_is_told_in_the_singular():
    assert str(Note.of("too_few", many=1, quorum=4)).startswith("1 different update of clients")
    assert str(Note.of("too_few", many=2, quorum=4)).startswith("2 different updates of clients")
    assert str(Note.of("on_trial", "a", words="it is long")).startswith("client a is on trial")
    assert str(Note.of("copies_share", "a", "b", leading=0)).startswith("clients a and b sent identical updates")


@given(st.sampled_from([*SENTENCES, "of another version"]), st.dictionaries(st.text(max_size=9), values), values)
def test_a_note_with_any_values_can_be_told(kind, more, value):
    """A ledger may come from anywhere."""
    known = dict.fromkeys(fields(kind), value) if kind in SENTENCES else {}
    note = Note(kind, ("a", "b"), {**known, **more}, Note.text("{0}"))
    assert isinstance(str(note), str)
    assert json.loads(json.dumps(note.table()))["kind"] == kind
    assert note.topic.topic == note.topic


def test_a_component_has_words_of_its_own():
    note = Note.text("{odd} words: 5 %")
    assert str(note) == "{odd} words: 5 %"
    assert note.topic == note  # whatever numbers are in there


def test_topics_differ_by_kind_client_name_and_cause_and_not_by_numbers():
    note = Note.of("watch", "a", watch="far", cause=Note.of("masking", most=3))
    same = Note.of("watch", "a", watch="far", cause=Note.of("masking", most=2))
    others = [
        Note.of("watch", "b", watch="far", cause=note.cause),
        Note.of("watch", "a", watch="near", cause=note.cause),
        Note.of("watch", "a", watch="far", cause=Note.of("idle")),
        Note.of("text", "a", watch="far", cause=note.cause),
    ]
    assert note != same
    assert note.topic == same.topic
    assert all(other.topic != note.topic for other in others)
