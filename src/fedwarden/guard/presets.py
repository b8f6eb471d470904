"""Ready-made wardens."""

from __future__ import annotations

import math

from ..core.registry import register
from .judge import Watch
from .limits import Admission
from .warden import Warden

BELIEVED = Admission(count_ratio=10.0, max_share=None)  # counts weigh as in FedAvg, for what is as published


@register("preset", "none")
def none(weighted: bool = True) -> Warden:
    """No guard: plain FedAvg behind admission."""
    return Warden(aggregator={"name": "mean", "weighted": weighted}, admission=BELIEVED)


@register("preset", "pid_made")
def pid_made(
    kp: float = 1.0, ki: float = 0.5, kd: float = 0.05, k: float = 2.33, start_round: int = 2, weighted: bool = True
) -> Warden:
    """PID-MADE as published: distance to the mean, PID over rounds, mean + k sigma, exclusion for good."""
    history = {"name": "pid", "kp": kp, "ki": ki, "kd": kd}
    watch = Watch("centroid_distance", history, {"name": "k_sigma", "k": k}, start_round)
    return Warden([watch], "quarantine", {"name": "mean", "weighted": weighted}, admission=BELIEVED)


@register("preset", "auto")
def auto(alpha: float = 0.05, weighted: bool = True, shorten: float | None = 1.5, alone: bool = True) -> Warden:
    """The default: no number of attackers and no tuning, from 4 clients on.

    Eleven watches, eight of them from one matrix of inner products. Four gather evidence over rounds, beyond an effect
    size and beyond the cohort's own heterogeneity: of the distance to the core of the cohort, of the disagreement in
    direction, of opposition to what the cohort agrees on, and of weights that a client moves and the others do not, as
    a backdoor's are (``alone`` turns this off). Who they flag is suspended: out of the model, still asked, and let in
    again once the evidence is gone, or training has settled before there was much of it. Two gather the same evidence
    of distance and lone weights in those rounds alone in which the clients agree; these exclude for good. Five keep a
    client out of the round alone: one that lies ten times farther out than the median, or 1.6 times as far as is
    allowed, leaps from its habits, is opposed, or has more than .15 of its update in lone weights. No single round
    suspends anybody, and no round does once updates are a seventh as long as they were. Where the server holds a probe,
    evidence of moved representations is gathered too; where that has labels, evidence of harm, in all rounds, for good
    and with a guarantee for the whole run. Updates longer than ``shorten`` times the median one are shortened to that,
    clients that send the same have one vote, and who comes near the thresholds of direction and opposition loses weight
    before it is flagged.
    """
    once, gathered = {"name": "offset", "limit": math.log(10)}, {"name": "offset", "limit": 2.5}
    distance, direction = {"name": "evidence", "alpha": alpha}, {"name": "evidence", "alpha": alpha, "effect": 0.25}
    far, against = {"name": "excess", "alpha": alpha}, {"name": "excess", "alpha": alpha, "effect": 0.25}
    let_in, opposite = {"name": "offset", "limit": 1.0}, {"name": "offset", "limit": 1.2}
    opposed, opposing = {"name": "evidence", "alpha": alpha, "effect": 1.0}, {"name": "offset", "limit": 1.5}
    lone, much = {"name": "evidence", "alpha": alpha, "effect": 0.08}, {"name": "offset", "limit": 0.15}
    moved = {"name": "evidence", "alpha": alpha, "effect": math.log(3)}  # not corrected for the size of a data set
    backdoors = [
        Watch("alone", lone, gathered, 1, "alone", until="clean"),
        Watch("alone", lone, gathered, 1, "proof alone", agreeing=True),
        Watch("alone", "raw", much, 1, "apart", until="round"),
    ]
    watches = [
        Watch("relative_distance", distance, gathered, 1, "evidence", until="clean"),
        Watch("direction", direction, gathered, 1, "direction", until="clean", suspects=True),
        Watch({"name": "relative_distance", "bounded": True}, distance, gathered, 1, "proof", agreeing=True),
        Watch("opposition", opposed, opposing, 1, "opposition", until="clean", agreeing=True, suspects=True),
        Watch("relative_distance", "raw", once, 1, "gross", until="round"),
        Watch("relative_distance", far, let_in, 1, "far", until="round"),
        Watch("direction", against, let_in, 1, "against", until="round", suspects=True),
        Watch("opposition", "raw", opposite, 1, "opposite", until="round", suspects=True),
        *(backdoors if alone else []),
        Watch({"name": "divergence", "relative": True}, moved, gathered, 1, "representations", True, until="clean"),
        Watch({"name": "harm", "shorten": shorten}, "capital", {"name": "ville", "alpha": alpha}, 1, "harm", True),
    ]
    contained = {"name": "contained", "weighted": weighted}
    return Warden(
        watches,
        "quarantine",
        contained,
        remeasure=True,
        share_copies=True,
        quorum=4,
        margin=1,
        settle=0.15,
        shorten=shorten,
    )


@register("preset", "watch")
def watch(limit: float = 6.0, weighted: bool = True) -> Warden:
    """Report, and change nothing: robust z-scores of every signal that the server can measure, and their ensemble.

    A client is flagged, in the record alone, above ``limit`` robust deviations in one signal, or where the ensemble,
    averaged over rounds, stands out.
    """
    z = {"name": "offset", "limit": limit}
    watches = [
        Watch("divergence", "standard", z, start_round=1, optional=True),
        Watch("relative_distance", "standard", z, start_round=1),
        Watch("direction", "standard", z, start_round=1),
        Watch("update_norm", "standard", z, start_round=1),
        Watch("probe_loss", "standard", z, start_round=1, optional=True),
        Watch("ensemble", "ewma", {"name": "offset", "limit": 2.5}, start_round=3),
    ]
    return Warden(watches, "observe", {"name": "mean", "weighted": weighted}, admission=BELIEVED)
