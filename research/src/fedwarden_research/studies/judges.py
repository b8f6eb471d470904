"""Settings that others have published, with their results beside ours.

Nothing about them was chosen here: data, model, training, attack and share of attackers are those of a paper or of the
code that its authors published. What differs is said in each :class:`~fedwarden_research.studies.judge_settings.Judge`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from fedwarden.core.types import RoundRecord
from fedwarden.core.words import count
from fedwarden.studies.runner import Cell, Table, played

from .backfed import PUBLISHED
from .judge_settings import BACKFED, BACKFED_REASONS, BACKFED_SETTING, JUDGES, NO_ATTACK, Judge
from .plan import Asked, Plan, check
from .tables import columns, confidence, markdown, select

LAST = 10  # rounds at the end of a run over which its results are averaged
SEEDS = 3
Results = Sequence[Mapping[str, Any]]


def plan(asked: Asked) -> Plan:
    """The published settings; another number of rounds is a trial."""
    chosen, seeds, rounds = choose(asked.case), asked.seeds or SEEDS, asked.rounds
    command = asked.command("judges", seeds=seeds, rounds=rounds, device=asked.device)
    return Plan(
        study_name(rounds),
        cells(range(seeds), chosen, rounds, asked.device or "cpu"),
        "judges.md",
        lambda found: "\n\n".join(f"{judge.title}\n\n{table(found, judge)}" for judge in chosen),
        lambda found: page(found, chosen, rounds, command),
        run=measure,
    )


def choose(asked: Sequence[str]) -> list[Judge]:
    """The judges of these names; all where none is asked for.

    >>> [judge.name for judge in choose(["lfighter"])]
    ['lfighter']
    """
    check("judge", asked, [judge.name for judge in JUDGES])
    return [judge for judge in JUDGES if judge.name in asked or not asked]


def cells(
    seeds: Sequence[int], judges: Sequence[Judge], rounds: int | None = None, device: str = "cpu"
) -> list[tuple[Cell, Table]]:
    """All runs, seed by seed; ``rounds`` in place of the published number are for a trial."""
    found: list[tuple[Cell, Table]] = []
    for seed, judge in product(seeds, judges):
        many = judge.rounds if rounds is None else rounds
        for attack, defence in judge.pairs:
            table = {
                **judge.scenario,
                "seed": seed,
                "rounds": many,
                "checkpoint_every": many,
                "data": {**judge.scenario["data"], "clients": judge.clients},
                "train": {
                    **judge.scenario["train"], "device": device, "workers": 1,
                    "group": 10 if device == "cpu" else judge.clients,
                },
                "attacks": [] if attack == NO_ATTACK else [{**judge.attacks[attack], "share": judge.share}],
                "guard": judge.defences[defence],
            }  # fmt: skip
            found.append(({"judge": judge.name, "attack": attack, "defence": defence, "seed": seed}, table))
    return found


def study_name(rounds: int | None) -> str:
    """A trial with fewer rounds has results of its own.

    >>> study_name(None), study_name(2)
    ('judges', 'judges-2')
    """
    return "judges" if rounds is None else f"judges-{rounds}"


def measure(table: Table) -> dict[str, Any]:
    """Run one scenario in a workspace of its own and return what is kept of it."""
    result = played(table)
    return {**tally(result.records), "caught": result.summary["caught"], "wronged": result.summary["wronged"]}


def tally(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Accuracy and attack success, averaged over the last ten rounds; the latter where the attack has a goal."""
    late = [record.metrics for record in records[-LAST:]]
    reached = [m["attack_success"] for m in late if "attack_success" in m]
    return {
        "accuracy": float(np.mean([m["accuracy"] for m in late])),
        "attack_success": float(np.mean(reached)) if reached else None,
    }


def _cell(judge: Judge, attack: str, defence: str) -> Cell:
    return {"judge": judge.name, "attack": attack, "defence": defence}


def table(results: Results, judge: Judge) -> str:
    """Their accuracy and attack success beside ours, which are means over seeds with 95 % intervals."""
    header = columns(
        "attack | defence | accuracy, published | accuracy, ours | attack success, published | attack success, ours | "
        "attackers excluded | honest excluded | seeds"
    )
    rows = []
    for attack, defence in judge.pairs:
        found = select(results, _cell(judge, attack, defence))
        if not found:
            continue
        reached = [r["attack_success"] for r in found if r["attack_success"] is not None]
        theirs = [f"{value:.2f}" for value in judge.published.get((attack, defence), ())] or ["-", "-"]
        excluded = [f"{np.mean([r[key] for r in found]):.1f}" for key in ("caught", "wronged")]
        ours = [confidence([r["accuracy"] for r in found]), confidence(reached)]
        rows.append([attack, defence, theirs[0], ours[0], theirs[1], ours[1], *excluded, len(found)])
    return markdown(header, rows)


def worst_cases(results: Results, judge: Judge) -> str:
    """The least accuracy and the largest attack success of every defence over the attacks, best defence first."""
    found: list[tuple[float, str]] = []
    for defence in judge.defences:
        runs = [r for attack in judge.attacks for r in select(results, _cell(judge, attack, defence))]
        if runs:
            least = 100 * min(r["accuracy"] for r in runs)
            reached = [100 * r["attack_success"] for r in runs if r["attack_success"] is not None]
            success = f" / {max(reached):.1f}" if reached else ""
            found.append((least, f"{defence} {least:.1f}{success}"))
    return "Worst case, accuracy / attack success: " + ", ".join(told for _, told in sorted(found, reverse=True)) + "."


def page(results: Results, judges: Sequence[Judge], rounds: int | None, command: str) -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    trial = "" if rounds is None else f"\n\nA trial: {count(rounds, 'round')} in place of the published number."
    parts = [
        f"""# Settings and results of others

Settings that others have published, their results beside ours.{trial}

<!-- not run: hours without a GPU -->
```bash
{command}
```

Accuracy is on clean test data and in percent, as is attack success: the share of the targeted test samples that are
read as the attackers want. Ours are averaged over the last {LAST} rounds, with 95 % intervals over seeds. *Excluded*
counts the clients that the guard has excluded, or suspended and not let in again, on average over seeds; `auto` is told
nothing."""
    ]
    for judge in judges:
        told = "\n".join(f"- {fact[0].upper()}{fact[1:]}." for fact in judge.facts)
        differs = "; ".join(judge.differs)
        head = f"## {judge.title}\n\nSource: {judge.source}."
        shown = f"{worst_cases(results, judge)}\n\n{table(results, judge)}"
        parts.append(f"{head}\n\n{told}\n- What differs: {differs}.\n\n{shown}")
    return "\n\n".join([*parts, backfed()])


def backfed() -> str:
    """What is known of BackFed's setting, which is too far from a scenario to be run as one: published beside ours."""
    theirs = {name: "{:.1f} / {:.1f}".format(*PUBLISHED[name]) for name in PUBLISHED}
    rows = [[name, theirs.get(name, "-"), ours] for name, ours in BACKFED.items()]
    shown = markdown(columns("defence | published | ours, earlier script"), rows)
    return f"{BACKFED_SETTING}\n{shown}\n\n{BACKFED_REASONS}".rstrip()
