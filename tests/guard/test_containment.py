"""How long updates may be: against plain loops, and laws that hold whatever the lengths are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.guard.containment import LONGEST, bounded

masks = st.integers(1, 20).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(1e-3, 1e4), min_size=n, max_size=n),
        *(st.lists(st.booleans(), min_size=n, max_size=n) for _ in range(3)),
    )
)


def level_by_loop(lengths, total):
    """Lengths are let in from the shortest on; what is left of the total is shared by those that are not."""
    left = total
    ordered = sorted(lengths)
    for i, length in enumerate(ordered):
        fair = left / (len(ordered) - i)
        if length > fair:
            return fair
        left -= length
    return ordered[-1] if ordered else 0.0


def bounded_by_loop(lengths, usual, doubted, kept, shorten, joint):
    """Client by client, from the words of the docstring."""
    n = len(lengths)
    standing = sorted(x for x, u in zip(lengths, usual, strict=True) if u)
    if not standing:
        return [1.0] * n
    middle = standing[(len(standing) - 1) // 2]
    limits = [np.inf if shorten is None else shorten * middle] * n
    inside = [x for x, d, k in zip(lengths, doubted, kept, strict=True) if d and k]
    if joint is not None and inside:
        each = min(level_by_loop(inside, max(joint * n, shorten or 0.0) * middle), LONGEST * middle)
        limits = [each if d else limit for d, limit in zip(doubted, limits, strict=True)]
    return [min(1.0, limit / x) if x > 0 else 1.0 for x, limit in zip(lengths, limits, strict=True)]


options = st.tuples(st.sampled_from([None, 1.0, 1.5, 3.0]), st.sampled_from([None, 0.1, 0.4, 2.0]))


@given(masks, options)
def test_bounded_is_a_plain_loop(drawn, chosen):
    lengths, *flags = drawn
    usual, doubted, kept = (np.array(mask, bool) for mask in flags)
    found = bounded(np.array(lengths), usual, doubted, kept, *chosen)
    np.testing.assert_allclose(found, bounded_by_loop(lengths, *flags, *chosen), rtol=1e-9)


@given(masks)
def test_clients_in_doubt_never_move_the_model_by_more_than_the_bound(drawn):
    lengths, *flags = drawn
    x = np.array(lengths)
    usual, doubted, kept = (np.array(mask, bool) for mask in flags)
    factors = bounded(x, usual, doubted, kept, 3.0, 0.4)
    assert ((factors > 0) & (factors <= 1)).all()
    if not usual.any():
        return
    middle = np.sort(x[usual])[(usual.sum() - 1) // 2]
    moved = factors * x
    assert moved[doubted & kept].sum() <= max(0.4 * len(x), 3.0) * middle * (1 + 1e-9)
    assert (moved[~doubted] <= 3.0 * middle * (1 + 1e-9)).all()
    if (doubted & kept).any():
        assert (moved[doubted] <= LONGEST * middle * (1 + 1e-9)).all()


@given(masks, st.floats(1.0, 1e6))
def test_a_longer_update_of_a_client_in_doubt_never_moves_the_model_farther_at_the_bound(drawn, times):
    """Beyond its limit a length changes nothing, and no other client's factor grows by it."""
    lengths, *flags = drawn
    x = np.array(lengths)
    usual, doubted, kept = (np.array(mask, bool) for mask in flags)
    i = int(np.argmax(doubted))
    usual[i] = False
    if not (doubted[i] and kept[i] and usual.any()):
        return
    longer = np.where(np.arange(len(x)) == i, times * x, x)
    before, after = (bounded(values, usual, doubted, kept, 3.0, 0.4) for values in (x, longer))
    others = kept & (np.arange(len(x)) != i)
    assert (after[others] <= before[others] * (1 + 1e-9)).all()
    middle = np.sort(x[usual])[(usual.sum() - 1) // 2]
    assert after[i] * longer[i] <= min(LONGEST, max(0.4 * len(x), 3.0)) * middle * (1 + 1e-9)


@given(st.integers(3, 21), st.data())
def test_a_minority_that_puts_all_others_in_doubt_with_tiny_updates_shortens_none_of_them_to_nothing(n, data):
    f = data.draw(st.integers(1, (n - 1) // 2))
    x = np.array([1e-9] * f + [1.0] * (n - f))
    doubted = np.arange(n) >= f
    kept = ~doubted | (np.cumsum(doubted) <= 2)  # two of them have their turn
    moved = bounded(x, np.ones(n, bool), doubted, kept, 3.0, 0.4) * x
    assert moved[doubted & kept].sum() == pytest.approx((doubted & kept).sum())


def test_the_only_owner_of_a_class_is_heard_over_the_others():
    """Of 20 clients, one in doubt has 0.4 n = 8 median lengths, and not three."""
    x = np.array([1.0] * 19 + [9.0])
    alone = np.arange(20) == 19
    assert bounded(x, ~alone, alone, np.ones(20, bool), 3.0, 0.4)[-1] * 9 == pytest.approx(8.0)
    assert bounded(x, ~alone, alone, np.ones(20, bool), 3.0, None)[-1] * 9 == pytest.approx(3.0)
