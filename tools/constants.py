"""Every number of the preset ``auto`` that decides about a client: its value in the code, and why it is that.

python tools/constants.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedwarden.guard import containment, jury, presets
from fedwarden.guard.limits import Admission
from fedwarden.guard.warden import Warden
from fedwarden.history import capital, evidence
from fedwarden.policies.turns import Turns
from fedwarden.signals import opposition
from fedwarden.signals.alone import Alone
from fedwarden.updates import updates

DIFFERENT, DEFENCES, JURORS = "fedwarden bench different", "fedwarden bench defences", "fedwarden bench jurors"


def constants() -> Iterator[tuple[str, float, str]]:
    """Name, value and reason."""
    limits, turns, distance, harm = Admission(), Turns(), evidence.Evidence(), capital.Capital()
    auto = Warden.preset("auto", secret=0)
    yield "count_ratio", limits.count_ratio or math.inf, "a client's own word: none counts for more than the median"
    yield "max_share", limits.max_share or 1.0, "no client owns a third; guard.admission.shares agrees on more"
    yield "norm_ratio", limits.norm_ratio or math.inf, "beyond it float32 sums lose the other clients' digits"
    yield "usual length", presets.USUAL, f"median lengths of a client that is not in doubt; {DEFENCES}, {DIFFERENT}"
    yield "joint length", presets.JOINT, f"n times it, of all on trial: owners of a class need it; {DIFFERENT}"
    yield "longest", containment.LONGEST, "median lengths of one on trial: the owner of a class among 40 needs them"
    yield "share", turns.share, f"of the clients on trial at once; .2 costs 4 points under 25 % sign flips; {DEFENCES}"
    # of its rounds one in doubt misses as many: a quarter costs an owner's class twice the recall
    yield "least", turns.least, "two clients with a class of their own among ten must both be heard"
    # fewer than three times as many have no majority that two could stand out from
    yield "quorum", float(auto.guard.quorum), "a median of three is one client's word"
    yield "forget", distance.forget, "a good round takes back half of a bad one: attacks by turns do not pay"
    yield "effect", distance.effect, "less than 1.7 times the median distance costs no accuracy"
    yield "alpha", distance.alpha, "level of the allowance, shared by the clients"
    yield "recent", evidence.RECENT, "rounds that a client's mean distance is about: clients grow apart and together"
    yield "agreed", opposition.AGREED, "honest cohorts stay below .61, sign flippers raise it to .95; docs/guard.md"
    yield "orthogonal", opposition.ORTHOGONAL, "a client at right angles to the others drifts to 0"
    yield "fading", opposition.FADING, "in rounds that tell nothing: 0 keeps false doubts, .1 forgets 40 % flippers"
    yield "times", Alone().times, "times the usual size of a lone entry"
    yield "lone", presets.LONE, "share in lone weights: honest clients stay below, backdoors have .02 to .5"
    yield (
        "mainly",
        presets.MAINLY,
        "half: a trigger's weights raise one class by .6 to .9, other inputs' by .2 to .5",
    )
    yield "known", containment.KNOWN, "clear rounds that make a doubt, until which a client is a newcomer"
    yield (
        "recent hearings",
        jury.RECENT,
        "rounds that a juror's number is compared with: 20 to 100 do as well",
    )
    yield "largest", jury.LARGEST, "deviations that one number counts as: no round decides alone; 1.5 to 3 find as many"
    yield "slight", jury.SLIGHT, "gap that is no harm: flippers have .2 to .4, owners of a class up to .1; " + JURORS
    yield "harm clip", harm.clip, "n times a client's harm counts up to it: no round loses more than the stake"
    yield "harm effect", harm.effect, "harm that is none: the loss would be .1 lower if no client did what it does"
    yield "harm stake", harm.stake, "of the capital that one round can lose: a bet is never lost whole"
    yield "far off", updates.FAR_OFF, "median absolute deviations of a value of a buffer"
    yield "far", updates.FAR, "share of a client's buffers that may lie far off"


def main() -> None:
    """Print them."""
    rows = list(constants())
    for name, value, reason in rows:
        print(f"{name:13} {value:8.4g}  {reason}")
    print(f"{len(rows)} constants")


if __name__ == "__main__":
    main()
