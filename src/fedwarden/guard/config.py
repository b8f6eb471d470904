"""The [guard] table of a run's description: a warden from plain values, and plain values from a warden."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from ..core.config import Component, Part, Strict, override, parse
from ..core.errors import ConfigError, nearest, returned
from ..core.registry import describe, make
from .judge import NAMED, Action, Combine, Watch

if TYPE_CHECKING:  # whoever shows a run reads its guard and builds none; a warden loads torch
    from .warden import Warden

PER_WATCH = ("history", "rule", "start_round")
HOW = ("combine", "share_copies", "quorum", "shorten", "joint", "newcomers", "paired", "secret", "standing")


class WatchConfig(Strict):
    """One watch: signal, history, rule."""

    signal: Part
    history: Part = Component(name="raw")
    rule: Part = Component(name="gesd")
    start_round: int = Field(2, ge=1)
    name: str = ""
    action: Action = "exclude"

    def build(self) -> Watch:
        parts = {kind: getattr(self, kind).make(kind) for kind in ("signal", "history", "rule")}
        own = self.model_dump(include={"start_round", "name", "action"})
        return Watch(**parts, **own)


class AdmissionConfig(Strict):
    """The limits of what is let in; what is not given is the preset's. No limit: ``inf``, or a share of 1."""

    count_ratio: float | None = Field(None, ge=1)
    max_share: float | None = Field(None, gt=0, le=1)
    norm_ratio: float | None = Field(None, gt=1)
    buffers: Literal["median", "mean"] | None = None
    shares: dict[str, Annotated[float, Field(gt=0, le=1)]] | None = None


class GuardConfig(Strict):
    """A preset with its options, or watches of one's own; what is given here replaces the preset's.

    The name of a preset stands for it, as that of any component does. ``alike`` says of ``auto`` that all clients hold
    data of the same kind. ``trusted`` and ``jurors`` name clients; if ``paired``, each juror is sent one of two models.
    ``adapters`` says how the model's low-rank adapters are named, if it has any, so that their products are judged.
    ``standing`` names the run whose trusted, excluded and suspended clients are so from the first round on. With
    ``backdoors``, as ``auto`` has it, a server with images finds and unlearns the triggers of backdoors.
    """

    preset: str = "auto"
    options: dict[str, Any] = Field(default_factory=dict)
    watches: tuple[WatchConfig, ...] | None = None
    policy: Part | None = None
    aggregator: Part | None = None
    combine: Combine | None = None
    share_copies: bool | None = None
    quorum: int | None = Field(None, ge=1)
    shorten: float | None = Field(None, gt=0)
    joint: float | None = Field(None, gt=0)
    newcomers: bool | None = None
    secret: int | None = Field(None, ge=0)
    standing: str | int | None = None
    alike: bool | None = None
    trusted: tuple[str, ...] | None = None
    jurors: tuple[str, ...] | None = None
    paired: bool | None = None
    adapters: str | dict[str, Any] | None = None
    backdoors: bool | None = None
    admission: AdmissionConfig = AdmissionConfig()

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, given: Any) -> Any:
        if isinstance(given, dict) and "name" in given:  # a bare name that an override opened
            if "preset" in given:
                raise ValueError(f'named twice, {given["name"]!r} and {given["preset"]!r}: give one, as guard = "auto"')
            return {"preset" if key == "name" else key: value for key, value in given.items()}
        return {"preset": given} if isinstance(given, str) else given

    def build(self, known: frozenset[str] | None = None, secret: int | None = None) -> Warden:
        """The warden; ``secret`` is what its draws hang on where the configuration names none."""
        for key in NAMED:
            for client in getattr(self, key) or ():
                if known is not None and client not in known:
                    raise ConfigError(f"guard.{key}: there is no client {client!r}; {nearest(client, known)}")
        base: Warden = make(
            "preset", self.preset, **self.options, **({} if self.alike is None else {"alike": self.alike})
        )
        of = import_module("fedwarden.guard.warden").Warden
        returned(isinstance(base, of), f"the preset {self.preset!r} returns a fedwarden.Warden", base)
        parts: dict[str, Any] = {key: getattr(self, key) for key in HOW if getattr(self, key) is not None}
        parts |= {kind: part.make(kind) for kind in ("policy", "aggregator") if (part := getattr(self, kind))}
        parts |= {} if self.watches is None else {"watches": [w.build() for w in self.watches]}
        parts |= {key: clients for key in NAMED if (clients := getattr(self, key)) is not None}
        parts |= {} if self.backdoors is None else {"backdoors": self.backdoors}
        parts |= {} if secret is None else {"secret": parts.get("secret", secret)}
        limits = self.admission.model_dump(exclude_none=True)
        warden = base.but(admission=replace(base.admission, known=known, **limits), **parts)
        return warden if self.adapters is None else warden.of_products()


def spell(part: object) -> str:
    """A component in a few words.

    >>> spell(Watch("centroid_distance", rule={"name": "k_sigma", "k": 3.0}).rule)
    'k_sigma(k=3.0)'
    """
    options = ", ".join(f"{k}={v}" for k, v in _table(part).items() if k != "name" and v is not None)
    name = str(_table(part)["name"])
    return f"{name}({options})" if options else name


def spell_guard(warden: Warden) -> str:
    """A guard in a few words.

    >>> from fedwarden import Warden
    >>> spell_guard(Warden([Watch("centroid_distance", rule="k_sigma", name="far")]))
    'far: centroid_distance(centre=mean) > raw > k_sigma(k=2.33); observe'
    """
    watches = [f"{w.name}: {spell(w.signal)} > {spell(w.history)} > {spell(w.rule)}" for w in warden.watches]
    return "; ".join([*watches, spell(warden.policy)])


def guard_table(warden: Warden) -> dict[str, Any]:
    """The ``[guard]`` table that describes a warden in full."""
    limits = warden.admission
    return {
        "policy": _table(warden.policy),
        "aggregator": _table(warden.aggregator),
        "admission": {
            "count_ratio": limits.count_ratio or math.inf,
            "max_share": limits.max_share or 1.0,
            "norm_ratio": limits.norm_ratio or math.inf,
            "buffers": limits.buffers,
            "shares": dict(limits.shares),
        },
        **{key: getattr(warden.guard, key) for key in HOW},
        "backdoors": warden.backdoors,
        "shorten": warden.guard.shorten or math.inf,
        "joint": warden.guard.joint or math.inf,
        **{key: sorted(getattr(warden.guard, key)) for key in NAMED},
        "watches": [
            {part: _table(getattr(w, part)) for part in ("signal", "history", "rule")}
            | {key: getattr(w, key) for key in ("name", "start_round", "action")}
            for w in warden.watches
        ],
    }


def alter(warden: Warden, settings: Sequence[str]) -> Warden:
    """A fresh warden with other settings ``a.b=c``; those of a history, rule or start_round go to every watch.

    >>> from fedwarden import Warden
    >>> alter(Warden([Watch("centroid_distance")]), ["rule=k_sigma", "rule.k=3.0"]).watches[0].rule
    KSigma(k=3.0)
    """
    spread = []
    for setting in settings:
        head = setting.partition("=")[0].split(".")[0].strip()
        known = {*PER_WATCH, *GuardConfig.model_fields} - {
            "preset",
            "options",
            "alike",
            "adapters",
        }  # all in the warden
        if head not in known:
            raise ConfigError(f"a guard has no setting {head!r}; {nearest(head, known)}")
        each = head in PER_WATCH
        spread += [f"watches.{i}.{setting}" for i in range(len(warden.watches))] if each else [setting]
    return parse(GuardConfig, override(guard_table(warden), spread)).build()


def _table(part: object) -> dict[str, Any]:
    return {key: value for key, value in describe(part).items() if key != "kind"}
