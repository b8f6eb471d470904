"""The rules that the suite knows: the loop of each, and what the laws call it with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedwarden.conformance.law import Array
from fedwarden.conformance.subject import UNKNOWN, Function, Rule, Subject

from . import golden, newer


def _then(rows: Array, f: int, then: str) -> Array:
    return golden.nearest_neighbour_mixing(rows, f, RULES[then].golden or golden.mean)


def _clipped(rows: Array, f: int, then: str) -> Array:
    return golden.arc(rows, f, RULES[then].golden or golden.mean)


RULES: Mapping[str, Rule] = {
    "mean": Rule(golden.mean),
    "median": Rule(golden.median),
    "trimmed_mean": Rule(golden.trimmed_mean, {"b": 2}, lambda o: 2 * o["b"] + 1, "n > 2b"),
    "krum": Rule(golden.krum, {"f": 2}, lambda o: 2 * o["f"] + 3, "n >= 2f + 3"),
    "multi_krum": Rule(golden.multi_krum, {"f": 2, "m": 3}, lambda o: 2 * o["f"] + 3, "n >= 2f + 3"),
    "bulyan": Rule(golden.bulyan, {"f": 3}, lambda o: 4 * o["f"] + 3, "n >= 4f + 3"),
    "geometric_median": Rule(golden.geometric_median, tolerance=1e-3),
    "sign": Rule(golden.sign, {"step_size": 0.5}),
    "norm_clipping": Rule(golden.norm_clipping, {"limit": 5.0}),
    "centered_clipping": Rule(golden.centered_clipping, {"limit": 5.0, "steps": 3}),
    "fltrust": Rule(golden.fltrust, {"root": lambda d: np.random.default_rng(7).normal(1.0, 1.0, size=d)}),
    "foolsgold": Rule(golden.foolsgold),
    "clustered": Rule(golden.clustered, least=lambda o: 3, needs="n >= 3"),
    "nearest_neighbour_mixing": Rule(_then, {"f": 2, "then": "median"}, lambda o: 2 * o["f"] + 1, "n > 2f"),
    "arc": Rule(_clipped, {"f": 2, "then": "median"}, lambda o: 2 * o["f"] + 1, "n > 2f"),
    "foundationfl": Rule(
        newer.foundationfl, {"m": 2, "b": 3}, lambda o: max(3, 2 * o["b"] - o["m"] + 1), "n >= 3 and n + m > 2b"
    ),
    "flame": Rule(newer.flame, {"noise": 0.0}, lambda o: 2, "n >= 2"),
    "alignins": Rule(newer.alignins, {"share": 0.5, "angle": 1.0, "signs": 1.2}, lambda o: 3, "n >= 3"),
    "lfighter": Rule(newer.lfighter, {"classes": 3, "features": 4}, lambda o: 3, "n >= 3"),
    "caf": Rule(newer.caf, {"f": 2}, lambda o: 2 * o["f"] + 1, "n > 2f"),
    "smea": Rule(newer.smea, {"f": 2}, lambda o: 2 * o["f"] + 1, "n > 2f"),
    "dnc": Rule(newer.dnc, {"f": 2}, lambda o: 2 * o["f"] + 1, "n > 2f"),
}


def subject_of(function: Function, name: str, registered: bool = False, **options: Any) -> Subject:
    """The function as the rule of that name; options replace those that the laws would use."""
    rule = RULES.get(name, UNKNOWN)
    return Subject(function, rule, name, {**rule.options, **options}, registered)
