"""The guard of a recorded run, and what another guard makes of the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ..core.config import override, parse
from ..core.errors import ConfigError
from ..core.types import RoundRecord
from ..guard.config import GuardConfig, alter
from ..guard.replay import find_sources, replay
from ..guard.warden import Warden
from ..store.ledger import Run
from .metrics import detection
from .recorded import SIMULATORS, naming_plugins, recorded_scenario


def recorded_guard(run: Run) -> Warden:
    """The guard of a simulation, or of another engine's run where its configuration has a [guard] table."""
    with naming_plugins(run):
        if run.engine in SIMULATORS:
            return recorded_scenario(run).guard.build()
        if "guard" not in run.config:
            raise ConfigError(
                f"run {run.id} was recorded by {run.engine!r} without a [guard] table; it cannot be replayed"
            )
        return parse(GuardConfig, run.config["guard"]).build()


def decide_again(
    run: Run, records: Sequence[RoundRecord], settings: Sequence[str] = (), preset: str | None = None
) -> tuple[Warden, list[RoundRecord]]:
    """Another guard, the recorded one or a preset with other settings ``a.b=c``, and the rounds as it judges them."""
    if not records:
        raise ConfigError(f"run {run.id} has no recorded rounds to replay")
    seen = {w.name for record in records for w in record.watches}
    recorded = recorded_guard(run).include(seen)
    if not recorded.watches:
        raise ConfigError(
            f"run {run.id} recorded no signals, because its guard watches nothing; run it again with a preset that "
            "watches, and with guard.policy=observe to exclude nobody"
        )
    of_preset = [s for s in settings if s.partition("=")[0].split(".")[0].strip() == "options"]
    if of_preset and not preset:
        raise ConfigError(f"{of_preset[0]!r} is for a preset; name it as well, as in --preset auto")
    other = parse(GuardConfig, override({"preset": preset}, of_preset)).build() if preset else recorded
    warden = alter(other.include(seen), [s for s in settings if s not in of_preset])
    return warden, replay(records, warden, find_sources(recorded.watches, warden.watches))


@dataclass(frozen=True)
class Change:
    """When a client was excluded in the recorded run, and when in the replay; None = never."""

    client: str
    recorded: int | None
    replayed: int | None
    unseen_from: int | None
    """The first round of which nothing is known, because the recorded run no longer asked this client."""


def compare(recorded: Sequence[RoundRecord], replayed: Sequence[RoundRecord]) -> list[Change]:
    """Every client of the run, in order of appearance, before and after."""
    before, after = (detection(records, {}).first_excluded for records in (recorded, replayed))
    seen = dict[str, int]()
    for record, later in zip_longest(recorded, recorded[1:]):
        if later is None or later.client_ids != record.client_ids:
            seen.update(dict.fromkeys(record.client_ids, record.round))
    last = recorded[-1].round if recorded else 0
    return [
        Change(c, before.get(c), after.get(c), t + 1 if c in before and t < last else None) for c, t in seen.items()
    ]
