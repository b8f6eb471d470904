"""What a law is, and what becomes of it when it is pointed at something."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Status = Literal["kept", "broken", "excused", "cannot tell"]


class Broken(Exception):
    """A law is not kept; the message says what was expected and what was got."""


class CannotTell(Exception):
    """A law has no power over this subject; the message gives the reason."""


@dataclass(frozen=True)
class Law:
    """A function that raises :class:`Broken` where its subject breaks the law; its docstring says the law."""

    check: Callable[[Any], None]

    @property
    def name(self) -> str:
        """The function's name with hyphens."""
        return self.check.__name__.replace("_", "-")

    @property
    def says(self) -> str:
        """The law in a sentence."""
        return " ".join((inspect.getdoc(self.check) or "").partition("\n\n")[0].split())


def laws(*checks: Callable[[Any], None]) -> tuple[Law, ...]:
    """The laws that some functions check."""
    return tuple(map(Law, checks))


@dataclass(frozen=True)
class Finding:
    """What became of one law, and the numbers or the reason."""

    law: str
    status: Status
    note: str = ""


@dataclass(frozen=True)
class Report:
    """What became of the laws of a kind when they were pointed at one component."""

    kind: str
    name: str
    findings: tuple[Finding, ...]

    @property
    def kept(self) -> tuple[str, ...]:
        """The laws that hold."""
        return tuple(self._with("kept"))

    @property
    def broken(self) -> Mapping[str, str]:
        """The laws that do not hold, with what was expected and got."""
        return self._with("broken")

    @property
    def excused(self) -> Mapping[str, str]:
        """The laws that the component declares not to keep, with its reasons."""
        return self._with("excused")

    @property
    def cannot_tell(self) -> Mapping[str, str]:
        """The laws that have no power over the component, with the reason."""
        return self._with("cannot tell")

    def __str__(self) -> str:
        return f"{self.kind} {self.name}\n{table(self.findings)}"

    def _with(self, status: Status) -> dict[str, str]:
        return {finding.law: finding.note for finding in self.findings if finding.status == status}


def examine(subject: object, law: Law, exempt: Mapping[str, str] | None = None) -> Finding:
    """Point one law at a subject, unless it is exempt."""
    if exempt and law.name in exempt:
        return Finding(law.name, "excused", exempt[law.name])
    try:
        with np.errstate(all="ignore"):
            law.check(subject)
    except CannotTell as reason:
        return Finding(law.name, "cannot tell", str(reason))
    except Broken as fault:
        return Finding(law.name, "broken", str(fault))
    except Exception as error:
        return Finding(law.name, "broken", f"raised {type(error).__name__}: {line(error)}")
    return Finding(law.name, "kept")


def table(findings: Sequence[Finding]) -> str:
    """The findings, one a line, and a line that counts them."""
    width = max(len(f.law) for f in findings)
    lines = [f"  {f.law.ljust(width)}  {f.status.ljust(11)}  {f.note}".rstrip() for f in findings]
    statuses: tuple[Status, ...] = ("kept", "broken", "excused")
    counts = [f"{sum(f.status == status for f in findings)} {status}" for status in statuses]
    unknown = sum(f.status == "cannot tell" for f in findings)
    return "\n".join([*lines, ", ".join([*counts, f"of {unknown} it cannot tell"])])


def require(condition: object, message: str) -> None:
    """Raise where a condition that a law sets does not hold."""
    if not condition:
        raise Broken(message)


def same(got: ArrayLike, want: ArrayLike, tolerance: float, where: str) -> None:
    """Raise where two answers differ by more than ``tolerance`` times the size of what was expected."""
    a, b = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
    if a.shape != b.shape:
        raise Broken(f"{where}: {a.size} numbers, expected {b.size}")
    if not np.isfinite(a).all():
        raise Broken(f"{where}: {int((~np.isfinite(a)).sum())} of {a.size} numbers are not finite")
    off, unit = float(np.abs(a - b).max(initial=0.0)), float(np.abs(b).max(initial=0.0))
    if off > tolerance * max(unit, 1e-30):
        raise Broken(f"{where}: off by {off:.3g}, values up to {unit:.3g}")


def line(error: BaseException) -> str:
    """The beginning of an error's message, on one line."""
    return " ".join(str(error).split())[:100]
