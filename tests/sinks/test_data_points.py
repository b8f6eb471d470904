"""Names that never collide, and the numbers of a round under them."""

import posixpath
import re

from hypothesis import given
from hypothesis import strategies as st

from fedwarden.sinks.data_points import LONGEST, DataPoint, chosen, data_points, refusals, segment

from .conftest import HOSTILE, round_of


@given(st.lists(st.text(max_size=100), min_size=2, max_size=8, unique=True))
def test_two_names_never_become_one_and_none_is_a_path(texts):
    parts = [segment(text) for text in texts]
    assert len(set(parts)) == len(texts)
    for part in parts:
        assert re.fullmatch(r"[A-Za-z0-9_.:-]+", part)
        assert len(part) <= LONGEST
        assert posixpath.normpath(f"a/{part}") == f"a/{part}"


def test_a_name_cannot_be_chosen_to_look_like_another_ones_hash():
    long = "n" * 300
    assert segment(segment(long)) != segment(long)
    assert segment(long) != segment(long + "n")


def test_every_point_of_a_round_has_its_own_name():
    record = round_of(1, HOSTILE, metrics={"a/b": 1.0, "a:2Fb": 2.0, "/".join("abcd" * 99): 3.0})
    found = data_points(record)
    assert len({p.tag for p in found}) == len(found)
    assert len({(p.family, *sorted(p.labels.items())) for p in found}) == len(found)
    assert max(len(p.tag) for p in found) < 250


def test_the_numbers_of_a_round():
    found = {p.tag: p.value for p in data_points(round_of(2, "abc", rejected=[("z", "why")], excluded="cd"))}
    assert found == {
        "metric/accuracy": 0.7,
        "metric/train/loss": 0.5,
        **{f"watch/{w}/threshold": 21.5 for w in ("near", "far")},
        **{f"watch/{w}/score/{c}": s for w in ("near", "far") for c, s in zip("abc", (20, 21, 22), strict=True)},
        **{f"watch/{w}/signal/{c}": s for w in ("near", "far") for c, s in zip("abc", (10, 10.5, 11), strict=True)},
        **{f"watch/{w}/flagged/{c}": float(c == "c") for w in ("near", "far") for c in "abc"},
        **{f"client/weight/{c}": w for c, w in zip("abc", (0.5, 0.5, 0), strict=True)},
        **{f"client/examples/{c}": 100.0 for c in "abc"},
        **{f"client/flagged/{c}": float(c == "c") for c in "abc"},
        **{f"client/excluded/{c}": float(c in "cd") for c in "abcd"},
        "round/clients": 3.0,
        "round/flagged": 1.0,
        "round/excluded": 2.0,
        "round/rejected": 1.0,
    }


def test_where_there_are_too_many_clients_only_the_flagged_and_excluded_are_sent():
    record = round_of(1, [f"c{i}" for i in range(30)], excluded=["gone", "c3"])
    assert len(chosen(record, "all", 31)) == 31
    assert chosen(record, "all", 30) == chosen(record, "flagged", 31) == ["c29", "gone", "c3"]
    assert chosen(record, "all", 2) == ["c29", "gone"]
    assert DataPoint("round", "clients", 30.0) in data_points(record, "all", 0)


def test_of_two_replies_of_one_client_the_first_counts():
    found = {p.tag: p.value for p in data_points(round_of(1, "aba"))}
    assert found["watch/near/score/a"] == 10.0


def test_reasons_of_rejections_are_text_of_bounded_length():
    record = round_of(1, "ab", rejected=[("z/z", "no\nnumber")] * 1000)
    assert refusals(record).startswith("client z:2Fz: no\nnumber\nclient")
    assert len(refusals(record)) <= 4000
    assert refusals(round_of(1, "ab")) == ""
