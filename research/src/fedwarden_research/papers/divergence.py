"""Does the watch see a client whose data changed? Geometric divergence and the other signals, without exclusion.

``watch``: one corrupted client among ten on Fashion-MNIST with an MLP or on CIFAR-10 with a ResNet-18, and none at
three degrees of heterogeneity; the settings of arXiv 2605.22266 where it gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwarden.core.separation import auroc as separation
from fedwarden.core.types import RoundRecord, WatchRecord
from fedwarden.studies.runner import Cell, Table, played

from ..studies.pictures import curves
from ..studies.tables import Grid, Result, Results, columns, interval, select

CLIENTS = 10
ALPHAS = (100.0, 1.0, 0.1)
SETTINGS: Mapping[str, Table] = {
    "fashion_mnist": {"rounds": 20, "model": {"name": "mlp", "hidden": [128, 128]}, "train": {"group": 10}},
    "cifar10": {"rounds": 24, "model": {"name": "resnet18"}, "train": {}},
    "cifar10-whole": {
        "rounds": 24, "model": {"name": "resnet18"}, "train": {}, "dataset": "cifar10_whole",
    },
}  # fmt: skip
CORRUPTIONS: Mapping[str, Table] = {
    "noise": {"name": "feature_noise", "snr": 0.0},
    "rotation": {"name": "rotation", "angle": 90.0},
    "blur": {"name": "blur", "sigma": 3.0},
    "mixture": {"name": "corruption", "snr": 0.0, "angle": 90.0, "sigma": 3.0},
}
WATCHES = ("divergence", "relative_distance", "direction", "update_norm", "probe_loss", "ensemble")

Array = NDArray[np.float64]


def scenario(
    corruption: str, alpha: float, seed: int, device: str = "cpu", data: str = "fashion_mnist", reserve: int = 128
) -> Table:
    """Ten clients at a Dirichlet partition, the first of them corrupted or none."""
    setting = SETTINGS[data]
    return {
        "seed": seed,
        "rounds": setting["rounds"],
        "checkpoint_every": setting["rounds"],
        "data": {
            "dataset": setting.get("dataset", data), "clients": CLIENTS, "reserve": reserve,
            "partition": {"name": "dirichlet", "alpha": alpha},
        },
        "model": setting["model"],
        "train": {"lr": 0.01, "momentum": 0.9, "batch_size": 64, "workers": 1, "device": device, **setting["train"]},
        "attacks": [{**CORRUPTIONS[corruption], "count": 1}] if corruption != "none" else [],
        "guard": {"preset": "watch"},
    }  # fmt: skip


def cells(seeds: Sequence[int], device: str = "cpu", data: str = "fashion_mnist") -> list[tuple[Cell, Table]]:
    """No corrupted client, with the MLP at every heterogeneity, else at Dirichlet 1; and client 0 at Dirichlet 1."""
    alphas = ALPHAS if data == "fashion_mnist" else (1.0,)
    cases = [("none", alpha) for alpha in alphas] + [(name, 1.0) for name in CORRUPTIONS]
    return [
        ({"corruption": c, "alpha": alpha, "seed": seed}, scenario(c, alpha, seed, device, data))
        for (c, alpha), seed in product(cases, seeds)
    ]


def run(table: Table) -> Result:
    """Every watch's signals, scores and flags by round, the accuracy, and the weight of the first two clients."""
    records = played(table).records
    found: dict[str, object] = {
        "accuracy": [r.metrics["accuracy"] for r in records],
        "weights": [round(float(r.weights[:2].sum()), 6) for r in records],
    }
    for name, seen in seen_by_watch(records).items():
        found[name] = {"signal": [[round(v, 6) for v in w.signal.tolist()] for w in seen], **scores_and_flags(seen)}
    return found


def seen_by_watch(records: Sequence[RoundRecord]) -> dict[str, list[WatchRecord]]:
    """What each watch recorded, round by round."""
    return {w.name: [next(x for x in r.watches if x.name == w.name) for r in records] for w in records[0].watches}


def scores_and_flags(seen: Sequence[WatchRecord]) -> dict[str, list[list[float]]]:
    """The scores and flags of a watch as plain numbers, round by round."""
    return {
        "score": [[round(v, 6) for v in w.scores.tolist()] for w in seen],
        "flagged": [w.flagged.astype(int).tolist() for w in seen],
    }


def late(result: Result, watch: str, what: str = "score") -> Array:
    """(rounds, clients) after the first third."""
    values = np.asarray(result[watch][what], dtype=np.float64)
    return values[len(values) // 3 :]


def rank_one(result: Result, watch: str) -> float:
    """The share of late rounds in which client 0 has the highest score."""
    return float(np.mean(late(result, watch).argmax(axis=1) == 0))


def auroc(results: Sequence[Result], watch: str) -> float:
    """Client 0 against the others, over late rounds of all seeds."""
    scores = np.concatenate([late(r, watch) for r in results])
    return separation(scores[:, 0], scores[:, 1:].ravel())


def detection_table(results: Results) -> Grid:
    """Per corruption and watch: robust z of the corrupted client, how often it ranks first and is flagged, AUROC."""
    rows = []
    for corruption, watch in product(CORRUPTIONS, WATCHES):
        found = select(results, {"corruption": corruption})
        if found:
            score = "score" if watch == "ensemble" else "z"
            rows.append(
                [
                    corruption, watch, f"{score} {np.mean([late(r, watch)[:, 0].mean() for r in found]):.1f}",
                    interval([rank_one(r, watch) for r in found]), f"{auroc(found, watch):.3f}",
                    f"{np.mean([late(r, watch, 'flagged')[:, 0].mean() for r in found]):.2f}",
                    f"{np.mean([late(r, watch, 'flagged')[:, 1:].mean() for r in found]):.3f}",
                ]
            )  # fmt: skip
    header = columns(
        "corruption | watch | corrupted client | ranks first | AUROC | flagged | honest client-rounds flagged"
    )
    return header, rows


def thirds_table(results: Results) -> Grid:
    """How often the corrupted client ranks first in each third of the rounds, by divergence and by the ensemble."""
    rows = []
    for corruption, watch in product(CORRUPTIONS, ("divergence", "relative_distance", "ensemble")):
        found = select(results, {"corruption": corruption})
        if found:
            first = [np.asarray(r[watch]["score"]).argmax(axis=1) == 0 for r in found]
            thirds = [[float(part.mean()) for part in np.array_split(f, 3)] for f in first]
            rows.append([corruption, watch, *(interval(column) for column in zip(*thirds, strict=True))])
    return ("corruption", "watch", "ranks first, first third", "second third", "last third"), rows


def calm_table(results: Results) -> Grid:
    """No corrupted client: mean divergence and how often an honest client is flagged, by heterogeneity."""
    rows = []
    for alpha in ALPHAS:
        found = select(results, {"corruption": "none", "alpha": alpha})
        if found:
            flags = [f"{np.mean([late(r, w, 'flagged').mean() for r in found]):.3f}" for w in WATCHES]
            level = interval([float(late(r, "divergence", "signal").mean()) for r in found])
            rows.append([f"{alpha:g}", level, interval([r["accuracy"][-1] for r in found]), *flags])
    return ("Dirichlet", "mean divergence", "accuracy", *(f"flagged by {w}" for w in WATCHES)), rows


def draw_calm(results: Results, folder: Path, stem: str) -> list[Path]:
    """Divergence by heterogeneity, of the first seed; panels without results are left out."""
    calm = {f"Dirichlet {alpha:g}": {"corruption": "none", "alpha": alpha} for alpha in ALPHAS}
    if not (panels := _by_client(results, calm, "signal", "client 0")):
        return []
    path = folder / f"{stem}-heterogeneity.svg"
    curves(path, panels, "Divergence of each client from the global model", "round", "divergence")
    return [path]


def draw_corrupted(results: Results, folder: Path, stem: str) -> list[Path]:
    """Divergence and z of a corrupted client and the others, of the first seed."""
    drawn = []
    corrupted = {corruption: {"corruption": corruption} for corruption in CORRUPTIONS}
    for what, label, file in (("signal", "divergence", "corruption"), ("score", "robust z", "corruption-z")):
        if panels := _by_client(results, corrupted, what, "corrupted"):
            drawn.append(folder / f"{stem}-{file}.svg")
            title = f"One corrupted client among ten: {label} of the representations"
            curves(drawn[-1], panels, title, "round", label, ("corrupted",), columns=2)
    return drawn


def _by_client(
    results: Results, panels: Mapping[str, Cell], what: str, first: str
) -> dict[str, dict[str, dict[float, list[float]]]]:
    """What the divergence gave of each client over the rounds, for each selection of the results that has any."""
    found = {}
    for title, where in panels.items():
        for result in select(results, where)[:1]:
            values = np.asarray(result["divergence"][what])
            found[title] = {
                (first if i == 0 else f"client {i}"): {float(t + 1): [v] for t, v in enumerate(values[:, i])}
                for i in range(CLIENTS)
            }
    return found
