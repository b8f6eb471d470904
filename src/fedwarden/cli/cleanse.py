"""``fedwarden cleanse``: the model of a run without the backdoors that are found in it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer
from safetensors.torch import save_file
from torch import Tensor

from ..core.errors import ConfigError
from ..core.types import NO_WORD
from ..guard.backdoors import Cleaner
from ..sim.federation import Federation
from ..sim.recorded import SIMULATORS, naming_plugins, recorded_scenario
from ..store.checkpoint import newest
from ..store.export import draft
from ..store.ledger import Ledger
from .common import LOG, AsJson, Force, Home, Imports, Output, RunNumber, Settings, bring, emit, out, safe, vacant

HELD = "data.reserve=200 (images of its own), or data.probe_from=noise"

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def cleanse(
    run: RunNumber,
    output: Output = None,
    settings: Settings = None,
    force: Force = False,
    imports: Imports = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Look for backdoors in the model of a run, unlearn them, and write the cleansed model.

    A backdoor is found by its trigger: a mark on the server's images that leads to one class and is far smaller than
    the marks that lead to the others. The run stays as it is.
    """
    with Ledger(home, create=False) as ledger:
        found = ledger.run(run)
        if found.engine not in SIMULATORS:
            raise ConfigError(
                f"run {found.id} is of a server, whose architecture is not recorded; expected a simulation. In an app, "
                "give the warden what the server holds: Warden.equip(fedwarden.Server(model=..., probe=...))"
            )
        scenario = recorded_scenario(found, settings or (), bring(imports))
        params, notes = newest(ledger.folder, found.id, found.identity, found.rounds, lambda state, _: state["params"])
    for note in notes:
        LOG.warning("%s", note)
    if params is None:
        raise ConfigError(f"run {found.id} has no checkpoint, so its model is not known")
    with naming_plugins(found):
        federation = Federation(scenario)
    cleaner = Cleaner.of(federation.server())
    if cleaner is None:
        raise ConfigError(
            f"the server of run {found.id} has no images, or its model does not give one of 3 to 100 classes by fully "
            f"connected layers; for images add --set {HELD}"
        )
    cleaned, _, removed = cleaner.clean(params, None, 0)
    before, after = (_metrics(federation, model) for model in (params, cleaned))
    told = {"run": found.id, "removed": [asdict(each) for each in removed], "before": before, "after": after}
    path = vacant(output or Path(f"run-{found.id}-cleansed.safetensors"), force) if removed else None
    if path is not None:
        with draft(path) as made:
            save_file({k: v.contiguous() for k, v in cleaner.layout.unflatten(cleaned).items()}, made)
    if as_json:
        return emit({**told, "output": path and str(path)})
    for each in removed:
        out.print(safe(str(each.note)), soft_wrap=True)
    if path is None:
        out.print("No backdoor was found: no working trigger is less than half as large as the median class's.")
        return None
    out.print("  ".join(f"{name} {before[name]:.3f} before, {after[name]:.3f} now" for name in before))
    out.print(f"wrote {safe(str(path))}", soft_wrap=True)
    return None


def _metrics(federation: Federation, params: Tensor) -> dict[str, float]:
    """Accuracy on the test data and, where an attack has a goal, its success."""
    federation.params = params.to(federation.device)
    metrics, _ = federation.evaluate(NO_WORD)
    return {name: metrics[name] for name in ("accuracy", "attack_success") if name in metrics}
