"""Which laws Flower, ByzFL and fedwarden keep: the tables of docs/results/conformance.md.

Needs the environment of `make peers`: ``.venv-peers/bin/python benchmarks/conformance_table.py``.
"""

from __future__ import annotations

from importlib.metadata import version

import peers
import torch
from common import say, show

from fedwarden.conformance.law import Finding, examine
from fedwarden.conformance.laws import LAWS
from fedwarden.conformance.subject import Function, registered
from fedwarden.core.registry import exemptions
from fedwarden_research.conformance.rules import RULES, subject_of

LIBRARIES = {"flower": f"Flower {version('flwr')}", "byzfl": f"ByzFL {version('byzfl')}"}
CELLS = {"kept": "kept", "broken": "**broken**", "excused": "-", "cannot tell": "-"}


def findings(function: Function, rule: str) -> list[Finding]:
    say(f"{function.__name__} as {rule}")
    subject, exempt = subject_of(function, rule), exemptions("aggregator", rule)
    return [examine(subject, law, exempt) for law in LAWS]


def table(title: str, columns: dict[str, list[Finding]]) -> None:
    rows = [[law.name, *(CELLS[found[i].status] for found in columns.values())] for i, law in enumerate(LAWS)]
    count = ["broken of applicable"]
    for found in columns.values():
        count.append(f"{sum(f.status == 'broken' for f in found)} of {sum(CELLS[f.status] != '-' for f in found)}")
    show(title, ["law", *columns], [*rows, count])


def main() -> None:
    torch.set_num_threads(1)
    for prefix, title in LIBRARIES.items():
        known = {rule: getattr(peers, f"{prefix}_{rule}") for rule in RULES if hasattr(peers, f"{prefix}_{rule}")}
        columns = {rule: findings(function, rule) for rule, function in known.items()}
        table(title, columns)
        broken = [[rule, f.law, f.note] for rule, found in columns.items() for f in found if f.status == "broken"]
        show(f"{title}: the numbers", ["rule", "broken law", "what was seen"], broken)
    table(f"fedwarden {version('fedwarden')}", {rule: findings(registered(rule), rule) for rule in RULES})


if __name__ == "__main__":
    main()
