"""fedwarden watches, guards and audits federated learning.

Names are imported when they are first used, so that ``import fedwarden`` and the command line start at once. Components
live in the package of their kind, as ``fedwarden.rules.GESD``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core.late import late

if TYPE_CHECKING:
    from .aggregators.common import aggregate
    from .audit.auditor import Auditor
    from .audit.metrics import cmd as cmd
    from .audit.metrics import cosine as cosine
    from .audit.metrics import procrustes as procrustes
    from .core.errors import ConfigError, FedwardenError
    from .core.notes import Note
    from .core.registry import names, register
    from .core.stats import robust_z as robust_z
    from .core.types import Aggregate as Aggregate
    from .core.types import Cohort, Outcome, Rejection, RoundRecord, Server, Word
    from .core.types import Reading as Reading
    from .core.types import Verdict as Verdict
    from .guard.admission import Reply
    from .guard.decide import Decision, decide
    from .guard.judge import Guard, Memory, Watch
    from .guard.limits import Admission
    from .guard.warden import Warden
    from .history.pid import PID as PID
    from .rules.gesd import GESD as GESD
    from .rules.gesd import gesd as gesd
    from .rules.sigma import KSigma as KSigma
    from .signals.divergence import divergence as divergence
    from .sim.data.sources import Dataset
    from .sim.from_python import simulate
    from .store.record import RunRecord
    from .updates.segments import Scaled as Scaled
    from .updates.updates import Updates

__version__ = "0.2.0"

__all__ = [
    "Admission", "Auditor", "Cohort", "ConfigError", "Dataset", "Decision", "FedwardenError", "Guard", "Memory", "Note",
    "Outcome", "Rejection", "Reply", "RoundRecord", "RunRecord", "Server", "Updates", "Warden", "Watch", "Word",
    "__version__", "aggregate", "decide", "names", "register", "simulate",
]  # fmt: skip

_HOMES = {
    "guard.warden": ("Warden",),
    "guard.judge": ("Watch", "Guard", "Memory"),
    "guard.limits": ("Admission",),
    "guard.admission": ("Reply",),
    "guard.decide": ("Decision", "decide"),
    "updates.segments": ("Scaled",),
    "updates.updates": ("Updates",),
    "core.types": (
        "Cohort",
        "Server",
        "Outcome",
        "RoundRecord",
        "Rejection",
        "Word",
        "Reading",
        "Verdict",
        "Aggregate",
    ),
    "core.notes": ("Note",),
    "core.registry": ("register", "names"),
    "core.errors": ("ConfigError", "FedwardenError"),
    "aggregators.common": ("aggregate",),
    "sim.from_python": ("simulate",),
    "sim.data.sources": ("Dataset",),
    "store.record": ("RunRecord",),
    "audit.auditor": ("Auditor",),
    "audit.metrics": ("cosine", "procrustes", "cmd"),
    "core.stats": ("robust_z",),
    "history.pid": ("PID",),
    "rules.gesd": ("GESD", "gesd"),
    "rules.sigma": ("KSigma",),
    "signals.divergence": ("divergence",),
}

__getattr__ = late(__name__, _HOMES)


def __dir__() -> list[str]:
    return list(__all__)
