"""The tables and figures of PID-MADE, in the order of the paper."""

from __future__ import annotations

from fedwarden.studies.tables import Results, Sheet

from ..studies.detection import detection, detection_summary, detection_table
from .item import Item, Paper, Sheets
from .pid_made_attackers import FIGURE_4, FIGURE_8
from .pid_made_attackers import SETTINGS_ITEM as SETTINGS
from .pid_made_attackers import TABLE as TABLE_4
from .pid_made_clients import FIGURE_10, FIGURE_11
from .pid_made_convergence import FIGURE_2, FIGURE_3
from .pid_made_text import FIGURE_5
from .pid_made_theory import ITEMS as BOUNDS
from .pid_made_thresholds import EDGE_CASES, THEOREM_5
from .pid_made_times import FIGURE_6, FIGURE_7
from .pid_made_times import TABLE as TABLE_3
from .pid_made_topics import FIGURE_9
from .pid_made_tuning import FIGURE_1


def digits_sheets(found: Results) -> list[Sheet]:
    return [
        Sheet("summary", "Over all numbers of clients", detection_summary(found)),
        Sheet("detail", "By number of clients and of attackers", detection_table(found)),
    ]


def digits_hold(sheets: Sheets) -> str:
    """Recall at full poison and false exclusions, by partition and preset."""
    told = [
        f"{r['preset']}, {r['partition']} {r['100 %']} and {100 * float(r['false exclusion, no attacker']):.0f} %"
        for r in sheets["summary"].records()
    ]
    return (
        "Recall where all labels are flipped, and runs without an attacker in which an honest client is excluded: "
        f"{'; '.join(told)}."
    )


DIGITS = Item(
    "digits", "Recall and false exclusions on digits", "this is not in the paper.", detection, digits_sheets,
    digits_hold, "2,960 runs: 25 minutes on 2 cores", runs="detection", seeds=20,
)  # fmt: skip

WORDS = """\
Every table and figure of Boosting Federated Model Convergence with Anomaly Detection and Exclusion. Its figures have no
numbers; what is quoted stands in its text and tables.

Accuracy and loss are measured on the validation data of *honest clients*, whose labels are right, and in *the authors'
way*: the mean over all clients that are not excluded, poisoned labels included. The latter charges a rule that excludes
no client for the attackers' wrong labels: with one of 8 clients flipped it cannot exceed 87.5 % by much. The paper has
Krum at 98 % on PneumoniaMNIST, so compare its baselines with honest clients.

[Finding label flippers](guard.md) has more on `auto`.
"""

ITEMS = (
    FIGURE_1, FIGURE_2, FIGURE_3, FIGURE_4, FIGURE_5, TABLE_3, FIGURE_6, FIGURE_7, TABLE_4, FIGURE_8, FIGURE_9,
    FIGURE_10, FIGURE_11, *BOUNDS, THEOREM_5, EDGE_CASES, SETTINGS, DIGITS,
)  # fmt: skip
PAPER = Paper(
    "pid-made",
    "PID-MADE: convergence, detection and cost",
    "https://openreview.net/forum?id=6YEW4KMfgF",
    ITEMS,
    WORDS.strip(),
)
