"""The loop's past, read from the object store and the registry: cycles, verdicts, who serves."""

import io
import json
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from evals.demo.record import CycleRow
from infra.records import Decision, Manifest
from infra.registry import Aliases, Registry
from infra.store import ObjectStore


@dataclass(frozen=True)
class LoopState:
    """The loop at one moment."""

    aliases: Aliases
    ended: dict[str, dict[str, Any]]
    """Outcome of each cycle that is over, oldest first (infra/cycles.py)."""
    decisions: dict[str, Decision]
    """Decisions of the gate, by experiment."""

    @property
    def promotions(self) -> int:
        """Experiments that the gate ended with a promotion."""
        return sum(d.verdict.verdict == "promote" for d in self.decisions.values())

    @property
    def rejections(self) -> int:
        """Experiments that the gate ended with a rejection, and candidates that held-out evaluation refused."""
        rejected = sum(d.verdict.verdict == "reject" for d in self.decisions.values())
        return rejected + sum(outcome["result"] == "refused" for outcome in self.ended.values())


def read_state(store: ObjectStore, registry: Registry) -> LoopState:
    """Read the loop's state."""
    keys = list(store.keys("cycles/"))
    ended = {key.split("/")[1]: store.get_json(key) for key in keys if key.endswith("/outcome.json")}
    decided = [Decision.model_validate(store.get_json(key)) for key in store.keys("decisions/")]
    decisions = {d.experiment.id: d for d in decided if d.by == "gate"}
    return LoopState(registry.aliases(), ended, decisions)


def cycle_rows(store: ObjectStore, world: LoopState) -> list[CycleRow]:
    """The cycles that are over, oldest first."""
    return [_row(store, world, cycle, outcome) for cycle, outcome in world.ended.items() if outcome["result"] != "abandoned"]


def _row(store: ObjectStore, world: LoopState, cycle: str, outcome: dict[str, Any]) -> CycleRow:
    manifest = Manifest.model_validate(store.get_json(f"cycles/{cycle}/manifest.json"))
    training = _json(store, f"cycles/{cycle}/training.json")
    evaluation = _json(store, f"cycles/{cycle}/evaluation.json")
    decision = world.decisions.get(outcome["experiment"])
    verdict = decision.verdict if decision else None
    rewards = pq.read_table(io.BytesIO(store.get(manifest.samples.key)), columns=["reward"])["reward"].to_pylist()
    last = training["steps"][-1] if training.get("steps") else {}
    return CycleRow(
        cycle=cycle,
        parent=manifest.parent,
        version=outcome["version"],
        samples=manifest.samples.rows,
        requests=manifest.requests,
        buckets={str(bucket): count for bucket, count in manifest.buckets.items()},
        quarantined=manifest.quarantined,
        mean_reward=sum(rewards) / len(rewards),
        clip_fraction=last.get("clip_fraction"),
        kl=last.get("kl"),
        logprob_difference=training.get("logprob_difference_max"),
        judge=evaluation.get("candidate", {}).get("judged"),
        verdict="refused" if outcome["result"] == "refused" else verdict.verdict if verdict else "running",
        reason=verdict.reason if verdict else outcome["reason"],
        estimate=verdict.estimate if verdict else None,
        low=verdict.low if verdict else None,
        high=verdict.high if verdict else None,
    )


def _json(store: ObjectStore, key: str) -> dict[str, Any]:
    try:
        return json.loads(store.get(key))
    except KeyError:
        return {}
