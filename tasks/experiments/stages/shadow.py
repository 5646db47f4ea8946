"""The shadow stage of a test: the challenger answers copies of requests, which nobody sees, before its first user."""

import polars as pl

from infra.records import CheckResult, Copies, ExperimentRecord, Plan, ShadowCopy, Verdict
from infra.storage.events import tables
from infra.storage.events.read import event_keys, fetch
from infra.storage.store import ObjectStore
from tasks.experiments.stages import shares as stages
from tasks.experiments.verdict.checks import check_result

KIND = "shadow"


def gather(store: ObjectStore, experiment: ExperimentRecord, now: float) -> Copies:
    """Read the copies of a test and total them."""
    keys = event_keys(store, KIND, experiment.started, now)
    frames = [tables.checked(segment.table, ShadowCopy)[0] for _, segment in fetch(store, keys)]
    rows = pl.concat([pl.DataFrame(schema=tables.schema(ShadowCopy)), *frames])
    return total(rows.filter(pl.col("experiment") == experiment.id).unique("id"))


def total(rows: pl.DataFrame) -> Copies:
    """Return the figures of copies, a row each with the fields of ShadowCopy."""
    answered = rows.filter(~pl.col("failed"))
    if answered.is_empty():
        return Copies(number=rows.height, failed=rows.height)
    mean = answered.select(pl.col("same_line", "similarity", "champion_empty", "challenger_empty").mean()).row(0, named=True)
    timed = answered.filter(pl.col("challenger_first_ms").is_not_null())
    return Copies(
        number=rows.height,
        failed=rows.height - answered.height,
        same_line=mean["same_line"],
        similarity=mean["similarity"],
        first=_ratio(timed, "challenger_first_ms", "champion_first_ms"),
        total=_ratio(answered, "challenger_ms", "champion_ms"),
        empty=(mean["champion_empty"], mean["challenger_empty"]),
    )


def seconds_left(experiment: ExperimentRecord, plan: Plan, now: float) -> float:
    """Return the seconds until a shadow stage ends without enough copies."""
    return stages.seconds_each(plan, experiment.share) - (now - experiment.stage.started)


def verdict_of(plan: Plan, copies: Copies, seconds_left: float) -> tuple[Verdict, bool]:
    """Return the verdict on a shadow stage, "undecided" for one that does not end the test, and whether the next stage may begin.

    `seconds_left`: until the stage ends without enough copies.
    """
    checks = _checks(plan, copies)
    verdict = Verdict(
        verdict="undecided", reason="", checks=checks, requests={"challenger": copies.number}, users={"challenger": 0}
    )
    many = f"{copies.number} of {plan.shadow_requests} copies (experiment.shadow_requests)"
    surely_failing = copies.failed > plan.shadow_failures * plan.shadow_requests  # whatever the rest does
    if copies.number < plan.shadow_requests and not surely_failing:
        if seconds_left > 0:
            return verdict.model_copy(update={"reason": f"shadow: {many}"}), False
        return verdict.model_copy(update={"verdict": "broken", "reason": f"shadow: only {many} in the stage's time"}), False
    if wrong := [check.reason for check in checks if check.state == "broken"]:
        reason = f"shadow, before any user saw it: {'; '.join(wrong)}"
        return verdict.model_copy(update={"verdict": "reject", "reason": reason}), False
    passed = ", ".join(check.reason for check in checks)
    return verdict.model_copy(update={"reason": f"shadow: {many}: {passed}"}), True


def _checks(plan: Plan, copies: Copies) -> tuple[CheckResult, ...]:
    failures = copies.failed / max(copies.number, 1)
    slow = max(copies.first, copies.total)
    return (
        check_result("shadow_failures", failures > plan.shadow_failures, f"{copies.failed} of {copies.number} copies failed"),
        check_result(
            "shadow_times",
            bool(plan.shadow_slowdown) and slow > plan.shadow_slowdown,
            f"median times {copies.first:.2f} (first token) and {copies.total:.2f} (all) of the champion's",
        ),
        check_result(
            "shadow_texts",
            copies.similarity < plan.shadow_similarity,
            f"texts {copies.similarity:.0%} alike, {copies.same_line:.0%} with the same first line, "
            f"{copies.empty[1]:.0%} empty, of the champion {copies.empty[0]:.0%}",
        ),
    )


def _ratio(rows: pl.DataFrame, above: str, below: str) -> float:
    if rows.is_empty():
        return 0.0
    medians = rows.select(pl.col(above, below).median()).row(0)
    return medians[0] / max(medians[1], 1e-9)
