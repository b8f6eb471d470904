"""``fedwarden rollback``: a run again from before a client's contributions, without it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from safetensors.torch import save_file

from ..core.errors import ConfigError, FedwardenError
from ..core.words import count, listed, printable, short
from ..sim.federation import check
from ..sim.recorded import SIMULATORS, naming_plugins, recorded_scenario
from ..store.connection import user
from ..store.export import draft
from ..store.ledger import Ledger, Run
from ..store.rollback import Start, find_start, roll_back
from ..store.word import said_in
from .common import LOG, AsJson, Force, Home, Imports, Quiet, RunNumber, bring, emit, hint, out, safe, vacant
from .run import follow, show_report
from .word import By, Reason, check_client, known_clients

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def rollback(
    run: RunNumber,
    before: Annotated[
        list[str],
        typer.Option("--before", help="A client to go back before and leave out; may be repeated.", metavar="CLIENT"),
    ],
    to: Annotated[
        int | None,
        typer.Option("--round", help="Go back before this round, in place of the client's first one in the model."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Of a server's run: write the model there, as safetensors."),
    ] = None,
    reason: Reason = "",
    by: By = "",
    force: Force = False,
    imports: Imports = None,
    home: Home = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Go back to before a client was in the model, and train on from there without it, as a new run.

    The new run starts from the newest checkpoint before the first round in which the client had weight, or from the
    beginning. It has the rounds before, the operator's commands so far, and the client excluded. The old run stays as
    it is.

    A simulation trains on at once; `fedwarden run --resume` continues it. A server of Flower, NVIDIA FLARE or APPFL
    that starts again with `resume=True` continues the new run.
    """
    with Ledger(home, create=False) as ledger:
        found = ledger.run(run)
        if found.state == "running":
            raise FedwardenError(f"run {found.id} is still running; wait for it, or end it first")
        known = known_clients(ledger, found).union(said.client for said in said_in(ledger, found.id))
        for client in (before := [*dict.fromkeys(before)]):
            check_client(client, found, known)
        simulated = found.engine in SIMULATORS
        if simulated:
            scenario = recorded_scenario(found, (), bring(imports))
            if scenario.data.dataset.name == "memory":
                raise ConfigError(f"run {found.id} was made from data in a program's memory and cannot be played again")
            with naming_plugins(found):
                check(scenario)
        start = find_start(ledger, found, before, to)
        model = None if simulated else start.model
        if output is not None:
            if not model:
                why = "trains on by itself" if simulated else "has no checkpoint with a model from before"
                raise ConfigError(f"run {found.id} {why}; leave out --output")
            with draft(vacant(output, force)) as made:
                save_file(model, made)
        new = roll_back(ledger, found, start, before, short(by) or user(), short(reason, 400))
    told = {"run": new.id, "from": found.id, "clients": before, "first": start.first, "after": start.round,
            "again": found.rounds - start.round, "passed_over": start.faults}  # fmt: skip
    for fault in start.faults:
        LOG.warning("a checkpoint was passed over: %s", fault)
    if start.still:
        LOG.warning("%s with %s in the model stay", count(start.still, "round"), _clients(before))
    if not as_json:
        out.print(safe(_told(found, new, start, before)), soft_wrap=True)
    if simulated:
        with naming_plugins(found):
            report = follow(scenario, home, new.id, quiet, on_flower=found.engine != SIMULATORS[0])
        return emit({**report, "rollback": told}) if as_json else show_report(report, home, scenario)
    if as_json:
        return emit({**told, "output": output and str(output)})
    if output is not None:
        LOG.info("wrote %s: %s of round %d", output, count(len(model or ()), "array"), start.round)
    if start.round and not model:
        out.print(
            f"The checkpoint has no model: start from the one that the framework saved after round {start.round}."
        )
    out.print(f"Start the server again with resume=True: it continues run {new.id}.")
    return hint(f"fedwarden show {new.id}  # all commands that the new run follows", folder=home)


def _told(run: Run, new: Run, start: Start, clients: list[str]) -> str:
    """What was done, and why."""
    who = _clients(clients)
    since = f"round {start.first} is the first of run {run.id} with {who} in the model"
    begins = f"goes on after round {start.round}" if start.round else "begins anew, without an older checkpoint"
    again = count(run.rounds - start.round, "round")
    return f"run {new.id} {begins}: {since}; {again} to play again without {who}"


def _clients(names: list[str]) -> str:
    return f"client{'s' * (len(names) > 1)} {printable(listed(names))}"
