"""The tables and figures of PID-MADE, in the order of the paper."""

from __future__ import annotations

from ..studies.detection import detection, detection_summary, detection_table
from ..studies.tables import Results, Sheet
from .item import Item, Paper, Sheets
from .pid_made_attackers import FIGURE_4, FIGURE_8, SETTINGS_ITEM, TABLE
from .pid_made_clients import FIGURE_10, FIGURE_11
from .pid_made_convergence import FIGURE_2, FIGURE_3
from .pid_made_text import FIGURE_5
from .pid_made_topics import FIGURE_9


def digits_sheets(found: Results) -> list[Sheet]:
    return [
        Sheet("summary", "Over all numbers of clients", detection_summary(found)),
        Sheet("detail", "By number of clients and of attackers", detection_table(found)),
    ]


def digits_hold(sheets: Sheets) -> str:
    """Recall at full poison and false exclusions, by partition and preset."""
    told = [
        f"{r['preset']}, {r['partition']}: recall {r['100 %']} where all labels are flipped, an honest client "
        f"excluded in {100 * float(r['false exclusion, no attacker']):.0f} % of the runs without an attacker"
        for r in sheets["summary"].records()
    ]
    return "; ".join(told) + "."


DIGITS = Item(
    "digits", "Recall and false exclusions on digits", "this is not in the paper.", detection, digits_sheets,
    digits_hold,    "2,960 runs: 25 minutes on 2 cores", runs="detection", seeds=20,
)  # fmt: skip

PAPER = Paper(
    "pid-made",
    "PID-MADE: convergence, detection and cost",
    "https://openreview.net/forum?id=6YEW4KMfgF",
    (FIGURE_2, FIGURE_3, FIGURE_4, FIGURE_5, TABLE, FIGURE_8, FIGURE_9, FIGURE_10, FIGURE_11, SETTINGS_ITEM, DIGITS),
    "Boosting Federated Model Convergence with Anomaly Detection and Exclusion: every table and figure of the "
    "paper, what it says and what was found here. Its figures are drawings without numbers; what is quoted stands "
    "in its text and tables.\n\nAccuracy and loss are measured in two ways. *Honest clients*: on the validation "
    "data of honest clients, whose labels are right. *The authors' way*: the mean over the validation data of all "
    "clients that are not excluded, poisoned labels included. There a rule that excludes nobody is charged for the "
    "wrong labels of the attackers, however good its model is.",
)
