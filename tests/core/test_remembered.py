"""What is remembered in columns equals a plain table of rows, whoever comes and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.remembered import Remembered

CLIENTS = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1).map(tuple)
BLANK = (0.0, -1.0)


@given(st.lists(CLIENTS, max_size=8))
def test_columns_hold_what_a_table_of_rows_would(rounds):
    state, plain = Remembered(), dict[str, tuple[float, float]]()
    for t, clients in enumerate(rounds):
        found = state.columns(clients, BLANK)
        assert found.T.tolist() == [list(plain.get(c, BLANK)) for c in clients]
        rows = {c: (t + ord(c) / 7, -t * ord(c) / 3) for c in clients}
        state, before = state.updated(clients, list(zip(*rows.values(), strict=True))), state
        assert dict(before) == plain, "a state never changes"
        plain = plain | rows
        assert dict(state) == plain


@given(CLIENTS, CLIENTS, st.sets(st.sampled_from("abcdefgh")))
def test_who_is_restored_stands_as_before_or_is_not_known(first, second, names):
    past = Remembered.of(dict.fromkeys(first, (1.0, 2.0)))
    now = past.updated(second, [[5.0] * len(second), [6.0] * len(second)])
    plain = {c: (past[c] if c in names and c in past else now[c]) for c in now if c not in names or c in past}
    assert dict(now.restored(past, names)) == plain
