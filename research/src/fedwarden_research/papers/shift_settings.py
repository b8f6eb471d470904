"""Tables 1 to 3 and figures 1 to 4 of the paper on shifts: who takes part, models, parameters, and when sources speak.

Nothing is trained for them but a few rounds on digits for the timeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedwarden.sim.models import build_model
from fedwarden.studies.runner import Cell, Table

from ..studies.tables import Result, Results, Sheet
from .item import Item
from .shifts import SETTINGS, Change, federated, run

MODELS = {  # input, classes, the paper's parameters
    "audit_cnn": ((1, 28, 28), 10, 1.2e6),
    "census_mlp": ((12,), 2, 3.6e3),
}
PUBLISHED: Mapping[str, Mapping[str, str]] = {  # section 5.2 and 5.3
    "mnist": {"r": "20", "s": "11", "d": "6.7K, 4.4K, 2.6K, 1.3K", "n": "2, 3, 5, 10", "m": "1, 1, 1, 3", "l": "2"},
    "fashion_mnist": {
        "r": "40", "s": "21", "d": "6.7K, 4.4K, 2.6K, 1.3K", "n": "2, 3, 5, 10", "m": "1, 1, 1, 3", "l": "2",
    },
    "census": {"r": "100", "s": "51", "d": "3.9K, 2.6K, 1.5K, 0.8K", "n": "2, 3, 5, 10", "m": "1, 1, 1, 3", "l": "2"},
}  # fmt: skip
FIRST = {"weights": 2, "representations": 2, "gradients": 3}  # figure 4: the round in which each is compared
SIZES = ((2, 1), (3, 1), (5, 1), (10, 3))


def fixed(table: Table) -> Result:
    """The result of a run that trains nothing: what it was given."""
    return dict(table)


def drawing(name: str, title: str, claim: str, where: Mapping[str, str]) -> Item:
    """A drawing or a definition without numbers: its parts, and where each is here."""

    def cells(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
        return [({"drawn": name}, {"parts": len(where)})]

    def sheets(found: Results) -> list[Sheet]:
        return [Sheet("parts", "Where its parts are here", (["in the paper", "here"], list(map(list, where.items()))))]

    def holds(made: Mapping[str, Sheet]) -> str:
        return "The table names its parts in this package."

    return Item(name, title, claim, cells, sheets, holds, "nothing is run", run=fixed, runs="drawn", seeds=1)


def models(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    return [({"model": name}, {"model": name}) for name in MODELS]


def count(table: Table) -> Result:
    """The number of parameters of a model, and those of each layer."""
    shape, classes, _ = MODELS[table["model"]]
    model = build_model(table["model"], {}, shape, classes, 0)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    return {"parameters": sum(sizes.values()), "layers": [n for n in sizes if n.endswith("weight")]}


def models_sheets(found: Results) -> list[Sheet]:
    rows = []
    for r in found:
        name, (shape, _, published) = r["cell"]["model"], MODELS[r["cell"]["model"]]
        inputs = " x ".join(map(str, shape))
        rows.append([name, inputs, str(len(r["result"]["layers"])), f"{published:g}", str(r["result"]["parameters"])])
    return [Sheet("models", "Layers and parameters", (["model", "inputs", "layers", "the paper", "here"], rows))]


def models_hold(made: Mapping[str, Sheet]) -> str:
    rows = made["models"].records()
    alike = [r for r in rows if f"{float(r['here']):.1e}" == f"{float(r['the paper']):.1e}"]
    return f"{len(alike)} of {len(rows)} models have the paper's number of parameters to its two digits."


def parameters(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    found: list[tuple[Cell, Table]] = []
    for data in PUBLISHED:
        setting = SETTINGS[data]
        train = setting.scenario(2, 1, 0)["train"]
        ours = {
            "r": str(setting.rounds), "s": str(setting.start),
            "d": ", ".join(f"{setting.sizes[n] / 1000:.1f}K" for n, _ in SIZES),
            "n": ", ".join(str(n) for n, _ in SIZES), "m": ", ".join(str(m) for _, m in SIZES),
            "l": str(train["epochs"]),
        }  # fmt: skip
        found.append(({"data": data}, ours))
    return found


def parameters_sheets(found: Results) -> list[Sheet]:
    rows = [
        [r["cell"]["data"], key, published, r["result"][key]]
        for r in found
        for key, published in PUBLISHED[r["cell"]["data"]].items()
    ]
    return [Sheet("parameters", "Parameters of the federated runs", (["data", "parameter", "the paper", "here"], rows))]


def parameters_hold(made: Mapping[str, Sheet]) -> str:
    rows = made["parameters"].records()
    return f"{sum(r['the paper'] == r['here'] for r in rows)} of {len(rows)} parameters are the paper's."


def timeline(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    """Six rounds on digits, two clients."""
    found: list[tuple[Cell, Table]] = []
    for cell, job in federated(seeds, device, SETTINGS["digits"], severities=(0.8,), partial=False):
        table = {**job, "start": 6, "scenario": {**job["scenario"], "rounds": 6}, "branches": {Change("no change"): []}}
        found.append(({**cell, "rounds": 6}, table))
    return found


def timeline_sheets(found: Results) -> list[Sheet]:
    rows = []
    for source, published in FIRST.items():
        first = {int(r["result"]["before"]["readings"][f"{source}/cosine/"][0][0]) for r in found}
        rows.append([source, str(published), ", ".join(map(str, sorted(first)))])
    return [Sheet("rounds", "The first round in which a source is compared", (["source", "the paper", "here"], rows))]


def timeline_holds(made: Mapping[str, Sheet]) -> str:
    rows = made["rounds"].records()
    return (
        f"{sum(r['the paper'] == r['here'] for r in rows)} of {len(rows)} sources speak from the paper's round on; a "
        "trend needs two values more. Rounds count the clients' training here, so the paper's delay of one round does "
        "not arise."
    )


ITEMS = (
    drawing(
        "figure-1", "The attack", "one client infers from the shared model that another's data shifted.",
        {
            "honest but curious client": "the observer of `sim.branches`, `audit.auditor.Auditor` live",
            "target that swaps its data": "`label_shift` and `fresh_samples` of `attacks.shift`",
            "evaluation that shows nothing": "the source `validation` of every figure below",
        },
    ),
    drawing(
        "figure-2", "The scenario", "a new product changes the share of defects that a manufacturer sees.",
        {"clients with the same task": "the partition `parity`", "shift of the labels": "`label_shift`, even to odd"},
    ),
    drawing(
        "figure-3", "What an attacker can see", "weights, representations and gradients of the shared model.",
        {
            "global and local weights": "`audit.information.remove_own`",
            "internal representations": "`audit.information.representations`",
            "gradients": "the difference of two targets, `audit.information.Information.step`",
        },
    ),
    Item(
        "figure-4", "When each source speaks",
        "weights and representations are compared from round 2 on, gradients from round 3 on; a shift shows one round "
        "late.",
        timeline, timeline_sheets, timeline_holds, "seconds on 2 cores", dict(FIRST), run=run,
        runs="timeline", seeds=1,
    ),
    drawing(
        "table-1", "Industrial federated learning",
        "few, powerful and stable clients with many samples, which compete with each other.",
        {
            "few clients": "2 to 10 in every study below", "many samples": "1,300 to 6,700 each (Census 800 to 3,900)",
            "stability": "all clients take part in every round", "competing clients": "the observer is one of them",
        },
    ),
    Item(
        "table-2", "Models", "a CNN of 1.2M parameters for MNIST and Fashion-MNIST, an MLP of 3.6K for Census.", models,
        models_sheets, models_hold, "nothing is run", {name: f"{d:g}" for name, (_, _, d) in MODELS.items()},
        chosen=(
            "a max-pooling of 2 before the CNN's first linear layer, without which it would have 4.7M parameters",
            "which 12 inputs the MLP has, a number that its 3.6K parameters imply: all columns but the survey "
            "weight and the name of the education, categories as numbers, all standardised",
        ),
        run=count, runs="models", seeds=1,
    ),
    Item(
        "table-3", "Parameters of the runs",
        "rounds r, shift in round s, d samples, n clients of which m shift, l epochs.",
        parameters, parameters_sheets, parameters_hold, "nothing is run",
        chosen=(
            "batches of 32", "Adam 1e-4, stated for the centralised model, in the federations too",
            "a probe of 128 test samples", "a trend over e = 5 rounds", "2,000 test samples for the validation loss",
        ),
        run=fixed, runs="parameters", seeds=1,
    ),
)  # fmt: skip
