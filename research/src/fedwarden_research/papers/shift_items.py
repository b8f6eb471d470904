"""The tables and figures of the paper on shifts, and the studies beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedwarden.studies.runner import Cell, Table

from ..studies.tables import Results, Sheet
from .item import Item, Paper, Sheets, by_data
from .shift_audits import AUDITS, Audit
from .shift_beyond import active, active_holds, active_sheets, larger, larger_holds, larger_sheets, run_active
from .shift_figures import (
    OF_FIGURE,
    TREND,
    centralised_holds,
    centralised_sheets,
    layers_hold,
    layers_sheets,
    scalability_holds,
    scalability_sheets,
    sensitivity_holds,
    sensitivity_sheets,
)
from .shift_pictures import ROUNDS, Picture, diagonal, over_layer_rounds, over_rounds_by_clients
from .shift_settings import ITEMS as STATED
from .shift_tables import name, scores, severities
from .shifts import FRESH, SETTINGS, VALIDATION, Change, centralised, federated, ratio, run, scalability

TITLES = {
    "centralised": "One model, watched from outside",
    "layers": "Layer by layer, in a federation",
    "sensitivity": "Two clients, every ratio, by AUROC",
    "many": "Every ratio among five and ten clients",
    "outputs": "What each source sees, and when the auditor raises an alarm",
    "scalability": "Two to ten clients, by AUROC",
    "mitigations": "What hides a shift, and what that costs",
}
USUAL = "digits"
CNN = "minutes on a GPU"
CELLS = Callable[[Sequence[int], str], list[tuple[Cell, Table]]]


def on(data: Sequence[str], study: Callable[..., list[tuple[Cell, Table]]]) -> CELLS:
    """The cells of a study on some data sets."""
    return lambda seeds, device: [
        ({"data": d, **cell}, table) for d in data for cell, table in study(seeds, device, SETTINGS[d])
    ]


def draw(picture: Picture, title: str) -> Callable[[Results, Path, str], list[Path]]:
    return lambda found, folder, stem: [picture(found, folder / f"{stem}.svg", title)]


def draw_diagonal(found: Results, folder: Path, stem: str) -> list[Path]:
    """Figure 7: the departure of the paper's source over that of the validation loss, for every ratio."""
    points = {}
    for data, part in by_data(found).items():
        figure, key = OF_FIGURE[data]
        seen = {ratio(e): Change("fresh", e) for e in severities(part)} | {FRESH: Change(FRESH)}
        points[f"{figure}: {data}, {name(key)}"] = {
            label: (float(scores(part, c, VALIDATION).mean()), float(scores(part, c, key).mean()))
            for label, c in seen.items()
        }
    return [diagonal(folder / f"{stem}.svg", points, "Departure of a source and of the validation loss")]


def scaling(number: int, data: str, last: int, at: int, to: str) -> Item:
    """Figures 8 to 10."""
    key = TREND[data]
    return Item(
        f"figure-{number}", f"Two to ten clients on {data}, to round {last}",
        f"with 2, 3, 5 and 10 clients {name(key).replace(', ', ' by ')} show a shift to {to} in round {at}; the "
        "validation loss does not.",
        on([data], scalability), scalability_sheets, scalability_holds,
        "8 minutes on 16 cores" if data == "census" else CNN, {"round of the shift": at, "rounds": last, "ratio": to},
        run=run, pictures=draw(
            Picture(over_rounds_by_clients(key), "round", "value", columns=4), f"Figure {number}, {data}"
        ),
        runs="scalability", device="cpu" if data == "census" else "cuda",
    )  # fmt: skip


FIGURES = (
    Item(
        "figure-5", "One model, watched from outside",
        "all nine sources show a shift of 6.7K samples to 80-20 in epoch 11 of 20, in three runs; the validation loss "
        "does not.",
        on(["mnist"], centralised), centralised_sheets, centralised_holds, CNN,
        {"epochs": 20, "shift in": 11, "samples": "6.7K", "ratio": "80-20", "runs": 3},
        chosen=(
            "`procrustes` centres and scales both sides and lies in [0, 2]; the paper's equation 2 does neither, and "
            "[0, 1], as the text has it, cannot be its range: that equation to the letter is `procrustes_literal`",
        ),
        run=run, pictures=draw(ROUNDS, "Figure 5, mnist"), runs="centralised", device="cuda",
    ),
    Item(
        "figure-6", "The same by layer, cosine",
        "earlier layers of weights and representations react less; no layer is to be preferred to the whole model.",
        on(["mnist"], centralised), layers_sheets, layers_hold, "the runs of figure 5", run=run,
        chosen=("the range by which a curve is normalised: its own, over all epochs",),
        pictures=draw(
            Picture(over_layer_rounds, "epoch", "normalised 1 - cosine", columns=3, log=False), "Figure 6, mnist"
        ),
        runs="centralised", device="cuda",
    ),
    Item(
        "figure-7", "Sensitivity: a source against the validation loss",
        "subtle shifts show in the source before the loss on MNIST and Fashion-MNIST, without measuring the severity; "
        "on Census the departure is linear in it, and the loss sees something too.",
        on(list(OF_FIGURE), federated), sensitivity_sheets, sensitivity_holds,
        "minutes on a GPU; Census: 2 on 16 cores",
        {figure: name(key) for figure, key in OF_FIGURE.values()},
        chosen=(
            "the ratios 55-45 to 100-0", "departures relative to the expected value",
            "runs end with the round of the shift, the only one that the figure shows",
            "on Census a ratio multiplies the odds of its 76-24",
        ),
        run=run, pictures=draw_diagonal, runs="sensitivity", device="cuda",
    ),
    scaling(8, "mnist", 20, 11, "70-30"),
    scaling(9, "fashion_mnist", 40, 21, "70-30"),
    scaling(10, "census", 100, 51, "60-40"),
)  # fmt: skip

BEYOND = (
    Item(
        "larger", "A larger architecture: ResNet-18", "larger architectures are left to future work.",
        on(["cifar10"], larger), larger_sheets, larger_holds, "a minute a seed on a GPU",
        chosen=("CIFAR-10, 4,000 samples to each of two clients, 70-30 and 90-10 in round 11", "a probe of 64"),
        run=run, runs="larger", device="cuda",
    ),
    Item(
        "active", "An attacker that manipulates what it sends", "an active attacker is left to future work.",
        on(["digits", "mnist"], active), active_sheets, active_holds, "3 minutes on 2 cores (digits)",
        chosen=(
            "what it does: nothing, sending its update times 0 (*silent*), -0.5 (*half reversed*) or -1 (*reversed*), "
            "which keeps the model from learning so that the others' updates stay large",
            "digits, two clients, 60-40 in round 11",
        ),
        run=run_active, runs="active", seeds=8, rarely=("mnist",),
    ),
)  # fmt: skip


def study(name: str, audit: Audit) -> Item:
    """A study of leakage that goes beyond the paper, on each data set; by default on digits."""

    def sheets(found: Results) -> list[Sheet]:
        return [
            Sheet(f"{data}-{sheet.name}", f"{sheet.title}, {data}", sheet.grid)
            for data, part in by_data(found).items()
            for of in audit.tables
            for sheet in of(part)
        ]

    def pictures(found: Results, folder: Path, stem: str) -> list[Path]:
        draw = audit.picture
        if draw is None:
            return []
        parts = by_data(found).items()
        return [draw(part, folder / f"{stem}-{data}.svg", f"{stem}, {data}") for data, part in parts]

    return Item(
        name, TITLES[name], "does not have this.",
        on(list(SETTINGS), audit.cells), sheets, told, "minutes on 2 cores; hours or a GPU on the paper's data",
        run=audit.run, pictures=pictures, runs=audit.runs, seeds=10, rarely=tuple(d for d in SETTINGS if d != USUAL),
    )  # fmt: skip


def told(sheets: Sheets) -> str:
    known = [[d for d in SETTINGS if name.startswith(f"{d}-")] for name in sheets]
    data = dict.fromkeys(max(names, key=len) for names in known if names)
    return f"On {', '.join(data)}; [the longer study](audit.md) has the paper's data and models."


PAPER = Paper(
    "shifts",
    "Shifts of the data as a privacy issue",
    "https://arxiv.org/abs/2409.13875",
    (*STATED, *FIGURES, *BEYOND, *(study(name.removeprefix("audit-"), audit) for name, audit in AUDITS.items())),
    "Every table and figure of Brunner and Montuoro. Its figures come without values, so its claims and the settings "
    "that it states are compared. A source *tells* a shift from a null where its "
    "departures lie above those of the null by a one-sided rank test at 5 %; three seeds reach that only where all of "
    "them are on one side, and of 20 sources that see nothing one does. *No change*, and *fresh swap*, all samples "
    "exchanged for others of the same distribution, "
    "are [nulls](../audit.md#the-confound-and-the-nulls) that the paper does not have.",
)
