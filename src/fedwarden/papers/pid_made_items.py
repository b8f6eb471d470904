"""The tables and figures of PID-MADE."""

from __future__ import annotations

from ..studies.detection import detection, detection_summary, detection_table
from ..studies.tables import Results, Sheet
from .item import Item, Paper, Sheets
from .pid_made import published, published_table


def digits(found: Results) -> list[Sheet]:
    return [
        Sheet("summary", "Over all numbers of clients", detection_summary(found)),
        Sheet("detail", "By number of clients and of attackers", detection_table(found)),
    ]


def told(sheets: Sheets) -> str:
    return "the page on [finding label flippers](guard.md) says what was found."


PAPER = Paper(
    "pid-made",
    "PID-MADE: convergence, detection and cost",
    "https://openreview.net/forum?id=6YEW4KMfgF",
    (
        Item(
            "settings", "Label flippers in the paper's settings, few and many",
            "anomalous clients are found without knowing their number as long as most are honest.", published,
            lambda found: [Sheet("settings", "Who was excluded", published_table(found))], told,
            "half an hour on 2 cores", runs="published",
        ),
        Item(
            "digits", "Recall and false exclusions on digits", "not in the paper.", detection, digits, told,
            "25 minutes on 2 cores", runs="detection", seeds=20,
        ),
    ),
)  # fmt: skip
