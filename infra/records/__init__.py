"""The records that pass between processes, a module for each boundary.

Every record is frozen and refuses unknown fields. Times are Unix seconds (UTC), durations milliseconds unless
the name says otherwise. `policy_version` is the MLflow version number of the weights, as text ("1", "2", ...).
"""

# ruff: noqa: F401, other modules import from here

from infra.records.base import Arm, LabelOutcome, ObjectReference, Record, ShowLevel
from infra.records.cycles import AcceptanceFit, Bucket, CycleOutcome, Manifest, Profile, Quarantined, RewardTotals, Sample
from infra.records.erasure import Amendment, ErasureRequest, Forgotten, OptedOut
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
from infra.records.loop import LoopFlow, LoopRun
from infra.records.measures import QUICK_MS, RATIOS, MeasuredGroup, Measures, ServedVersion
from infra.records.moves import Change, Move, MoveAnswer, MoveKind, MoveRequest, Shown, State
from infra.records.own_code import LearnedRepository, OwnCode
from infra.records.progress import CycleProgress
from infra.records.spools import SpoolNote
from infra.records.versions import VersionDelta
