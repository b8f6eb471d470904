"""A run as arrays grows round by round into what it is when read at once."""

import numpy as np
import pytest

from fedwarden.core.notes import Note
from fedwarden.core.types import Rejection, RoundRecord, WatchRecord
from fedwarden.store.series import Series


def record(t, clients, excluded=(), watches=("far",), rejected=(), **metrics):
    n = len(clients)
    rng = np.random.default_rng(t)
    seen = tuple(
        WatchRecord(w, rng.normal(size=n), rng.normal(size=n), float(t), rng.random(n) > 0.5, f"{w} {t}", {}, "far out")
        for w in watches
    )
    flags = np.array([c in excluded for c in clients], bool)
    refused = tuple(Rejection(c, Note.of("idle")) for c in rejected)
    return RoundRecord(
        t,
        tuple(clients),
        np.full(n, 10.0),
        np.full(n, 1 / n),
        seen,
        flags,
        excluded,
        refused,
        (Note.text(f"note {t}"),),
        metrics,
    )


RECORDS = [
    record(1, "bca", accuracy=0.1),
    record(2, "abc", excluded=("b",), watches=("far", "odd"), accuracy=0.2, loss=1.0),
    record(3, "ac", excluded=("b",), watches=("odd",), rejected=("d",), loss=0.5),
    record(5, "aex", excluded=("b",), accuracy=0.4),
]


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_a_series_grows_into_what_it_is_when_read_at_once(cut):
    whole, grown = Series.of(RECORDS), Series.of(RECORDS[:cut]).then(RECORDS[cut:])
    assert grown.clients == whole.clients == ("a", "b", "c", "d", "e", "x")
    for name in ("rounds", "examples", "weights", "flagged", "excluded"):
        first, second = getattr(grown, name), getattr(whole, name)
        assert first.dtype == second.dtype
        np.testing.assert_array_equal(first, second, name)
    assert list(grown.watches) == list(whole.watches)
    for name, watch in whole.watches.items():
        mine = grown.watches[name]
        for field in ("signal", "scores", "flagged", "threshold"):
            np.testing.assert_array_equal(getattr(mine, field), getattr(watch, field), f"{name}.{field}")
            assert getattr(mine, field).dtype == getattr(watch, field).dtype
        assert (mine.warnings, mine.words) == (watch.warnings, watch.words)
    assert grown.metrics.keys() == whole.metrics.keys()
    for name, values in whole.metrics.items():
        np.testing.assert_array_equal(grown.metrics[name], values)
    assert (grown.rejected, grown.notes) == (whole.rejected, whole.notes)
    assert grown.excluded_in == whole.excluded_in == {"b": 2}
