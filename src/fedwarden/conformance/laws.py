"""The laws, as data: a name, one sentence, a check that raises where it is broken, and the rules it does not hold for.

A law compares a function with its paper only where it says so; elsewhere it compares the function with itself, so that
one departure from the paper is one broken law and not ten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .golden import Array
from .subject import Broken, NotApplicable, Subject, as_bfloat16, layered

D = 17
CASES = 24


@dataclass(frozen=True)
class Law:
    """One law. ``exceptions`` says for which rules it does not hold, and why."""

    name: str
    says: str
    check: Callable[[Subject], None]
    exceptions: Mapping[str, str] = field(default_factory=dict)
    of_all: bool = False


@dataclass(frozen=True)
class Finding:
    """What became of one law: kept, broken or not applicable, and the numbers or the reason."""

    law: str
    status: str
    note: str = ""


def examine(subject: Subject, law: Law) -> Finding:
    """Point one law at a function."""
    if subject.name in law.exceptions:
        return Finding(law.name, "n/a", law.exceptions[subject.name])
    if not law.of_all and subject.rule.golden is None:
        return Finding(law.name, "n/a", "only for rules that the suite knows")
    try:
        with np.errstate(all="ignore"):
            law.check(subject)
    except NotApplicable as reason:
        return Finding(law.name, "n/a", str(reason))
    except Broken as fault:
        return Finding(law.name, "broken", str(fault))
    except Exception as error:
        return Finding(law.name, "broken", f"raised {type(error).__name__}: {_line(error)}")
    return Finding(law.name, "kept")


def draw(rng: np.random.Generator, n: int, d: int = D, far: int = 0) -> Array:
    """Rows around a common vector, every client with a spread of its own; the first ``far`` of them point elsewhere."""
    centre = rng.normal(1.0, 1.0, size=d)
    rows = centre + rng.lognormal(-0.5, 0.6, size=(n, 1)) * rng.normal(size=(n, d))
    rows[:far] = 3.0 * rng.normal(size=(1, d)) + 0.1 * rng.normal(size=(far, d))
    return np.asarray(rows)


def _clients(subject: Subject, extra: int = 3, parity: int | None = None) -> int:
    n = max(subject.least + extra, 8)
    return n if parity is None or n % 2 == parity else n + 1


def _same(got: Array, want: Array, tolerance: float, where: str) -> None:
    """Raise where two answers differ by more than ``tolerance`` times the size of what was expected."""
    if got.shape != want.shape:
        raise Broken(f"{where}: {got.size} numbers, expected {want.size}")
    if not np.isfinite(got).all():
        raise Broken(f"{where}: {int((~np.isfinite(got)).sum())} of {got.size} numbers are not finite")
    off, unit = float(np.abs(got - want).max(initial=0.0)), float(np.abs(want).max(initial=0.0))
    if off > tolerance * max(unit, 1e-30):
        raise Broken(f"{where}: off by {off:.3g}, values up to {unit:.3g}")


def permutation(subject: Subject) -> None:
    for case in range(20):
        rng = np.random.default_rng(case)
        rows = draw(rng, _clients(subject, case % 4))
        order = rng.permutation(len(rows))
        _same(subject(rows[order]), subject(rows), subject.rule.tolerance, f"n={len(rows)}")


def translation(subject: Subject) -> None:
    for case in range(6):
        rng = np.random.default_rng(case)
        rows, shift = draw(rng, _clients(subject)), 10.0 * rng.normal(size=D)
        _same(subject(rows + shift), subject(rows) + shift, subject.rule.tolerance, f"n={len(rows)}, moved by up to 30")


def scaling(subject: Subject) -> None:
    for scale in (1e-3, 3.0, 1e3):
        rows = draw(np.random.default_rng(0), _clients(subject))
        want = scale * subject(rows)
        _same(subject(scale * rows), want, subject.rule.tolerance, f"n={len(rows)}, times {scale:g}")


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
    _bad_client(subject, (np.nan,))


def inf_client(subject: Subject) -> None:
    _bad_client(subject, (np.inf, -np.inf))


def _paper(subject: Subject, parity: int) -> None:
    wrong, worst = 0, ""
    for case in range(CASES):
        rng = np.random.default_rng(case)
        n = _clients(subject, case % 5, parity)
        rows = draw(rng, n, far=int(subject.options.get("f", 1)) if case % 2 else 0)
        try:
            _same(subject(rows), subject.golden(rows), max(subject.rule.tolerance, 1e-6), f"case {case}, n={n}")
        except Broken as fault:
            wrong, worst = wrong + 1, worst or str(fault)
    if wrong:
        raise Broken(f"{wrong} of {CASES} cases differ; {worst}")


def odd_n(subject: Subject) -> None:
    _paper(subject, 1)


def even_n(subject: Subject) -> None:
    _paper(subject, 0)


def at_precondition(subject: Subject) -> None:
    n = subject.least
    got = subject(draw(np.random.default_rng(1), n))
    if got.shape != (D,) or not np.isfinite(got).all():
        raise Broken(f"no finite answer at n={n}, where {subject.rule.needs}")


def below_precondition(subject: Subject) -> None:
    n = subject.least - 1
    if n < 1:
        raise NotApplicable("defined from one client on")
    try:
        got = subject(draw(np.random.default_rng(1), n))
    except Broken as fault:
        raise Broken(f"n={n}: {fault}; expected an error, as {subject.rule.needs}") from fault
    except Exception as error:
        if str(n) in str(error):
            return
        raise Broken(f"n={n}: {type(error).__name__} without the numbers: {_line(error)}") from error
    raise Broken(f"n={n}: answered with {got.size} numbers; expected an error, as {subject.rule.needs}")


def buffers(subject: Subject) -> None:
    for case in range(6):
        rng = np.random.default_rng(case)
        rows = draw(rng, _clients(subject))
        try:
            want = subject(layered(rows))
        except Exception as error:
            raise NotApplicable("takes no clients as lists of layers") from error
        counters = rng.integers(1, 100_000, size=len(rows)).tolist()
        got = subject(layered(rows, counters))
        if got.shape != (D + 1,) or not np.isfinite(got[D]):
            raise Broken(f"the counter is not aggregated: {got.size} numbers, expected {D + 1}")
        where = f"n={len(rows)}, counters from {min(counters)} to {max(counters)} change the weights"
        _same(got[:D], want, max(subject.rule.tolerance, 1e-5), where)


def identical(subject: Subject) -> None:
    row = draw(np.random.default_rng(2), 1)
    _same(subject(np.repeat(row, _clients(subject), axis=0)), row[0], subject.rule.tolerance, "equal clients")


def degenerate(subject: Subject) -> None:
    n = _clients(subject)
    for text, row in (("equal clients", draw(np.random.default_rng(2), 1)), ("clients of zeros", np.zeros((1, D)))):
        try:
            got = subject(np.repeat(row, n, axis=0))
        except ValueError:
            continue
        if not np.isfinite(got).all():
            raise Broken(f"{n} {text}: {int((~np.isfinite(got)).sum())} of {D} results are not finite")


def near_agreement(subject: Subject) -> None:
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
    for case in range(4):
        rows = draw(np.random.default_rng(case), _clients(subject)).astype(np.float32)
        rows[case] *= 1e6
        want = subject(rows.astype(np.float64))
        _same(subject(rows), want, max(1e-4, subject.rule.tolerance), f"n={len(rows)}, one client 1e6 times as large")


def _half(subject: Subject, cast: Callable[[Array], Any], name: str) -> None:
    for case in range(4):
        rows = cast(200.0 * draw(np.random.default_rng(case), _clients(subject)))
        exact = np.asarray(torch.as_tensor(rows).double().numpy())
        try:
            got = subject(rows)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise NotApplicable(f"takes no {name}: {_line(error)}") from error
        _same(got, subject(exact), 1e-2, f"n={len(exact)}, values up to {np.abs(exact).max():.0f} in {name}")


def float16(subject: Subject) -> None:
    _half(subject, lambda rows: rows.astype(np.float16), "float16")


def bfloat16(subject: Subject) -> None:
    _half(subject, as_bfloat16, "bfloat16")


def claimed_examples(subject: Subject) -> None:
    if not subject.takes("num_examples"):
        raise NotApplicable("takes no example counts")
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
    rows = draw(np.random.default_rng(5), _clients(subject))
    copy = rows.copy()
    subject.function(rows, **subject.with_size(D))
    if not np.array_equal(rows, copy):
        raise Broken(f"{int((rows != copy).any(axis=1).sum())} of {len(rows)} rows were changed")


def defaults(subject: Subject) -> None:
    if not subject.rule.robust:
        raise NotApplicable("the rule does not promise to withstand a far client")
    given = {key: value for key, value in subject.options.items() if callable(value)}
    plain = Subject(subject.function, subject.rule, subject.name, given)
    for n in range(3, 12):
        rows = np.vstack([draw(np.random.default_rng(n), n - 1), np.full((1, D), 1e6)])
        try:
            got = plain(rows)
        except TypeError as error:
            raise NotApplicable("its options have no defaults") from error
        except ValueError as error:
            if str(n) not in str(error):
                raise Broken(f"n={n}: {_line(error)} does not give the numbers") from error
            continue
        largest = float(np.abs(rows[:-1]).max())
        if not float(np.abs(got).max()) <= 10 * largest:
            raise Broken(f"n={n}: one client at 1e6 makes {np.abs(got).max():.3g} of others up to {largest:.2g}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:100]


FROM_ZERO = {
    "sign": "signs are taken from zero",
    "norm_clipping": "lengths are taken from zero",
    "centered_clipping": "the centre of the first round is zero",
    "fltrust": "angles are taken from zero",
    "foolsgold": "angles are taken from zero",
    "clustered": "angles are taken from zero",
}
OWN_UNIT = {
    "sign": "the length is the server's step",
    "norm_clipping": "the limit has a unit of its own",
    "centered_clipping": "the radius has a unit of its own",
    "fltrust": "the length is that of the root update",
}

LAWS: tuple[Law, ...] = (
    Law(
        "permutation", "The order of the clients does not matter.", permutation,
        {"bucketing": "buckets are drawn by client id, and rows alone have none"}, of_all=True,
    ),
    Law("translation", "Adding a vector to every client adds it to the result.", translation, FROM_ZERO),
    Law("scaling", "Scaling every client by a positive number scales the result.", scaling, OWN_UNIT),
    Law("odd-n", "For odd n the answer is that of a loop written from the paper.", odd_n),
    Law("even-n", "For even n the answer is that of a loop written from the paper.", even_n),
    Law("at-precondition", "With the fewest clients the rule is defined for, it answers.", at_precondition),
    Law("below-precondition", "With one client fewer it raises an error that gives the numbers.", below_precondition),
    Law("nan-client", "A client with NaN does not make the result NaN.", nan_client, of_all=True),
    Law("inf-client", "A client with Inf does not make the result infinite.", inf_client, of_all=True),
    Law(
        "identical", "Clients that all send the same vector get it back.", identical,
        {**OWN_UNIT, "foolsgold": "clients that agree are Sybils to it"},
    ),
    Law("degenerate", "Equal clients and clients of zeros give finite numbers or an error.", degenerate, of_all=True),
    Law("near-agreement", "Clients that agree to 1e-6 in float32 are told apart.", near_agreement, FROM_ZERO),
    Law("far-apart", "One client 1e6 times as large costs no digits of the answer.", far_apart, of_all=True),
    Law("float16", "float16 input gives the answer that the same values give in float64.", float16, of_all=True),
    Law("bfloat16", "bfloat16 input gives the answer that the same values give in float64.", bfloat16, of_all=True),
    Law("buffers", "BatchNorm's counters are aggregated but decide nothing.", buffers, of_all=True),
    Law("claimed-examples", "A client claiming 1e9 examples does not own the result.", claimed_examples, of_all=True),
    Law("input-untouched", "The input is only read.", input_untouched, of_all=True),
    Law("defaults", "At default options one far client is kept out, or the call raises.", defaults),
)  # fmt: skip
