"""``fedwarden rollback``: a run again from before a client's contributions, without it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from safetensors.torch import save_file

from ..core.errors import ConfigError, FedwardenError
from ..core.words import count, listed, short
from ..sim.federation import check
from ..sim.recorded import SIMULATORS, naming_plugins, recorded_scenario
from ..store.connection import user
from ..store.export import draft
from ..store.ledger import Ledger
from ..store.rollback import find_start, roll_back
from ..store.word import said_in
from .common import LOG, AsJson, Force, Home, Imports, Quiet, RunNumber, bring, emit, hint, out, safe, vacant
from .run import follow, show_report
from .word import By, Reason, check_client, known_clients

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def rollback(
    run: RunNumber,
    before: Annotated[list[str], typer.Option(help="The client to leave out; may be repeated.", metavar="CLIENT")],
    to: Annotated[int | None, typer.Option("--round", help="Go back before this round, not its first.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a server's model here, too.")] = None,
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
    beginning, with the rounds before and the operator's commands so far. The old run stays as it is.

    A simulation trains on at once; `fedwarden run --resume` continues it. A server of Flower, NVIDIA FLARE or APPFL
    that starts again with `resume=True` continues the new run.
    """
    names = [*dict.fromkeys(before)]
    who = f"client{'s' * (len(names) > 1)} {listed(names)}"
    with Ledger(home, create=False) as ledger:
        found = ledger.run(run)
        if found.state == "running":
            raise FedwardenError(f"run {found.id} is still running; wait for it, or end it first")
        known = known_clients(ledger, found).union(said.client for said in said_in(ledger, found.id))
        for client in names:
            check_client(client, found, known)
        simulated = found.engine in SIMULATORS
        if simulated:
            scenario = recorded_scenario(found, (), bring(imports))
            if scenario.data.dataset.name == "memory":
                raise ConfigError(f"run {found.id} was made from data in a program's memory and cannot be played again")
            with naming_plugins(found):
                check(scenario)
        start = find_start(ledger, found, names, to)
        if output is not None:
            if not start.model:
                raise ConfigError(f"run {found.id} has no checkpoint of a server's model to write; leave out --output")
            with draft(vacant(output, force)) as made:
                save_file(start.model, made)
            LOG.info("wrote %s: %s of round %d", output, count(len(start.model), "array"), start.round)
        new = roll_back(ledger, found, start, names, short(by) or user(), short(reason, 400)).id
    again = found.rounds - start.round
    told = {"run": new, "from": found.id, "clients": names, "first": start.first, "after": start.round, "again": again}
    told["passed_over"] = start.faults
    for fault in start.faults:
        LOG.warning("a checkpoint was passed over: %s", fault)
    if start.still:
        LOG.warning("%s with %s in the model stay", count(start.still, "round"), who)
    if not as_json:
        begins = f"goes on after round {start.round}" if start.round else "begins anew, without an older checkpoint"
        since = f"round {start.first} is the first of run {found.id} with {who} in the model"
        rest = f"{count(again, 'round')} to play again without {who}"
        out.print(safe(f"run {new} {begins}: {since}; {rest}"), soft_wrap=True)
    if simulated:
        with naming_plugins(found):
            report = follow(scenario, home, new, quiet, on_flower=found.engine != SIMULATORS[0])
        return emit({**report, "rollback": told}) if as_json else show_report(report, home, scenario)
    if as_json:
        return emit({**told, "output": output and str(output)})
    if start.round and not start.model:
        out.print(f"Its checkpoint has no model: start from the one that the framework saved in round {start.round}.")
    out.print(f"Start the server again with resume=True: it continues run {new}.")
    return hint(f"fedwarden show {new}  # all commands that the new run follows", folder=home)
