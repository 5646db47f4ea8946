"""A running test with looks, margins, checks and stages in the store of an app, as the gate leaves them."""

import math

from infra.records import (
    CheckResult,
    Decision,
    ExperimentRecord,
    Look,
    Manifest,
    MetricResult,
    ObjectReference,
    Plan,
    PlannedMetric,
    Rate,
    ServedVersion,
    Stage,
    Verdict,
)
from infra.storage import looks
from tests.serving.fakes import House, experiment
from tests.serving.helpers import run_experiment

METRICS = (
    ("accepted", "success", "more", "shown", 0.24, 0.020),
    ("characters", "success", "more", "shown", 5.1, 0.31),
    ("annoyed", "success", "fewer", "shown", 0.41, -0.012),
    ("shown", "guardrail", "more", "requests", 0.66, 0.008),
    ("failed", "guardrail", "fewer", "requests", 0.002, 0.0),
    ("ttft_p95", "guardrail", "fewer", "requests", 0.05, 0.09),
    ("length", "guardrail", "same", "judged", 21.0, 1.2),
)
MARGIN = 0.1
PLANNED = 2000
PLANS = "a crossover finds +12 % in a week"


def plan() -> Plan:
    """Return a plan of METRICS."""
    metrics = [
        PlannedMetric.model_validate(
            {"name": name, "role": role, "better": better, "per": per, "margin": MARGIN, "relative": name != "failed"}
        )
        for name, role, better, per, *_ in METRICS
    ]
    sizes = {"min_requests": 100, "planned_requests": PLANNED, "min_users": 5, "max_seconds": 86_400, "baseline_seconds": 3600}
    caps = {"max_characters": 80, "max_user_weight": 5, "max_credential_weight": 1, "min_history_requests": 20}
    checks = {"tolerated_users": 5, "srm_alpha": 0.001, "max_both_arms": 0.02, "max_label_gap": 0.05, "max_request_gap": 0.05}
    times = {"block_seconds": 3600, "settle_seconds": 60, "join_seconds": 900, "known_user_days": 90}
    return Plan.model_validate(
        {
            "mode": "superiority",
            "metrics": metrics,
            "alpha": 0.05,
            **sizes,
            **caps,
            **checks,
            **times,
            "watch_seconds": 3600,
            "planned": PLANS,
        }
    )


def result(name: str, requests: int) -> MetricResult:
    """Return a metric after so many requests an arm; its interval narrows with their root."""
    _, role, *_, mean, difference = next(each for each in METRICS if each[0] == name)
    half = max(mean, 0.02) * 6 / math.sqrt(requests)
    worse = name == "ttft_p95" and requests > 1000
    return MetricResult.model_validate(
        {
            **{"name": name, "role": role, "champion": mean, "challenger": mean + difference, "estimate": difference},
            **{"low": difference - half, "high": difference + half, "level": 0.9983, "margin": MARGIN * max(mean, 0.2)},
            "state": "worse" if worse else "unsure" if half > MARGIN * mean else "not_worse",
        }
    )


def verdict(requests: int) -> Verdict:
    """Return what the gate says after so many requests an arm."""
    rates = {
        "champion": Rate(rate=0.24, low=0.21, high=0.27, n=requests),
        "challenger": Rate(rate=0.26, low=0.23, high=0.3, n=requests),
    }
    checks = (
        CheckResult(name="both_arms", state="passed", reason="0 of 41 users were served by both arms"),
        CheckResult(name="split", state="passed", reason="20 to 21 users at a share of 50% (sample-ratio mismatch, p = 0.88)"),
        CheckResult(
            name="labels", state="hold", reason="judged per shown completion differs: -1.0% of older, -9.1% of newer requests"
        ),
    )
    return Verdict(
        verdict="undecided",
        reason="no gain is sure yet: acceptance per request +0.0200 [-0.0156, +0.0556]",
        requests={"champion": requests + 9, "challenger": requests},
        users={"champion": 21, "challenger": 20},
        acceptance=rates,
        metrics=tuple(result(name, requests) for name, *_ in METRICS),
        checks=checks,
    )


async def run_watched_test(house: House, now: float, last: int = 1400) -> ExperimentRecord:
    """Start a test that began three hours ago and has looks up to so many requests an arm."""
    await run_experiment(house)
    stages = (
        Stage(name="shadow", share=0.0, started=now - 12_000),
        Stage(name="ramp", share=0.25, started=now - 10_800),
        Stage(name="test", share=0.5, started=now - 7200),
    )
    record = experiment().model_copy(update={"started": now - 12_000, "plan": plan(), "stages": stages})
    house.registry.experiment = record
    await house.follow()
    for number, requests in enumerate(range(20, last + 1, 20), 1):
        time = now - 7200 * (1 - requests / last)
        looks.append(
            house.store, Look(experiment="e1", number=number, time=time, stage="test", share=0.5, verdict=verdict(requests))
        )
    brief = record.model_copy(update={"plan": None, "stages": ()})
    house.registry.decision = Decision(experiment=brief, verdict=verdict(last), decided=now, by="gate")
    return record


def manifest(cycle: str) -> Manifest:
    return Manifest(
        cycle=cycle,
        created=0.0,
        champion="1",
        parent="1",
        since=0.0,
        until=0.0,
        completions=(),
        feedback=(),
        samples=ObjectReference(key="k", sha256="", rows=300),
        buckets={},
        requests=0,
        settings_sha256="",
        run=f"run-of-{cycle}",
    )


def add_cycles(house: House, until: float) -> None:
    """Write three cycles whose windows, of an hour each, end at a time; two versions served, in two projects and in all."""
    accepted = {("", "1"): 0.2, ("", "2"): 0.24, ("payments", "1"): 0.3, ("search", "2"): 0.1}
    for number in (1, 2, 3):
        end, cycle = until - 3600 * (3 - number), f"cycle-{number:06d}"
        served = tuple(
            ServedVersion(
                project=project,
                version=version,
                acceptance=Rate(rate=rate, low=rate - 0.02, high=rate + 0.02, n=900),
                answered=True,
            )
            for (project, version), rate in accepted.items()
            if version == "1" or number > 1
        )
        record = manifest(cycle).model_copy(update={"since": end - 3600, "until": end, "served": served})
        house.store.objects[f"cycles/{cycle}/manifest.json"] = record.model_dump_json().encode()
