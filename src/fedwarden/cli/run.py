"""``fedwarden run``: run a scenario, or continue one that was interrupted."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.progress import Progress
from typer.core import TyperCommand

from .. import sim
from ..core.config import override, read_toml
from ..core.errors import ConfigError, FedwardenError
from ..core.notes import DOUBTS, Note
from ..core.plugins import options
from ..core.types import RoundRecord
from ..core.words import count, listed, number, percent
from ..sim.recorded import ON_FLOWER, SIMULATORS, naming_plugins, plugins_of, recorded_scenario, truth_of
from ..sim.scenario import Scenario, load_scenario
from ..store.conclusion import conclusion, fates
from ..store.ledger import Run
from ..store.record import RunRecord
from ..store.round import STATES, RoundStory
from ..store.story import Story, rounds_by_note
from . import Interrupted, told
from .common import (
    LOG,
    AsJson,
    Home,
    Imports,
    Quiet,
    Settings,
    bring,
    emit,
    hint,
    notes_as_tables,
    out,
    progress,
    reader,
    safe,
)

LATEST = "latest"
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
CALM = {"RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1"}  # or Ray aborts on SIGTERM, with a trace


class EngineName(StrEnum):
    """Where the clients train."""

    IN_PROCESS = "in-process"
    FLOWER = "flower"


app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


class OptionalValue(TyperCommand):
    """Lets ``--resume`` stand without a run, before another option or a scenario file as well."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        following = [*args, "-"][1:]
        bare = [
            a == "--resume" and (n.startswith("-") or n.endswith(".toml")) for a, n in zip(args, following, strict=True)
        ]
        return super().parse_args(ctx, [f"{a}={LATEST}" if b else a for a, b in zip(args, bare, strict=True)])


@app.command(cls=OptionalValue)
def run(
    file: Annotated[
        Path | None, typer.Argument(help="The scenario, as in examples/; not needed with --resume.", show_default=False)
    ] = None,
    settings: Settings = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            help="Continue this run, by number or name; without either, the latest unfinished one of the scenario's "
            "name.",
            metavar="[RUN]",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        EngineName, typer.Option("--engine", help="Train here, or on Flower's simulation engine, with the same result.")
    ] = EngineName.IN_PROCESS,
    imports: Imports = None,
    home: Home = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train, guard and record a federation; afterwards say how the guard did, since the simulator knows the truth.

    Every round is committed to the workspace, so a run that was interrupted or killed is continued by `--resume` and
    ends with the same bits. Warnings and progress go to standard error.

    The modules that a file names in `imports` are imported, since it is one's own. A ledger may be somebody else's:
    `--resume` without a file imports nothing that it names, only what `--import` asks for.
    """
    modules = bring(imports, file and file.parent)
    scenario = None if file is None else _own(_read(file, settings or (), quiet), modules)
    chosen = None if resume is None else _find(home, scenario, resume)
    if scenario is None:
        if chosen is None:
            raise ConfigError("give a scenario file, as in fedwarden run examples/digits.toml, or --resume a run")
        scenario = recorded_scenario(chosen, settings or (), modules)
    if chosen and chosen.state == "done" and chosen.rounds >= scenario.rounds:
        return _already(chosen, home, as_json)
    on_flower = engine is EngineName.FLOWER if chosen is None else chosen.engine == ON_FLOWER
    with naming_plugins(chosen) if chosen else nullcontext():
        report = follow(scenario, home, chosen.id if chosen else None, quiet, on_flower=on_flower)
    return emit(report) if as_json else show_report(report, home, scenario)


def _read(file: Path, settings: Sequence[str], quiet: bool) -> Scenario:
    """The scenario of a file; a table of it that another command uses is left aside."""
    table = override(read_toml(file), settings)
    if table.pop("audit", None) is not None and not quiet:
        LOG.info("the table [audit] is ignored here; fedwarden audit %s uses it", file)
    return load_scenario(table, folder=file.parent)


def _own(scenario: Scenario, imports: Sequence[str]) -> Scenario:
    """With the modules of the command line, which worker processes need too."""
    return scenario.model_copy(update={"imports": tuple(dict.fromkeys([*scenario.imports, *imports]))})


def simulator(on_flower: bool) -> Callable[..., sim.federation.Result]:
    """What runs a scenario; Flower is imported only where it is asked for, and told not to call home."""
    if not on_flower:
        return sim.federation.simulate
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}  # Ray's ports are open to the whole network
    for name, value in {**OFFLINE, **CALM, **secret}.items():
        os.environ.setdefault(name, value)
    import_module("fedwarden.flower")  # says what to install where Flower is missing
    found: Callable[..., sim.federation.Result] = import_module("fedwarden.sim.on_flower").simulate_on_flower
    return found


def follow(
    scenario: Scenario,
    home: Path | None,
    resume: int | None = None,
    quiet: bool = False,
    warn: bool = True,
    on_flower: bool = False,
) -> dict[str, Any]:
    """Simulate with a progress bar and, where asked to ``warn``, warnings; what is to be told of the run afterwards."""
    began = perf_counter()
    with progress(quiet) as bar:
        monitor = Monitor(bar, scenario, quiet or not warn)
        try:
            result = simulator(on_flower)(scenario, home, resume, monitor.on_round, monitor.on_start)
        except KeyboardInterrupt:
            raise Interrupted(monitor.farewell(home)) from None
        except SystemExit as error:  # Ray, under Flower, puts this in the place of our handler of SIGTERM
            raise Interrupted(monitor.farewell(home), signal.SIGTERM) from error
        except Exception as error:
            if monitor.run is None or (reason := told(error)) is None:
                raise
            raise FedwardenError(f"{reason}; {monitor.continued(home)}") from error
    if result.unchanged is not None:
        raise sim.federation.Fruitless.of(result)
    # of data of one's own not all attackers are known, so that no client is said to be honest
    return {**summary_of(result, perf_counter() - began, not scenario.data.own), "target": scenario.target}


class Monitor:
    """Follows a run on standard error: one progress bar, and every distinct warning once."""

    def __init__(self, bar: Progress, scenario: Scenario, quiet: bool) -> None:
        self.bar, self.quiet, self.imports = bar, quiet, scenario.imports
        self.name, self.rounds = scenario.name, scenario.rounds
        self.task = bar.add_task(safe(scenario.name), total=scenario.rounds, status="loading")
        self.run: int | None = None
        self.done = 0
        self.noted: set[Note] = set()

    def on_start(self, run: int, federation: sim.federation.Federation) -> None:
        self.run, self.done = run, federation.round
        self.bar.update(self.task, description=f"run {run} {safe(self.name)}", completed=self.done, status="training")
        asked = federation.scenario.train.workers
        if asked and asked > federation.workers and not self.quiet:
            most = "at most one per core and group of clients"
            LOG.info("train.workers = %d: %d are used, %s", asked, federation.workers, most)
        for part, _, _ in federation.scenario.plans():
            if part.start > self.rounds and not self.quiet:
                when = f"starts in round {part.start}, after the last one, {self.rounds}"
                LOG.warning("%s %s %s: it never happens", part.word, part.name, when)
        if self.done and not self.quiet:
            LOG.info("run %d continues after round %d of %d", run, self.done, self.rounds)

    def on_round(self, record: RoundRecord) -> None:
        self.done, here = record.round, RoundStory(record)
        refused: dict[Note, list[str]] = {}
        for rejection in record.rejected:
            refused.setdefault(rejection.reason, []).append(rejection.client_id)
        for note in [*record.notes, *(Note.of("rejected", *who, cause=why) for why, who in refused.items())]:
            if note.topic not in self.noted and not self.quiet:
                told = here.reason(note.clients[0]) if note.kind in DOUBTS else note
                LOG.warning("round %d: %s", record.round, told)
            self.noted.add(note.topic)
        of = {state: [c for c, found in here.states.items() if found == state] for state in STATES[:-1]}
        gone = [f"{state}: {listed(who)}" for state, who in of.items() if who]
        status = ", ".join([_quality(record.metrics), *(gone or ["all in the model"])])
        self.bar.update(self.task, completed=record.round, status=safe(status))
        if self.bar.disable and not self.quiet and record.round % max(1, self.rounds // 10) == 0:  # a log file
            LOG.info("%s: round %d of %d, %s", self.name, record.round, self.rounds, status)

    def farewell(self, home: Path | None) -> str:
        """How to continue after Ctrl-C or a signal."""
        if self.run is None:
            return "interrupted before the first round; nothing was recorded"
        with suppress(FedwardenError), reader(home) as ledger:  # a round may be committed and not yet told
            self.done = ledger.last_round(self.run)
        return f"interrupted after round {self.done} of {self.rounds}; {self.continued(home)}"

    def continued(self, home: Path | None) -> str:
        """The command that continues the run."""
        where = "" if home is None else f" --home {shlex.quote(str(home))}"
        return f"continue with: fedwarden run --resume {self.run}{options(self.imports)}{where}"


def summary_of(result: sim.federation.Result, seconds: float, all_known: bool) -> dict[str, Any]:
    """What is told of a finished run."""
    found, story = result.detection, Story.of(result.records)
    doubted = story.gone
    return {
        "run": result.run,
        "name": result.name,
        "state": "done",
        "verdict": story.sentences,
        "different": story.closing(result.run),
        "fates": fates(story, found.attackers, all_known) if story.judged else [],
        **result.summary,
        "wronged": list(found.wronged),
        "found": [client for client in found.attackers if client in story.standings],
        "honest_in_doubt": sorted(doubted.difference(found.attackers)),
        **conclusion(story, found.attackers),
        "watched": list(story.series.watches),
        "warnings": notes_as_tables(rounds_by_note(story.series.notes)),
        "seconds": round(seconds, 2),
    }


def _find(home: Path | None, scenario: Scenario | None, which: str) -> Run:
    """The run to continue."""
    with reader(home) as ledger:
        if which != LATEST:
            run = ledger.run(which)
            if run.engine not in SIMULATORS:
                raise ConfigError(f"run {run.id} was recorded by {run.engine!r}; only simulations can be resumed")
            return run
        mine = [r for r in ledger.runs() if r.engine in SIMULATORS and (scenario is None or r.name == scenario.name)]
        unfinished = [r for r in mine if r.state != "done" or (scenario is not None and r.rounds < scenario.rounds)]
        if unfinished or mine:
            return (unfinished or mine)[0]
        name = "" if scenario is None else f" named {scenario.name!r}"
        raise ConfigError(f"no run{name} in {ledger.folder} to resume; start one without --resume")


def _already(run: Run, home: Path | None, as_json: bool) -> None:
    if as_json:
        with reader(home) as ledger:
            ended = conclusion(RunRecord.read(ledger, run.id).story, truth_of(run) or ())
        told = {"run": run.id, "name": run.name, "state": run.state, **run.summary, **ended}
        return emit({**told, "already_done": True})
    out.print(f"run {run.id} ({safe(run.name)}) is already done: {count(run.rounds, 'round')}; nothing to resume")
    hint(
        f"fedwarden show {run.id}  # its clients, their states and why",
        f"fedwarden run --resume {run.id} --set rounds={2 * run.rounds}  # continue for more rounds",
        folder=home,
        imports=plugins_of(run),
    )
    return None


def _quality(metrics: Mapping[str, float]) -> str:
    """The accuracy of a round, or its loss where the task has no accuracy."""
    if "accuracy" not in metrics and "loss" in metrics:
        return f"loss {number(metrics['loss'])}"
    return f"accuracy {percent(metrics.get('accuracy'))}"


def show_report(report: dict[str, Any], home: Path | None, scenario: Scenario) -> None:
    """Print a finished run."""
    out.print(f"[bold]run {report['run']}[/]  {safe(report['name'])}  done in {report['seconds']:.1f} s")
    for sentence in report["verdict"]:
        out.print(safe(sentence))
    if report["accuracy"] is None and report["loss"] is not None:  # a task without an accuracy
        out.print(f"  test loss          {number(report['loss'])} after {count(report['rounds'], 'round')}")
    else:
        out.print(f"  clean accuracy     {percent(report['accuracy'])} after {count(report['rounds'], 'round')}")
    if report["target"] is not None:
        reached = report["rounds_to_target"]
        when = "not reached" if reached is None else f"reached in round {reached}"
        out.print(f"  target {percent(report['target']):<12}{when}")
    for sentence in report["fates"]:
        out.print(f"  {sentence}")
    for sentence in report["different"]:
        out.print(safe(sentence))
    commands = [
        f"fedwarden show {report['run']}  # its clients, their states and why",
        f"fedwarden report {report['run']}  # the same with figures, as one file to pass on",
    ]
    if report["watched"]:
        commands.append(f"fedwarden replay {report['run']} --rule gesd  # what another rule would have decided")
    hint(*commands, folder=home, imports=scenario.imports)
