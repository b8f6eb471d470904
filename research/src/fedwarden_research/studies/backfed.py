"""BackFed's setting on CIFAR-10 as its authors' code of May 2025 ran it, with their rules, from their way of training.

A hundred clients by Dirichlet(0.5), ten a round, ResNet-18 with the stem for large images, SGD with rate .1, momentum
.9, weight decay .0005, batches of 64, two epochs, float16 with a gradient scaler; 2,000 rounds of FedAvg with a step
of .1; 300 rounds of the rule without attack (FedAvg: none); then ten of the hundred attack: a white square of 5x5 at
25 to 29 on 20 of 64 images, which are labelled 2, six epochs, rate .05 that falls tenfold every two. Each switch of
:class:`Options` turns off one of the ways in which their code differs from what the paper describes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedwarden.core.config import Strict, override, parse
from fedwarden.core.errors import ConfigError
from fedwarden_research.datasets import cifar10_whole

from . import backfed_rules as rules
from .backfed_training import BATCH, SEED, Asking, Parts, Setting, schedule
from .plan import Asked, Plan, check
from .tables import Result, Results, columns, markdown, select

TRAINED, BEFORE, ROUNDS, LAST = 2000, 300, 100, 10
TRAINING = "training"
Rule = Callable[[rules.Replies, float], rules.Change]
RULES: Mapping[str, tuple[Rule, float, int]] = {  # the rule, the server's step, rounds before the attack
    "FedAvg": (rules.fedavg, 1.0, 0),
    "FedAvg, step .1": (rules.fedavg, 0.1, 0),
    "norm clipping": (rules.norm_clipping, 0.1, BEFORE),
    "median": (rules.median, 1.0, BEFORE),
    "trimmed mean": (rules.trimmed_mean, 1.0, BEFORE),
    "Multi-Krum": (rules.multi_krum, 0.1, BEFORE),
    "FLAME": (rules.flame, 0.1, BEFORE),
}
PUBLISHED = {  # accuracy and attack success in rounds 91 to 100, and the honest clients' training accuracy in 1 to 5
    "FedAvg": (66.44, 73.90, 76.28),
    "FedAvg, step .1": (72.19, 31.02, 73.47),
    "norm clipping": (70.04, 8.67, 76.6),
    "median": (48.51, 33.29, 74.9),
    "trimmed mean": (71.87, 78.68, 85.5),
    "Multi-Krum": (70.97, 5.96, 77.2),
    "FLAME": (70.92, 52.22, 76.2),
}


class Options(Strict):
    """What ``--set`` may say; the defaults are theirs. Each one may be turned off to see what it explains.

    ``batches``: the same in every round, or fresh ones. ``split``: whether a run with attack deals class 0 anew.
    ``half``: float16 with a gradient scaler. ``handed_on``: which model of the rounds before. ``counters``: whether
    Multi-Krum's distance holds them.
    """

    checkpoint: str = "backfed.npz"
    batches: Literal["fixed", "fresh"] = "fixed"
    split: Literal["theirs", "same"] = "theirs"
    half: bool = True
    handed_on: Literal["best", "last"] = "best"
    counters: bool = True


@dataclass(frozen=True)
class Best:
    """The model that did best on the test images, and its accuracy and round."""

    accuracy: float = -1.0
    round: int = 0
    model: rules.Change | None = None


def without_attack(
    setting: Setting, rule: Rule, eta: float, model: rules.Change, best: Best, span: range, options: Options
) -> tuple[rules.Change, Best]:
    """These rounds without attack; the last model, and the best on the test images."""
    parts, asked = schedule(setting.y.cpu().numpy(), False, span.stop)
    for t in span:
        model, _ = _next(setting, rule, eta, model, parts, asked[t], t, options)
        accuracy, _ = setting.test(*model, t)
        if accuracy > best.accuracy:
            best = Best(accuracy, t + 1, model)
    return model, best


def _next(
    setting: Setting, rule: Rule, eta: float, model: rules.Change, parts: Parts, asking: Asking,
    t: int, options: Options,
) -> tuple[rules.Change, float]:  # fmt: skip
    replies, trained = setting.round(*model, parts, asking, t, options.half, options.batches == "fixed")
    change = rule(replies, eta)
    return (model[0] + change[0], model[1] + change[1]), trained


def train(setting: Setting, rounds: int, options: Options) -> Result:
    """FedAvg with a step of .1 from nothing; kept every hundred rounds, from where a run that was cut off goes on."""
    path, model, best, done = Path(options.checkpoint), setting.start, Best(), 0
    if path.is_file():
        with np.load(path) as kept:
            on = {name: torch.from_numpy(kept[name]).to(setting.device) for name in kept.files}
        if "rounds" not in on:
            raise ConfigError(f"{path} is a finished checkpoint; give another file to train into")
        model, done = (on["last_params"], on["last_buffers"]), int(on["rounds"])
        best = Best(float(on["accuracy"]), int(on["round"]), (on["params"], on["buffers"]))
    for stop in range(done + 100 - done % 100, rounds + 100, 100):
        span = range(done, min(stop, rounds))
        model, best = without_attack(setting, rules.fedavg, 0.1, model, best, span, options)
        done = span.stop
        own = best.model if options.handed_on == "best" and best.model else model
        rows = (row.cpu().numpy() for row in (*own, *model))
        names = ("params", "buffers", "last_params", "last_buffers")
        kept = dict(zip(names, rows, strict=True))
        np.savez(path, rounds=done, accuracy=best.accuracy, round=best.round, **kept)
    return {"rounds": done, "accuracy": best.accuracy, "round": best.round, "test": setting.test(*model, 0)}


def attack(setting: Setting, name: str, rounds: int, before: int, options: Options) -> Result:
    """A rule from the checkpoint on: rounds without attack, then with it; accuracy and success of each round."""
    rule, eta, own = RULES[name]
    if name == "Multi-Krum":
        rule = partial(rules.multi_krum, counters=options.counters)
    if name == "FLAME":
        rule = partial(rules.flame, rng=torch.Generator(setting.device).manual_seed(SEED))
    try:
        with np.load(options.checkpoint) as kept:
            rows = [torch.from_numpy(kept[n].astype(np.float32)).to(setting.device) for n in ("params", "buffers")]
    except (OSError, ValueError, KeyError) as error:
        made = "fedwarden bench backfed --case training makes one"
        raise ConfigError(
            f"{options.checkpoint} is not a checkpoint with params and buffers: {error}; {made}"
        ) from error
    model, best = (rows[0], rows[1]), Best()
    if own and before:
        model, best = without_attack(setting, rule, eta, model, best, range(before), options)
        model = best.model if options.handed_on == "best" and best.model else model
    parts, asked = schedule(setting.y.cpu().numpy(), True, rounds, early=not own, same=options.split == "same")
    found = []
    for t in range(rounds):
        model, trained = _next(setting, rule, eta, model, parts, asked[t], t, options)
        found.append([*setting.test(*model, t), trained])
    late, first = np.mean(found[-LAST:], axis=0), np.mean(found[:5], axis=0)
    return {"accuracy": late[0], "success": late[1], "trained": first[2], "best": best.round, "rounds": found}


def measure(table: Mapping[str, Any]) -> Result:
    """Train the model that all start from, or run a rule from there."""
    options, data, device = parse(Options, table["options"]), cifar10_whole(), table["device"]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    parts, _ = schedule(data.y_train.numpy(), True, 0)
    most = 6 * (max(map(len, parts)) // BATCH + 1)
    setting = Setting((data.x_train, data.y_train, data.x_test, data.y_test), device, most)
    if table["defence"] == TRAINING:
        return train(setting, table["rounds"], options)
    return attack(setting, table["defence"], table["rounds"], min(BEFORE, 3 * table["rounds"]), options)


def plan(asked: Asked) -> Plan:
    """The training that all start from, which ``--case training`` asks for, or every rule from there."""
    check("case", asked.case, [TRAINING])
    check("defence", asked.defence, list(RULES))
    options = parse(Options, override({}, asked.settings)).model_dump()
    rounds = asked.rounds or (TRAINED if asked.case else ROUNDS)
    names = [TRAINING] if asked.case else [name for name in RULES if name in asked.defence or not asked.defence]
    own = {"options": options, "rounds": rounds, "device": asked.device or "cpu"}
    cells = [({"defence": name, "rounds": rounds, **options}, {**own, "defence": name}) for name in names]
    command = asked.command("backfed", rounds=asked.rounds, device=asked.device)
    made = partial(page, command=command)
    return Plan("backfed", cells, "backfed.md", shown, made, run=measure)


def shown(results: Results) -> str:
    """The table of the rules, or what the training reached."""
    trained = select(results, {"defence": TRAINING})
    said = [
        f"{r['rounds']} rounds without attack; best {100 * r['accuracy']:.1f} % in round {r['round']}" for r in trained
    ]
    return "\n\n".join([*said, *([] if len(trained) == len(results) else [table(results)])])


def table(results: Results) -> str:
    """Published numbers beside those of these runs."""
    header = columns(
        "defence | accuracy, published | ours | attack success, published | ours | training accuracy, published | ours"
    )
    rows = []
    for name, theirs in PUBLISHED.items():
        for found in select(results, {"defence": name}):
            ours = (100 * found[key] for key in ("accuracy", "success", "trained"))
            rows.append([name, *(f"{v:.1f}" for pair in zip(theirs, ours, strict=True) for v in pair)])
    return markdown(header, rows)


def page(results: Results, command: str) -> str:
    """The bench's own page."""
    return f"# BackFed's setting\n\n<!-- not run: a GPU -->\n```bash\n{command}\n```\n\n{shown(results)}"
