"""The past of the loop, read from the object store and the registry: cycles, decisions, aliases."""

import io
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from evals.demo.record import CycleRow, ExperimentRow, Step
from infra.model.showing import FILE
from infra.pages.experiment_view import confidence_sequences
from infra.records import Decision, ExperimentRecord
from infra.registry.client import Aliases, Registry
from infra.storage import cycles, looks
from infra.storage.store import ObjectStore
from tasks.versions.review import object_of

MOST_LOOKS = 60
"""Looks of a test in the report, about: enough for a chart."""


@dataclass(frozen=True)
class LoopState:
    """The state of the loop at one moment."""

    aliases: Aliases
    outcomes: dict[str, dict[str, Any]]  # outcome of each ended cycle, oldest first (infra/storage/cycles.py)
    decisions: dict[str, Decision]  # decisions of the gate, by experiment

    @property
    def promotions(self) -> int:
        """Number of experiments that the gate ended with a promotion."""
        return sum(d.verdict.verdict == "promote" for d in self.decisions.values())

    @property
    def rejections(self) -> int:
        """Number of experiments that the gate ended with a rejection and of candidates that held-out evaluation refused."""
        rejected = sum(d.verdict.verdict == "reject" for d in self.decisions.values())
        return rejected + sum(outcome["result"] == "refused" for outcome in self.outcomes.values())


def read_state(store: ObjectStore, registry: Registry) -> LoopState:
    """Return the current state of the loop."""
    keys = list(store.keys(cycles.PREFIX))
    outcomes = {key.split("/")[1]: store.get_json(key) for key in keys if key.endswith("/" + cycles.OUTCOME)}
    decisions = [Decision.model_validate(store.get_json(key)) for key in store.keys("decisions/")]
    return LoopState(registry.aliases(), outcomes, {d.experiment.id: d for d in decisions if d.by == "gate"})


def cycle_rows(store: ObjectStore, state: LoopState) -> list[CycleRow]:
    """Return the report's row of each ended cycle, oldest first; leaves out abandoned cycles."""
    return [_row(store, state, cycle, outcome) for cycle, outcome in state.outcomes.items() if outcome["result"] != "abandoned"]


def _row(store: ObjectStore, state: LoopState, cycle: str, outcome: dict[str, Any]) -> CycleRow:
    manifest = cycles.manifest_of(store, cycle)
    training = object_of(store, cycle, "training.json")
    evaluation = object_of(store, cycle, "evaluation.json")
    decision = state.decisions.get(outcome["experiment"])
    decided: dict[str, Any] = {"verdict": "refused" if outcome["result"] == "refused" else "running", "reason": outcome["reason"]}
    if decision:
        decided |= decision.verdict.model_dump(include={"verdict", "reason", "estimate", "low", "high"})
    rows = pq.read_table(io.BytesIO(store.get(manifest.samples.key)), columns=["outcome"]).to_pylist()
    served = sum(row["outcome"] not in ("standing", "judged") for row in rows)
    steps = training.get("steps", [])
    last_step: dict[str, Any] = next((step for step in reversed(steps) if step.get("kl") is not None), {})
    return CycleRow(
        cycle=cycle,
        parent=manifest.parent,
        version=outcome["version"],
        samples=served,
        requests=manifest.requests,
        buckets={str(bucket): count for bucket, count in manifest.buckets.items()},
        quarantined=manifest.quarantined,
        measures=manifest.measures,
        mean_reward=training.get("mean_reward"),
        clip_fraction=last_step.get("clip_fraction"),
        kl=last_step.get("kl"),
        logprob_difference=training.get("logprob_difference_max"),
        judge=evaluation.get("candidate", {}).get("judged"),
        calibration=object_of(store, cycle, FILE).get("reliability"),
        steps=[Step(**{name: step.get(name) for name in Step.model_fields}) for step in steps],
        **decided,
    )


def experiment_rows(store: ObjectStore, state: LoopState) -> list[ExperimentRow]:
    """Return the report's row of the A/B test of each ended cycle that had one, oldest first."""
    return [_experiment(store, state, name) for outcome in state.outcomes.values() if (name := outcome["experiment"])]


def _experiment(store: ObjectStore, state: LoopState, name: str) -> ExperimentRow:
    record = ExperimentRecord.model_validate(store.get_json(f"experiments/{name}.json"))
    decision, seen = state.decisions.get(name), looks.some(store, name, looks.newest_number(store, name), MOST_LOOKS)
    return ExperimentRow(
        experiment=name,
        champion=record.champion,
        challenger=record.challenger,
        verdict=decision.verdict.verdict if decision else "running",
        reason=decision.verdict.reason if decision else "",
        result=decision.verdict if decision else seen[-1].verdict if seen else None,
        sequences=confidence_sequences(seen, record.plan) if record.plan else [],
    )


def request_rows(store: ObjectStore, state: LoopState) -> list[dict[str, Any]]:
    """Return each request of the ended cycles once: its user, whether it explored, and what its newest cycle made of it.

    Left out are requests of cycles that older code sealed, which noted no exploring, and those that retention removed.
    """
    rows: dict[str, dict[str, Any]] = {}
    for cycle in state.outcomes:
        manifest = cycles.manifest_of(store, cycle)
        key = cycles.key(cycle, f"requests-{manifest.samples.sha256}.parquet")
        if not store.exists(key):
            continue
        table = pq.read_table(io.BytesIO(store.get(key)))
        if "exploring" in table.column_names:
            rows |= {row["id"]: row for row in table.select(["id", "user", "bucket", "exploring", "accepted"]).to_pylist()}
    return list(rows.values())
