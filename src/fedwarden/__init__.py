"""fedwarden watches, guards and audits federated learning.

Names are imported when they are first used, so that ``import fedwarden`` and the command line start at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .audit.auditor import Auditor
    from .audit.metrics import cmd, cosine, procrustes
    from .core.aggregation import aggregate
    from .core.errors import ConfigError, FedwardenError, MissingExtra
    from .core.registry import names, register
    from .core.stats import robust_z
    from .core.types import Aggregate, Cohort, Outcome, Reading, Rejection, RoundRecord, Server, Verdict, WatchRecord
    from .core.updates import Updates
    from .guard.admission import Admission, Reply
    from .guard.judge import Watch
    from .guard.warden import Warden
    from .history.evidence import Evidence
    from .history.pid import PID
    from .rules.gesd import GESD, gesd
    from .rules.offset import Offset
    from .rules.robust import RobustZ
    from .rules.sigma import Cantelli, Gaussian, KSigma
    from .signals.divergence import divergence
    from .store.record import RunRecord

__version__ = "0.1.0"

__all__ = [
    "GESD", "PID", "Admission", "Aggregate", "Auditor", "Cantelli", "Cohort", "ConfigError", "Evidence",
    "FedwardenError", "Gaussian", "KSigma", "MissingExtra", "Offset", "Outcome", "Reading", "Rejection", "Reply",
    "RobustZ", "RoundRecord", "RunRecord", "Server", "Updates", "Verdict", "Warden", "Watch", "WatchRecord",
    "aggregate", "cmd", "cosine", "divergence", "gesd", "names", "procrustes", "register", "robust_z",
]  # fmt: skip

_HOMES = {
    "audit.auditor": ("Auditor",),
    "audit.metrics": ("cmd", "cosine", "procrustes"),
    "core.aggregation": ("aggregate",),
    "core.errors": ("ConfigError", "FedwardenError", "MissingExtra"),
    "core.registry": ("names", "register"),
    "core.stats": ("robust_z",),
    "core.types": (
        "Aggregate", "Cohort", "Outcome", "Reading", "Rejection", "RoundRecord", "Server", "Verdict", "WatchRecord",
    ),
    "core.updates": ("Updates",),
    "guard.admission": ("Admission", "Reply"),
    "guard.judge": ("Watch",),
    "guard.warden": ("Warden",),
    "history.evidence": ("Evidence",),
    "history.pid": ("PID",),
    "rules.gesd": ("GESD", "gesd"),
    "rules.offset": ("Offset",),
    "rules.robust": ("RobustZ",),
    "rules.sigma": ("Cantelli", "Gaussian", "KSigma"),
    "signals.divergence": ("divergence",),
    "store.record": ("RunRecord",),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names_there in _HOMES.items():
        if name in names_there:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
