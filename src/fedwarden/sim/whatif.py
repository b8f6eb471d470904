"""The guard of a recorded run, and what another guard makes of the same rounds."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from ..core.config import override, parse
from ..core.errors import ConfigError
from ..core.types import RoundRecord
from ..core.words import count
from ..guard.config import GuardConfig, alter
from ..guard.replay import find_sources, replay
from ..guard.warden import Warden
from ..store.ledger import Run
from ..store.word import Said, word_of
from .metrics import first_verdicts
from .recorded import SIMULATORS, naming_plugins, recorded_scenario

LOG = logging.getLogger("fedwarden")


def recorded_guard(run: Run) -> Warden:
    """The guard of a simulation, or of another engine's run where its configuration has a [guard] table."""
    if run.engine in SIMULATORS:
        scenario = recorded_scenario(run)
        return scenario.guard.build(secret=scenario.seed)
    if "guard" not in run.config:
        raise ConfigError(f"run {run.id} was recorded by {run.engine!r} without a [guard] table; it cannot be replayed")
    return parse(GuardConfig, run.config["guard"]).build(secret=run.config.get("secret"))


def decide_again(
    run: Run,
    records: Sequence[RoundRecord],
    settings: Sequence[str] = (),
    preset: str | None = None,
    said: Sequence[Said] = (),
) -> tuple[Warden, list[RoundRecord]]:
    """Another guard, the recorded one or a preset with other settings ``a.b=c``, and the rounds as it judges them.

    ``said`` is the operator's word in the run, which the other guard obeys in the same rounds.
    """
    if not records:
        raise ConfigError(f"run {run.id} has no recorded rounds to replay")
    seen = {w.name for record in records for w in record.watches}
    with naming_plugins(run):
        recorded = recorded_guard(run).include(seen)
    if not recorded.watches:
        raise ConfigError(
            f"run {run.id} recorded no signals, because its guard watches nothing; run it again with a preset that "
            "watches, and with guard.policy=observe to exclude no client"
        )
    of_preset = [s for s in settings if s.partition("=")[0].split(".")[0].strip() == "options"]
    if of_preset and not preset:
        raise ConfigError(f"{of_preset[0]!r} is for a preset; name it as well, as in --preset auto")
    table = override({"preset": preset}, of_preset)
    other = parse(GuardConfig, table).build(secret=recorded.guard.secret) if preset else recorded
    warden = alter(other.include(seen), [s for s in settings if s not in of_preset])
    sources = find_sources(recorded.watches, warden.watches)
    LOG.info("replaying %s of run %d", count(run.rounds, "round"), run.id)
    return warden, replay(records, warden, sources, partial(word_of, said))


@dataclass(frozen=True)
class Change:
    """The first round in which a client was excluded or in doubt, in the run and in the replay; None = never."""

    client: str
    recorded: int | None
    replayed: int | None
    unseen_from: int | None
    """The first round of which nothing is known, because the recorded run no longer asked this client."""


def compare(recorded: Sequence[RoundRecord], replayed: Sequence[RoundRecord]) -> list[Change]:
    """Every client of the run, in order of appearance, before and after."""
    before, after = first_verdicts(recorded), first_verdicts(replayed)
    seen = dict[str, int]()
    for record, later in zip_longest(recorded, recorded[1:]):
        if later is None or later.client_ids != record.client_ids:
            seen.update(dict.fromkeys(record.client_ids, record.round))
    last = recorded[-1].round if recorded else 0
    return [
        Change(c, before.get(c), after.get(c), t + 1 if c in before and t < last else None) for c, t in seen.items()
    ]
