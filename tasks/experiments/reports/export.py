"""Write the exposures and facts of an experiment as Parquet, for GrowthBook, Eppo or SQL (infra/docs/operate/other-systems.md).

The files hold keyed hashes of users, so they are made on demand, on this machine, for their owner alone. Who was forgotten before
is not in them; erasure does not reach files that were made earlier.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from infra.records import Decision, ExperimentRecord, Plan, Rate
from infra.records.base import Arm
from infra.storage.cycles import decision_of, is_id
from infra.storage.store import ObjectStore
from tasks.experiments.counting.metrics import values
from tasks.experiments.counting.totals import ARMS, of_units, read_labelled, weights
from tasks.experiments.moves.log import ids
from tasks.experiments.planning.plan import plan_of
from tasks.labels.measures import deciles
from tasks.statistics.answered import per_request

EXPOSURES, FACTS = "exposures.parquet", "facts.parquet"


class NotExported(ValueError):
    """There is no such experiment, or nothing to export."""


@dataclass(frozen=True)
class Export:
    """The files that were written."""

    rows: dict[Path, int]
    """Rows by file."""
    acceptance: dict[Arm, Rate]
    """Acceptance per request of each arm by the written rows, as the gate computes it."""
    note: str
    """How the requests differ from those that the decision counted; empty where they do not."""


def export(store: ObjectStore, identifier: str, folder: Path, now: float) -> Export:
    """Write FOLDER/ID/exposures.parquet and FOLDER/ID/facts.parquet, as of the decision or, before it, of now.

    Raises:
        NotExported: the store has no such experiment, or no request of it that counts.
    """
    experiment, decision = _experiment(store, identifier)
    plan = plan_of(experiment)
    labelled, until, _ = read_labelled(store, experiment, plan, now)
    if decision:
        until = decision.decided - plan.settle_seconds
    found = facts(labelled, experiment, plan, until)
    shown = exposures(found)
    if not len(shown):
        raise NotExported(
            f"{identifier}: no request of this experiment counts: expected at least one older than collect.settle_seconds = "
            f"{plan.settle_seconds:g} and younger than retention.events_days; the looks of an experiment stay: "
            f"`tabloop history {identifier}`"
        )
    rows = {}
    for name, frame in ((EXPOSURES, shown), (FACTS, found)):
        path = folder / identifier / name
        _write(path, frame)
        rows[path] = len(frame)
    return Export(rows, acceptance(found), _note(found, decision))


def acceptance(found: pl.DataFrame) -> dict[Arm, Rate]:
    """Return the acceptance per request of each arm of exported facts (tasks/statistics/answered.py)."""
    names, rates = ("accepted", "judged", "visible", "requests"), dict[Arm, Rate]()
    for arm in ARMS:
        rows = found.filter(pl.col("variation_id") == arm)
        sums = rows.group_by("user_id").agg((pl.col(name) * pl.col("weight")).sum() for name in names).sort("user_id")
        if rate := per_request(*(sums[name].to_numpy() for name in names)):
            rates[arm] = rate
    return rates


def facts(labelled: pl.DataFrame, experiment: ExperimentRecord, plan: Plan, until: float) -> pl.DataFrame:
    """Return a row for each request that the test counts, and for each of these users' requests before it.

    The columns are those of infra/docs/operate/other-systems.md: who, when, which variation (empty before the test), by what the
    sums are divided, the weight by which the caps let the request count, and the value of every metric and denominator.
    """
    made, before, _ = of_units(labelled, experiment, plan, until + plan.settle_seconds)  # as at the look that counts until then
    during = made.filter(pl.col("time") <= until)
    counted = during.join(weights(during, plan), on=["arm", "user", "credential"], how="left")
    earlier = before.filter(pl.col("user").is_in(during["user"].unique().implode()))
    activity = deciles(during["user"])
    parts = (counted, "arm", pl.col("weight")), (earlier, None, pl.lit(1.0))
    frames = [
        rows.join(activity, on="user", how="left").select(
            user_id="user",
            unit_id=_unit(plan),
            timestamp=(pl.col("time") * 1e6).round().cast(pl.Int64).cast(pl.Datetime("us", "UTC")),
            experiment_id=pl.lit(experiment.id),
            variation_id=pl.col(arm).cast(pl.String) if arm else pl.lit(""),
            policy_version="policy_version",
            block=_block(plan),
            project="project",
            language=pl.col("language").fill_null(""),
            decile="decile",
            weight=weight,
            **values(plan),
        )
        for rows, arm, weight in parts
    ]
    return pl.concat(frames).sort("timestamp", "user_id")


def exposures(found: pl.DataFrame) -> pl.DataFrame:
    """Return the time of the first request of every unit on every variation that it met."""
    met = found.filter(pl.col("variation_id") != "")
    keys = ("user_id", "unit_id", "experiment_id", "variation_id")
    return met.group_by(keys).agg(pl.col("timestamp").min()).sort("timestamp", "unit_id", "variation_id")


def _unit(plan: Plan) -> pl.Expr:
    """Return what meets one variation: a user, or a user's block of time."""
    if plan.design == "by_user":
        return pl.col("user")
    return pl.concat_str("user", _block(plan), separator=":")


def _block(plan: Plan) -> pl.Expr:
    """Return the number of the block of time in which a crossover serves a user by one arm."""
    return (pl.col("time") // plan.block_seconds).cast(pl.Int64)


def _experiment(store: ObjectStore, identifier: str) -> tuple[ExperimentRecord, Decision | None]:
    try:
        if not is_id(identifier):
            raise KeyError(identifier)
        record = ExperimentRecord.model_validate(store.get_json(f"experiments/{identifier}.json"))
    except KeyError:
        known = ids(store, "experiments")
        raise NotExported(
            f"{store.uri(f'experiments/{identifier}.json')} does not exist; expected the id of an experiment"
            + (f", the latest are {', '.join(known[-5:])}" if known else ", and none has opened yet")
        ) from None
    decision = decision_of(store, identifier)
    return decision.experiment if decision else record, decision  # a decision's record has all stages


def _write(path: Path, frame: pl.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        frame.write_parquet(file)


def _note(found: pl.DataFrame, decision: Decision | None) -> str:
    if decision is None or not decision.verdict.requests:
        return ""
    weight = dict(found.group_by("variation_id").agg(pl.col("weight").sum()).iter_rows())
    now = {arm: round(weight.get(arm, 0.0)) for arm in ARMS}
    if now == {arm: decision.verdict.requests.get(arm, 0) for arm in ARMS}:
        return ""
    words = ", ".join(f"{decision.verdict.requests.get(arm, 0)} on the {arm}, {now[arm]} today" for arm in ARMS)
    return f"requests that the decision counted: {words}: events have been forgotten or removed since, or labels came late"
