"""The operator's word: ``fedwarden trust``, ``exclude``, ``readmit``, ``observe`` and ``enforce``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import FedwardenError, nearest
from ..core.types import Word
from ..core.words import listed, short, spelt
from ..sim.recorded import SIMULATORS, as_known
from ..store.connection import user
from ..store.ledger import Ledger, Run
from ..store.series import client_order
from ..store.word import Kind, Said, clients_seen, latest, said_in, say
from .common import AsJson, Home, RunNumber, emit, hint, out, safe

Client = Annotated[str, typer.Argument(help="The client's name, as `fedwarden show RUN --all` lists it.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the record.", metavar="TEXT")]
By = Annotated[
    str, typer.Option("--by", help="The operator's name to record; by default your user name.", metavar="NAME")
]
FEW = 20  # clients that a message names
EFFECTS: dict[Kind, str] = {
    "trust": "client {client} is trusted",
    "untrust": "client {client} is no longer trusted",
    "exclude": "client {client} is excluded",
    "readmit": "client {client} is readmitted, without the evidence against it,",
    "observe": "watches flag clients and leave none out",
    "enforce": "watches act again",
}
UNDO: dict[Kind, str] = {
    "trust": "trust --undo {run} {client}",
    "untrust": "trust {run} {client}",
    "exclude": "readmit {run} {client}",
    "readmit": "exclude {run} {client}",
    "observe": "enforce {run}",
    "enforce": "observe {run}",
}

HELP: dict[Kind, str] = {
    "exclude": """
    Exclude a client until it is readmitted: it is not asked and has weight 0, from the next round on.

    `fedwarden readmit` takes it back.""",
    "readmit": """
    Take back a client's exclusion or suspension, by a watch or by word, and clear the evidence against it.

    It is asked again in the next round, and judged as a new client is: a watch may exclude it again. `fedwarden trust`
    prevents that; `fedwarden exclude` takes the word back.""",
    "observe": """
    Judge without acting: watches measure and flag, and leave nobody out, from the next round on.

    Clients that a watch has excluded are let in again; those excluded by word stay out. `fedwarden enforce` ends
    it.""",
    "enforce": """
    Let the watches act again, from the next round on: the opposite of `fedwarden observe`.

    Evidence that was gathered meanwhile counts.""",
}

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def trust(
    run: RunNumber,
    client: Client,
    undo: Annotated[bool, typer.Option("--undo", help="Trust it no longer.")] = False,
    reason: Reason = "",
    by: By = "",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Trust a client: no watch skips, suspends or excludes it, from the next round of a running federation on.

    Its reply is still rejected if it holds NaN or is far too long. Evidence is still gathered, and counts again after
    `--undo`; `fedwarden readmit` clears it. The word is recorded with its reason; a replay and a resumed run obey it in
    the same rounds.
    """
    speak(run, "untrust" if undo else "trust", client, reason, by, home, as_json)


def of_a_client(kind: Kind) -> Callable[..., None]:
    """The command that says one thing of one client."""

    def command(
        run: RunNumber, client: Client, reason: Reason = "", by: By = "", home: Home = None, as_json: AsJson = False
    ) -> None:
        speak(run, kind, client, reason, by, home, as_json)

    return command


def of_the_run(kind: Kind) -> Callable[..., None]:
    """The command that says one thing of a whole run."""

    def command(run: RunNumber, reason: Reason = "", by: By = "", home: Home = None, as_json: AsJson = False) -> None:
        speak(run, kind, "", reason, by, home, as_json)

    return command


for _kind, _help in HELP.items():
    app.command(_kind, help=_help)((of_a_client if _kind in ("exclude", "readmit") else of_the_run)(_kind))


def speak(which: str, kind: Kind, client: str, reason: str, by: str, folder: Path | None, as_json: bool) -> None:
    """Check what the operator says, record it, and print what it changes."""
    with Ledger(folder, create=False) as ledger:
        run = ledger.run(which)
        if run.state == "done":
            instead = f"; give the guard of the next run trusted = [{client!r}]" if kind == "trust" else ""
            raise FedwardenError(f"run {run.id} is done and has no next round; expected an unfinished run{instead}")
        entries = said_in(ledger, run.id)
        if client:
            check_client(client, run, known_clients(ledger, run).union(s.client for s in entries))
        word = latest(entries)
        known = already(run, entries, word, kind, client)
        made = known or say(ledger, run.id, kind, client, short(by) or user(), short(reason, 500))
        last = ledger.last_round(run.id)
    if as_json:
        return emit({"run": run.id, "state": run.state, "recorded": known is None, **asdict(made)})
    effect = safe(EFFECTS[kind].format(client=client))
    if known:
        out.print(f"run {run.id}: {effect} already (operator {safe(known.by)}); nothing new is recorded")
        return None
    done = f"round {last} is the last one recorded" if last else "no round is recorded yet"
    out.print(f"run {run.id}: {effect} from the next round on; {done}")
    if kind == "trust" and client in word.excluded:
        out.print(f"It stays excluded until: fedwarden readmit {run.id} {safe(spelt(client))}", soft_wrap=True)
    resume = f"fedwarden run --resume {run.id}  # the next round is played when the run goes on"
    hint(
        f"fedwarden {UNDO[kind].format(run=run.id, client=spelt(client))}  # take it back",
        *([resume] if run.state != "running" and run.engine in SIMULATORS else []),
        f"fedwarden show {run.id}  # all such commands, and the round from which each applies",
        folder=folder,
    )
    return None


def already(run: Run, said: Sequence[Said], word: Word, kind: Kind, client: str) -> Said | None:
    """The latest word that says the same and still holds; a word that has nothing to undo is refused."""
    holds = {
        "trust": client in word.trusted,
        "untrust": client not in word.trusted,
        "exclude": client in word.excluded,
        "observe": word.observing,
        "enforce": not word.observing,
    }
    if not holds.get(kind, False):
        return None
    if kind == "untrust":
        raise FedwardenError(
            f"client {client!r} is not trusted by command; clients that are: "
            f"{listed(client_order(word.trusted), FEW) or 'none'} (guard.trusted is changed in the configuration)"
        )
    if kind == "enforce":
        raise FedwardenError(f"run {run.id} is not observing by command, so there is nothing to end")
    return next(s for s in reversed(said) if s.kind == kind and s.client == client)


def check_client(client: str, run: Run, known: Collection[str]) -> None:
    """Refuse a client that the run does not have."""
    if client in known:
        return
    if not known:
        raise FedwardenError(
            f"run {run.id} has no client {client!r}: none has answered yet; expected after its first round"
        )
    hint = nearest(client, known)
    if not hint.startswith("did you mean"):
        hint = f"expected one of: {listed(client_order(known), FEW)}"
    raise FedwardenError(f"run {run.id} has no client {client!r}; {hint}")


def known_clients(ledger: Ledger, run: Run) -> frozenset[str]:
    """The clients of a run: those of its scenario, or those that its rounds name."""
    scenario, _ = as_known(run)
    return frozenset(scenario.client_ids if scenario else ()) | clients_seen(ledger, run.id)
