"""What the choices inside the watch change: affinity, gamma, size and kind of the probe, and what is done with it.

``watch-choices`` looks at the same rounds with every choice side by side; ``watch-weights`` compares giving a client
less weight with excluding it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from fedwarden.studies.runner import Cell, Table
from fedwarden.studies.tables import Grid, Results, confidence, interval, select

from .divergence import CORRUPTIONS, late, rank_one, scenario

Option = Mapping[str, object]
AFFINITIES: Mapping[str, Option] = {f"affinity {a}": {"affinity": a} for a in ("absolute", "relative", "cosine")}
GAMMAS: Mapping[str, Option] = {f"gamma {g:g}": {"gamma": g} for g in (0.0, 0.5, 1.0, 2.0, 8.0)}
SIZES: Mapping[str, Option] = {f"probe {s}": {"probe": s} for s in (16, 32, 64, 128, 256, 512, 1024)}
CHOICES = {**AFFINITIES, **GAMMAS, **SIZES}
KINDS = {"reserve": "held by the server", "mnist": "public (MNIST)", "noise": "noise", "optimised": "optimised"}
POLICIES = ("observe", "down_weight", "exclude")
HARMS: Mapping[str, Option | None] = {
    "nobody": None,
    "rotation": CORRUPTIONS["rotation"],
    "label flip": {"name": "label_flip"},
    "sign flip": {"name": "sign_flip"},
}
ALPHAS = (1.0, 0.1)


def choices(seeds: Sequence[int], device: str = "cpu") -> list[tuple[Cell, Table]]:
    """Client 0 corrupted at Dirichlet 1, seen with every choice at once; the default choice on every kind of probe."""
    usual = [_watch("divergence", {})]
    every = [_watch(name, options) for name, options in CHOICES.items()]
    found: list[tuple[Cell, Table]] = []
    for corruption, kind, seed in product(("none", *CORRUPTIONS), KINDS, seeds):
        table = scenario(corruption, 1.0, seed, device, reserve=1024)
        data = {**table["data"], "probe_from": kind, "probe": 1024 if kind == "reserve" else 128}
        guard = {"policy": "observe", "watches": every if kind == "reserve" else usual}
        found.append(({"corruption": corruption, "kind": kind, "seed": seed}, {**table, "data": data, "guard": guard}))
    return found


def _watch(name: str, options: Option) -> dict[str, object]:
    signal, rule = {"name": "divergence", **options}, {"name": "offset", "limit": 6.0}
    return {"name": name, "signal": signal, "history": "standard", "rule": rule, "start_round": 1}


def choices_table(results: Results) -> Grid:
    """Per choice and corruption: how often the corrupted client ranks first, and its mean robust z; false flags."""
    rows = []
    for title, watch, kind in (
        *((name, name, "reserve") for name in CHOICES),
        *(
            (f"probe {words}", "probe 128" if kind == "reserve" else "divergence", kind)
            for kind, words in KINDS.items()
        ),
    ):
        seen = {c: select(results, {"corruption": c, "kind": kind}) for c in ("none", *CORRUPTIONS)}
        if not all(seen.values()):
            continue
        ranks = [interval([rank_one(r, watch) for r in seen[c]]) for c in CORRUPTIONS]
        heights = [np.mean([late(r, watch)[:, 0] for r in seen[c]]) for c in CORRUPTIONS]
        cells = [f"{rank}, z {z:.1f}" for rank, z in zip(ranks, heights, strict=True)]
        rows.append([title, *cells, f"{np.mean([late(r, watch, 'flagged').mean() for r in seen['none']]):.3f}"])
    return ("choice", *CORRUPTIONS, "flagged, nobody corrupted"), rows


def weights(seeds: Sequence[int], device: str = "cpu") -> list[tuple[Cell, Table]]:
    """Two harmful clients of ten, or none, under the signals of ``watch`` and each policy."""
    found: list[tuple[Cell, Table]] = []
    for harm, alpha, policy, seed in product(HARMS, ALPHAS, POLICIES, seeds):
        attack = HARMS[harm]
        table = {
            **scenario("none", alpha, seed, device),
            "attacks": [{**attack, "count": 2}] if attack else [],
            "guard": {"preset": "watch", "policy": policy},
        }
        found.append(({"harm": harm, "alpha": alpha, "policy": policy, "seed": seed}, table))
    return found


def weights_table(results: Results) -> Grid:
    """Clean accuracy at the end, and the weight that harmful and honest clients kept."""
    rows = []
    for alpha, harm in product(ALPHAS, HARMS):
        found = {p: select(results, {"harm": harm, "alpha": alpha, "policy": p}) for p in POLICIES}
        if all(found.values()):
            rows.append(
                [f"{alpha:g}", harm]
                + [confidence([float(np.mean(r["accuracy"][-5:])) for r in found[p]]) for p in POLICIES]
                + [f"{np.mean([np.mean(r['weights']) for r in found[p]]):.2f}" for p in POLICIES[1:]]
            )
    kept = [f"share of harmful or first two, {p}" for p in POLICIES[1:]]
    return ("Dirichlet", "harm by two of ten", *POLICIES, *kept), rows
