"""The records that pass between processes, a module for each boundary.

Every record is frozen and refuses unknown fields. Times are Unix seconds (UTC), durations milliseconds unless
the name says otherwise. `policy_version` is the MLflow version number of the weights, as text ("1", "2", ...).
"""

from infra.records.base import Arm, LabelOutcome, ObjectReference, Record, ShowLevel
from infra.records.cycles import Bucket, CycleOutcome, Manifest, Profile, Quarantined, RewardTotals, Sample
from infra.records.erasure import Amendment, Forgotten
from infra.records.events import Completion, Feedback, FinishReason, NotTaken, Outcome, ShadowCopy
from infra.records.experiments import (
    ArmEvidence,
    CheckResult,
    Copies,
    Decision,
    ExperimentRecord,
    MetricResult,
    Plan,
    PlannedMetric,
    Rate,
    Stage,
    StageName,
    Verdict,
    VerdictName,
)
from infra.records.heldout import Case, HeldOutCompletion, HeldOutPlace, HeldOutSet, Program
from infra.records.looks import Look
from infra.records.measures import QUICK_MS, RATIOS, MeasuredGroup, Measures, ServedVersion
from infra.records.moves import Change, Move, MoveKind, Shown, State
from infra.records.requests import MoveAnswer, MoveRequest
from infra.records.versions import VersionDelta

__all__ = [
    "QUICK_MS",
    "RATIOS",
    "Amendment",
    "Arm",
    "ArmEvidence",
    "Bucket",
    "Case",
    "Change",
    "CheckResult",
    "Completion",
    "Copies",
    "CycleOutcome",
    "Decision",
    "ExperimentRecord",
    "Feedback",
    "FinishReason",
    "Forgotten",
    "HeldOutCompletion",
    "HeldOutPlace",
    "HeldOutSet",
    "LabelOutcome",
    "Look",
    "Manifest",
    "MeasuredGroup",
    "Measures",
    "MetricResult",
    "Move",
    "MoveAnswer",
    "MoveKind",
    "MoveRequest",
    "NotTaken",
    "ObjectReference",
    "Outcome",
    "Plan",
    "PlannedMetric",
    "Profile",
    "Program",
    "Quarantined",
    "Rate",
    "Record",
    "RewardTotals",
    "Sample",
    "ServedVersion",
    "ShadowCopy",
    "ShowLevel",
    "Shown",
    "Stage",
    "StageName",
    "State",
    "Verdict",
    "VerdictName",
    "VersionDelta",
]
