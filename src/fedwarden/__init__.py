"""fedwarden watches, guards and audits federated learning.

Names are imported when they are first used, so that ``import fedwarden`` and the command line start at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core.late import late

if TYPE_CHECKING:
    from .aggregators.arc import ARC
    from .aggregators.clipping import CenteredClipping, NormClipping
    from .aggregators.common import aggregate
    from .aggregators.coordinate import Median, Sign, TrimmedMean
    from .aggregators.flanders import Flanders
    from .aggregators.geometric import GeometricMedian
    from .aggregators.krum import Bulyan, Krum, MultiKrum
    from .aggregators.mean import Mean
    from .aggregators.mixing import Bucketing, NearestNeighbourMixing
    from .aggregators.similarity import Clustered, FoolsGold
    from .aggregators.trust import FLTrust
    from .audit.auditor import Auditor
    from .audit.metrics import cmd, cosine, procrustes
    from .core.errors import ConfigError, FedwardenError, MissingExtra
    from .core.notes import Note
    from .core.protocols import Aggregator, History, Policy, Rule, Signal
    from .core.registry import names, register
    from .core.stats import robust_z
    from .core.types import (
        Aggregate,
        Cohort,
        Outcome,
        Reading,
        Rejection,
        RoundRecord,
        Server,
        Verdict,
        WatchRecord,
        Word,
    )
    from .guard.admission import Reply
    from .guard.judge import Watch
    from .guard.limits import Admission
    from .guard.warden import Warden
    from .history.capital import Capital
    from .history.evidence import Evidence, Gathered
    from .history.leaning import Leaning
    from .history.pid import PID
    from .history.smoothing import CUSUM, EWMA, Raw
    from .history.standard import Standard
    from .policies.basic import DownWeight, Exclude, Observe, Quarantine
    from .policies.turns import Turns
    from .rules.gesd import GESD, gesd
    from .rules.offset import Offset
    from .rules.robust import RobustZ
    from .rules.sigma import Cantelli, Gaussian, KSigma
    from .rules.ville import Ville
    from .signals.alone import Alone
    from .signals.direction import Direction, Twins
    from .signals.distance import CentroidDistance
    from .signals.divergence import Divergence, divergence
    from .signals.ensemble import Ensemble
    from .signals.harm import Harm
    from .signals.jury import Jury
    from .signals.length import UpdateLength, UpdateNorm
    from .signals.loss import ProbeLoss
    from .signals.opposition import Opposition
    from .signals.relative import RelativeDistance
    from .signals.reported import ReportedNumber
    from .sim.data.sources import Dataset as Dataset
    from .sim.from_python import simulate as simulate
    from .store.record import RunRecord
    from .updates.updates import Updates

__version__ = "0.1.0"

__all__ = [
    "ARC", "CUSUM", "EWMA", "GESD", "PID", "Admission", "Aggregate", "Aggregator", "Alone",
    "Auditor", "Bucketing", "Bulyan", "Cantelli", "Capital", "CenteredClipping", "CentroidDistance", "Clustered",
    "Cohort", "ConfigError", "Direction", "Divergence", "DownWeight", "Ensemble", "Evidence", "Exclude",
    "FLTrust", "FedwardenError", "Flanders", "FoolsGold", "Gathered", "Gaussian",
    "GeometricMedian", "Harm", "History", "Jury", "KSigma", "Krum", "Leaning", "Mean", "Median",
    "MissingExtra", "MultiKrum", "NearestNeighbourMixing", "NormClipping", "Note", "Observe", "Offset", "Opposition",
    "Outcome", "Policy", "ProbeLoss", "Quarantine", "Raw", "Reading", "Rejection", "RelativeDistance",
    "Reply", "ReportedNumber", "RobustZ", "RoundRecord", "Rule", "RunRecord", "Server", "Sign", "Signal", "Standard",
    "TrimmedMean", "Turns", "Twins", "UpdateLength", "UpdateNorm", "Updates", "Verdict", "Ville", "Warden", "Watch",
    "WatchRecord", "Word", "aggregate", "cmd", "cosine", "divergence", "gesd", "names", "procrustes", "register",
    "robust_z",
]  # fmt: skip

_HOMES = {
    "aggregators.arc": ("ARC",),
    "aggregators.clipping": ("CenteredClipping", "NormClipping"),
    "aggregators.coordinate": ("Median", "Sign", "TrimmedMean"),
    "aggregators.flanders": ("Flanders",),
    "aggregators.geometric": ("GeometricMedian",),
    "aggregators.krum": ("Bulyan", "Krum", "MultiKrum"),
    "aggregators.mean": ("Mean",),
    "aggregators.mixing": ("Bucketing", "NearestNeighbourMixing"),
    "aggregators.similarity": ("Clustered", "FoolsGold"),
    "aggregators.trust": ("FLTrust",),
    "audit.auditor": ("Auditor",),
    "audit.metrics": ("cmd", "cosine", "procrustes"),
    "aggregators.common": ("aggregate",),
    "core.errors": ("ConfigError", "FedwardenError", "MissingExtra"),
    "core.notes": ("Note",),
    "core.protocols": ("Aggregator", "History", "Policy", "Rule", "Signal"),
    "core.registry": ("names", "register"),
    "core.stats": ("robust_z",),
    "core.types": (
        "Aggregate", "Cohort", "Outcome", "Reading", "Rejection", "RoundRecord", "Server", "Verdict", "WatchRecord",
        "Word",
    ),
    "updates.updates": ("Updates",),
    "guard.admission": ("Reply",),
    "guard.judge": ("Watch",),
    "guard.limits": ("Admission",),
    "guard.warden": ("Warden",),
    "history.capital": ("Capital",),
    "history.evidence": ("Evidence", "Gathered"),
    "history.leaning": ("Leaning",),
    "history.pid": ("PID",),
    "history.smoothing": ("CUSUM", "EWMA", "Raw"),
    "history.standard": ("Standard",),
    "policies.basic": ("DownWeight", "Exclude", "Observe", "Quarantine"),
    "policies.turns": ("Turns",),
    "rules.gesd": ("GESD", "gesd"),
    "rules.offset": ("Offset",),
    "rules.robust": ("RobustZ",),
    "rules.sigma": ("Cantelli", "Gaussian", "KSigma"),
    "rules.ville": ("Ville",),
    "signals.direction": ("Direction", "Twins"),
    "signals.distance": ("CentroidDistance",),
    "signals.divergence": ("Divergence", "divergence"),
    "signals.ensemble": ("Ensemble",),
    "signals.harm": ("Harm",),
    "signals.jury": ("Jury",),
    "signals.length": ("UpdateLength", "UpdateNorm"),
    "signals.loss": ("ProbeLoss",),
    "signals.alone": ("Alone",),
    "signals.opposition": ("Opposition",),
    "signals.relative": ("RelativeDistance",),
    "signals.reported": ("ReportedNumber",),
    "store.record": ("RunRecord",),
    "sim.data.sources": ("Dataset",),  # these two load the simulator, so that a star does not import them
    "sim.from_python": ("simulate",),
}  # fmt: skip

__getattr__ = late(__name__, _HOMES)


def __dir__() -> list[str]:
    return [*__all__, "Dataset", "__version__", "simulate"]
