"""The laws of an aggregation rule as a plain function of rows.

A law compares a function with its paper only where it says so; elsewhere it compares the function with itself, so that
one departure from the paper is one broken law and not ten.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch

from .law import Array, Broken, CannotTell, laws, line, same
from .subject import Subject, as_bfloat16, layered

D = 17
CASES = 24


def draw(rng: np.random.Generator, n: int, d: int = D, far: int = 0) -> Array:
    """Rows around a common vector, every client with a spread of its own; the first ``far`` of them point elsewhere."""
    centre = rng.normal(1.0, 1.0, size=d)
    rows = centre + rng.lognormal(-0.5, 0.6, size=(n, 1)) * rng.normal(size=(n, d))
    rows[:far] = 3.0 * rng.normal(size=(1, d)) + 0.1 * rng.normal(size=(far, d))
    return np.asarray(rows)


def _clients(subject: Subject, extra: int = 3, parity: int | None = None) -> int:
    n = max(subject.least + extra, 8)
    return n if parity is None or n % 2 == parity else n + 1


def _known(subject: Subject) -> None:
    """Some laws have exceptions; a function that nobody knows has not declared any."""
    if not subject.registered:
        _paper_of(subject, "only for rules that the suite knows, or that are registered")


def _paper_of(subject: Subject, reason: str = "the suite does not know how many clients it needs") -> None:
    if subject.rule.golden is None:
        raise CannotTell(reason)


def permutation(subject: Subject) -> None:
    """The order of the clients does not matter."""
    for case in range(20):
        rng = np.random.default_rng(case)
        rows = draw(rng, _clients(subject, case % 4))
        order = rng.permutation(len(rows))
        same(subject(rows[order]), subject(rows), subject.rule.tolerance, f"n={len(rows)}")


def translation(subject: Subject) -> None:
    """Adding a vector to every client adds it to the result."""
    _known(subject)
    for case in range(6):
        rng = np.random.default_rng(case)
        rows, shift = draw(rng, _clients(subject)), 10.0 * rng.normal(size=D)
        same(subject(rows + shift), subject(rows) + shift, subject.rule.tolerance, f"n={len(rows)}, moved by up to 30")


def scaling(subject: Subject) -> None:
    """Scaling every client by a positive number scales the result."""
    _known(subject)
    for scale in (1e-3, 3.0, 1e3):
        rows = draw(np.random.default_rng(0), _clients(subject))
        want = scale * subject(rows)
        same(subject(scale * rows), want, subject.rule.tolerance, f"n={len(rows)}, times {scale:g}")


def _bad_client(subject: Subject, values: tuple[float, ...]) -> None:
    for at in (0, -1):
        for value in values:
            for columns in (slice(0, 1), slice(None)):
                rows = draw(np.random.default_rng(3), _clients(subject))
                largest = float(np.abs(rows).max())
                rows[at, columns] = value
                got = subject(rows)
                bad = int((~np.isfinite(got)).sum())
                if bad:
                    part = "one entry" if columns.stop else "all entries"
                    raise Broken(f"{part} of one client of {len(rows)} {value}: {bad} of {D} results are not finite")
                if float(np.abs(got).max()) > 10 * largest:
                    raise Broken(f"one client {value}: result {np.abs(got).max():.3g}, others at most {largest:.3g}")


def nan_client(subject: Subject) -> None:
    """A client with NaN does not make the result NaN."""
    _bad_client(subject, (np.nan,))


def inf_client(subject: Subject) -> None:
    """A client with Inf does not make the result infinite."""
    _bad_client(subject, (np.inf, -np.inf))


def _paper(subject: Subject, parity: int) -> None:
    _paper_of(subject, "the suite has no loop from its paper")
    wrong, worst = 0, ""
    for case in range(CASES):
        rng = np.random.default_rng(case)
        n = _clients(subject, case % 5, parity)
        rows = draw(rng, n, far=int(subject.options.get("f", 1)) if case % 2 else 0)
        try:
            same(subject(rows), subject.golden(rows), max(subject.rule.tolerance, 1e-6), f"case {case}, n={n}")
        except Broken as fault:
            wrong, worst = wrong + 1, worst or str(fault)
    if wrong:
        raise Broken(f"{wrong} of {CASES} cases differ; {worst}")


def odd_n(subject: Subject) -> None:
    """For odd n the answer is that of a loop written from the paper."""
    _paper(subject, 1)


def even_n(subject: Subject) -> None:
    """For even n the answer is that of a loop written from the paper."""
    _paper(subject, 0)


def at_precondition(subject: Subject) -> None:
    """With the fewest clients the rule is defined for, it answers."""
    _paper_of(subject)
    n = subject.least
    got = subject(draw(np.random.default_rng(1), n))
    if got.shape != (D,) or not np.isfinite(got).all():
        raise Broken(f"no finite answer at n={n}, where {subject.rule.needs}")


def below_precondition(subject: Subject) -> None:
    """With one client fewer it raises an error that gives the numbers."""
    _paper_of(subject)
    n = subject.least - 1
    if n < 1:
        raise CannotTell("defined from one client on")
    try:
        got = subject(draw(np.random.default_rng(1), n))
    except Broken as fault:
        raise Broken(f"n={n}: {fault}; expected an error, as {subject.rule.needs}") from fault
    except Exception as error:
        if str(n) in str(error):
            return
        raise Broken(f"n={n}: {type(error).__name__} without the numbers: {line(error)}") from error
    raise Broken(f"n={n}: answered with {got.size} numbers; expected an error, as {subject.rule.needs}")


def buffers(subject: Subject) -> None:
    """BatchNorm's counters are aggregated but decide nothing."""
    for case in range(6):
        rng = np.random.default_rng(case)
        rows = draw(rng, _clients(subject))
        try:
            want = subject(layered(rows))
        except Exception as error:
            raise CannotTell("takes no clients as lists of layers") from error
        counters = rng.integers(1, 100_000, size=len(rows)).tolist()
        got = subject(layered(rows, counters))
        if got.shape != (D + 1,) or not np.isfinite(got[D]):
            raise Broken(f"the counter is not aggregated: {got.size} numbers, expected {D + 1}")
        where = f"n={len(rows)}, counters from {min(counters)} to {max(counters)} change the weights"
        same(got[:D], want, max(subject.rule.tolerance, 1e-5), where)


def identical(subject: Subject) -> None:
    """Clients that all send the same vector get it back."""
    _known(subject)
    row = draw(np.random.default_rng(2), 1)
    same(subject(np.repeat(row, _clients(subject), axis=0)), row[0], subject.rule.tolerance, "equal clients")


def degenerate(subject: Subject) -> None:
    """Equal clients and clients of zeros give finite numbers or an error."""
    n = _clients(subject)
    for text, row in (("equal clients", draw(np.random.default_rng(2), 1)), ("clients of zeros", np.zeros((1, D)))):
        try:
            got = subject(np.repeat(row, n, axis=0))
        except ValueError:
            continue
        if not np.isfinite(got).all():
            raise Broken(f"{n} {text}: {int((~np.isfinite(got)).sum())} of {D} results are not finite")


def near_agreement(subject: Subject) -> None:
    """Clients that agree to 1e-6 in float32 are told apart."""
    _known(subject)
    d, cases, wrong, attacked, worst = 2000, 6, 0, 0, 0.0
    for case in range(cases):
        rng = np.random.default_rng(case)
        n, far = _clients(subject), int(subject.options.get("f", 1))
        base = rng.normal(size=d).astype(np.float32)
        apart = rng.normal(size=(n, d)) * rng.uniform(0.5, 1.5, size=(n, 1)) * 1e-6
        apart[:far] += 2e-5 * rng.normal(size=d)
        rows = (base + apart).astype(np.float32)
        moved = subject(rows) - base
        off = float(np.linalg.norm(moved - subject(rows.astype(np.float64) - base))) / np.sqrt(d)
        wrong, worst = wrong + (not off <= 2.5e-7), max(worst, off)
        attacked += float(np.linalg.norm(moved)) / np.sqrt(d) > 1e-5
    if wrong:
        who = f"; in {attacked} an attacker was let in" if attacked else ""
        raise Broken(f"{wrong} of {cases} cases with clients 1e-6 apart: off by up to {worst:.2g} a weight{who}")


def far_apart(subject: Subject) -> None:
    """One client 1e6 times as large costs no digits of the answer."""
    for case in range(4):
        rows = draw(np.random.default_rng(case), _clients(subject)).astype(np.float32)
        rows[case] *= 1e6
        want = subject(rows.astype(np.float64))
        same(subject(rows), want, max(1e-4, subject.rule.tolerance), f"n={len(rows)}, one client 1e6 times as large")


def _half(subject: Subject, cast: Callable[[Array], Any], name: str) -> None:
    for case in range(4):
        rows = cast(200.0 * draw(np.random.default_rng(case), _clients(subject)))
        exact = np.asarray(torch.as_tensor(rows).double().numpy())
        try:
            got = subject(rows)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise CannotTell(f"takes no {name}: {line(error)}") from error
        same(got, subject(exact), 1e-2, f"n={len(exact)}, values up to {np.abs(exact).max():.0f} in {name}")


def float16(subject: Subject) -> None:
    """float16 input gives the answer that the same values give in float64."""
    _half(subject, lambda rows: rows.astype(np.float16), "float16")


def bfloat16(subject: Subject) -> None:
    """bfloat16 input gives the answer that the same values give in float64."""
    _half(subject, as_bfloat16, "bfloat16")


def claimed_examples(subject: Subject) -> None:
    """A client claiming 1e9 examples does not own the result."""
    if not subject.takes("num_examples"):
        raise CannotTell("takes no example counts")
    rows = draw(np.random.default_rng(4), _clients(subject))
    fair = subject(rows, num_examples=np.full(len(rows), 20.0))
    for liar in range(len(rows)):
        counts = np.full(len(rows), 20.0)
        counts[liar] = 1e9
        before, after = (float(np.linalg.norm(u - rows[liar])) for u in (fair, subject(rows, num_examples=counts)))
        if before > 1e-9 and after < 0.1 * before:
            share = 100 * (1 - after / before)
            raise Broken(f"one client of {len(rows)} that claims 1e9 examples, the others 20, owns {share:.1f} %")


def input_untouched(subject: Subject) -> None:
    """The input is only read."""
    rows = draw(np.random.default_rng(5), _clients(subject))
    copy = rows.copy()
    subject.function(rows, **subject.with_size(D))
    if not np.array_equal(rows, copy):
        raise Broken(f"{int((rows != copy).any(axis=1).sum())} of {len(rows)} rows were changed")


def defaults(subject: Subject) -> None:
    """At default options one far client is kept out, or the call raises."""
    _known(subject)
    given = {key: value for key, value in subject.options.items() if callable(value)}
    plain = Subject(subject.function, subject.rule, subject.name, given)
    far = 1e6 * np.array([np.ones(D), np.resize([1.0, -1.0], D), np.arange(D) == 0])  # in all or in one coordinate
    for n, client in product(range(3, 12), far):
        rows = np.vstack([draw(np.random.default_rng(n), n - 1), client])
        try:
            got = plain(rows)
        except TypeError as error:
            raise CannotTell("its options have no defaults") from error
        except ValueError as error:
            if str(n) not in str(error):
                raise Broken(f"n={n}: {line(error)} does not give the numbers") from error
            continue
        largest = float(np.abs(rows[:-1]).max())
        if not float(np.abs(got).max()) <= 10 * largest:
            raise Broken(f"n={n}: one client at 1e6 makes {np.abs(got).max():.3g} of others up to {largest:.2g}")


LAWS = laws(
    permutation, translation, scaling, odd_n, even_n, at_precondition, below_precondition, nan_client, inf_client,
    identical, degenerate, near_agreement, far_apart, float16, bfloat16, buffers, claimed_examples, input_untouched,
    defaults,
)  # fmt: skip
