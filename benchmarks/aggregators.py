"""How long every aggregation rule takes, beside Flower, ByzFL and one read of the same memory.

    make peers                                              an environment with the peers
    .venv-peers/bin/python benchmarks/aggregators.py        about fifteen minutes
    .venv-peers/bin/python benchmarks/aggregators.py --quick

Prints Markdown. All get the same rows, n times d of float32. Flower's strategies get them as the arrays of their
replies, made before the clock starts; ByzFL and fedwarden as a tensor and as an array, of which the faster counts. All
take turns; a ratio is the median over the turns, and that of the fastest calls is shown beside it. Without the peers
only our own rules are timed.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from common import at_least, fastest_read, machine, say, seconds, show

import fedwarden as fw

PATIENCE = 12.0  # seconds after which a call of a peer is not repeated
QUICK = 0.05  # seconds below which calls are made five times as often


@dataclass(frozen=True)
class Rule:
    """One rule with its options, its peers' names and how many times faster than the fastest of them it should be."""

    name: str
    options: Callable[[int], dict[str, Any]]
    peers: tuple[str, ...] = ()
    bar: float = 1.0


RULES = (
    Rule("mean", lambda n: {}, ("flower_mean", "byzfl_mean")),
    Rule("median", lambda n: {}, ("flower_median", "byzfl_median")),
    Rule("trimmed_mean", lambda n: {"b": n // 5}, ("flower_trimmed_mean", "byzfl_trimmed_mean")),
    Rule("krum", lambda n: {"f": n // 5}, ("flower_krum", "byzfl_krum"), 3.0),
    Rule("multi_krum", lambda n: {"f": n // 5, "m": n - n // 5}, ("flower_multi_krum", "byzfl_multi_krum"), 3.0),
    Rule("bulyan", lambda n: {"f": n // 5}, ("flower_bulyan",), 3.0),
    Rule("geometric_median", lambda n: {}, ("byzfl_geometric_median",), 3.0),
    Rule("norm_clipping", lambda n: {"limit": 100.0}, ("byzfl_norm_clipping",)),
    Rule("centered_clipping", lambda n: {"limit": 100.0, "steps": 1}, ("byzfl_centered_clipping",)),
    Rule("nearest_neighbour_mixing", lambda n: {"f": n // 5, "then": "median"}, ("byzfl_nearest_neighbour_mixing",)),
    *(Rule(name, lambda n: {}) for name in ("bucketing", "foolsgold", "clustered", "sign", "flanders")),
)


def peer_calls(
    names: tuple[str, ...], rows: torch.Tensor, options: dict[str, Any]
) -> dict[str, list[Callable[[], Any]]]:
    """Each peer's ways of doing the same: (name, calls of which the fastest counts)."""
    if find_spec("flwr") is None or find_spec("byzfl") is None:
        return {}
    peers: Any = import_module("peers")
    calls: dict[str, list[Callable[[], Any]]] = {}
    for name in names:
        function, forms = getattr(peers, name), [rows.numpy()]
        if name.startswith("byzfl"):
            forms.insert(0, rows)
        calls[name] = [lambda f=function, x=x: f(x, **options) for x in forms]
    return calls


def make_rows(n: int, d: int) -> torch.Tensor:
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return rows.mul_(torch.linspace(0.8, 1.2, n)[:, None])


def in_fresh_process(rule: Rule, n: int, d: int, repeats: int) -> list[Any]:
    """One row of the table; where a peer fails, or takes the process down with it, ours alone."""
    command = [sys.executable, __file__, "--repeats", str(repeats), "--child", rule.name, str(n), str(d)]
    for peers in ("with", "without"):
        done = subprocess.run([*command, peers], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0:
            row: list[Any] = json.loads(done.stdout.splitlines()[-1])
            return row if peers == "with" else [*row[:-1], "a peer failed"]
        say(f"{rule.name} {peers} its peers ended with {done.returncode}")
    raise SystemExit(f"{rule.name} could not be timed at n = {n}, d = {d:,}; is there enough memory?")


def time_rule(rule: Rule, rows: torch.Tensor, repeats: int) -> list[Any]:
    n, d = rows.shape
    options = rule.options(n)
    fw.aggregate(rule.name, rows, **options)  # compiles
    forms = [lambda x=x: fw.aggregate(rule.name, x, **options) for x in (rows, rows.numpy())]
    calls = {"floor": [fastest_read(rows)[1]], "ours": forms, **peer_calls(rule.peers, rows, options)}
    took: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(5 * repeats):
        for name, ways in calls.items():
            if turn < repeats or min(took[name]) < QUICK:
                times = [(seconds(way), way) for way in ways]
                took[name] += [min(time for time, _ in times)] if times else []
                calls[name] = [way for time, way in times if time < PATIENCE]
    ours = took["ours"]
    beside = [compare(took, library, ours) for library in ("flower", "byzfl")]
    best = min((times for name, times in took.items() if name in rule.peers), key=median, default=None)
    bar = "-" if best is None else at_least(ratio(best, ours), rule.bar, " times")
    return [n, f"{d:,}", rule.name, f"{1e3 * median(ours):.1f}", f"{ratio(ours, took['floor']):.1f}", *beside, bar]


def ratio(of: list[float], to: list[float]) -> float:
    """The median over the turns that both took."""
    return median(a / b for a, b in zip(of, to, strict=False))


def compare(took: dict[str, list[float]], library: str, ours: list[float]) -> str:
    """How many times as long a library takes, and in brackets by the fastest calls."""
    found = [times for name, times in took.items() if name.startswith(library)]
    return f"{ratio(found[0], ours):.2f} ({min(found[0]) / min(ours):.2f})" if found else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smaller size alone")
    parser.add_argument("--large", action="store_true", help="the larger size alone")
    parser.add_argument("--rule", action="append", help="only this rule; may be repeated")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", nargs=4, metavar=("RULE", "N", "D", "PEERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.child:
        name, n, d, peers = options.child
        rule = next(r for r in RULES if r.name == name)
        rule = rule if peers == "with" else replace(rule, peers=())
        return print(json.dumps(time_rule(rule, make_rows(int(n), int(d)), options.repeats)))
    sizes = [(20, 1_199_882)] * (not options.large) + [(50, 11_173_962)] * (not options.quick)
    print(f"{machine()}, {torch.get_num_threads()} threads\n")
    table = []
    for n, d in sizes:
        for rule in RULES:
            if not options.rule or rule.name in options.rule:
                say(f"{rule.name}: n = {n}, d = {d:,}")
                table.append(in_fresh_process(rule, n, d, options.repeats))
                say(" | ".join(map(str, table[-1])))  # a long benchmark may be cut off
    show(
        "Time of one aggregation",
        ("n", "d", "rule", "ours, ms", "times one read", "Flower, times ours", "ByzFL, times ours", "bar"),
        table,
        f"Medians over {options.repeats} turns (five times as many of calls below {1e3 * QUICK:.0f} ms) and, "
        f"in brackets, by the fastest calls; a peer's call of more than {PATIENCE:.0f} s is made once. "
        "One read: the fastest of `torch.sum(dim=0)`, `ones @ x` and a compiled sum. "
        "Ours checks every row for NaN and Inf first; the peers do not.",
    )
    return None


if __name__ == "__main__":
    main()
