"""Ready-made wardens."""

from __future__ import annotations

import math

from ..core.registry import register
from .containment import KNOWN
from .judge import Watch
from .jury import LARGEST
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


USUAL, JOINT = 3.0, 0.4  # lengths, see auto
EVIDENCE = KNOWN - 0.5  # rounds of clear evidence that put a client in doubt; it takes KNOWN rounds
MAINLY = 0.5  # of what lone weights do to the outputs: half of it, to one class
LONE = 0.01  # of an update's squared length in lone weights; owners of a class and other honest clients stay below


@register("preset", "auto")
def auto(alpha: float = 0.05, weighted: bool = True, alike: bool = False, lone: float = LONE) -> Warden:
    """The default: no number of attackers and no tuning; clients that differ stay in the model.

    *Contain.* No client moves the model by more than three median lengths in a round. Weights that a client alone moves
    and that lead to the same class round after round, as those of a backdoor do, are left out. *Doubt.* Evidence
    gathered over rounds, of a long distance to the core of the cohort or of updates that point away from the others',
    puts a client in doubt, and so does, for the round, an update of more than three median lengths. Clients in doubt
    take turns: each is in the model in nine of ten rounds, but no more than two or a tenth of the clients at once, and
    those that are in it move it together by 0.4 n median lengths at most: as much as the only owner of a class needs to
    be heard. *Exclude.* Only harm on the server's labelled samples excludes for good, with a guarantee for the whole
    run, or harm that clients report which the operator named as ``jurors``; else the operator's word alone. *Unlearn.*
    A server with images looks for small marks that the model answers with one class, and unlearns them.

    ``alike`` is the operator's statement that all clients hold data of the same kind: clients in doubt are then left
    out for as long as the doubt lasts, and no update is longer than 1.5 median lengths. ``lone`` is the share of an
    update's squared length from which on such weights count; 1 turns this off.
    """
    gathered = {"name": "offset", "limit": EVIDENCE}
    usual = 1.5 if alike else USUAL
    far = {"name": "evidence", "alpha": alpha}
    moved = {"name": "evidence", "alpha": alpha, "effect": math.log(3)}  # not corrected for the size of a data set
    coins = {"name": "capital", "clip": LARGEST, "effect": 0.0, "times_clients": False}
    watches = [
        Watch(
            {"name": "relative_distance", "bounded": True, "excuse": 1.0}, far, gathered, 1, "distance", action="doubt"
        ),
        Watch("opposition", "gathered", gathered, 1, "opposition", action="doubt"),
        Watch("update_length", "raw", {"name": "offset", "limit": math.log(USUAL)}, 1, "length", action="doubt"),
        Watch(
            {"name": "alone", "least": lone},
            "leaning",
            {"name": "offset", "limit": MAINLY},
            1,
            "lone weights",
            action="contain",
        ),
        Watch({"name": "divergence", "relative": True}, moved, gathered, 1, "representations", True, "doubt"),
        Watch({"name": "harm", "shorten": usual}, "capital", {"name": "ville", "alpha": alpha}, 1, "harm", True),
        Watch("jury", coins, {"name": "ville", "alpha": alpha}, 1, "jury", True),
    ]
    return Warden(
        watches,
        {"name": "turns", "most": 0.0} if alike else "turns",
        {"name": "mean", "weighted": weighted},
        share_copies=True,
        quorum=4,
        shorten=usual,
        joint=JOINT,
        newcomers=False,
        backdoors=True,
    )


@register("preset", "groups")
def groups(weighted: bool = True) -> Warden:
    """For groups of clients that are drawn anew in every round: one round decides, and about that round alone.

    A group is left out that lies 2.7 times as far from the core as the median one, agrees in direction with the others
    by .4 less than it, or points away from what they agree on.
    """
    watches = [
        Watch({"name": "relative_distance", "bounded": True}, "raw", {"name": "offset", "limit": 1.0}, 1, "distance"),
        Watch("direction", "raw", {"name": "offset", "limit": 0.4}, 1, "direction"),
        Watch("opposition", "raw", {"name": "offset", "limit": 1.2}, 1, "opposition"),
    ]
    mean = {"name": "mean", "weighted": weighted}
    return Warden(watches, "exclude", mean, quorum=4, shorten=1.5)


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
