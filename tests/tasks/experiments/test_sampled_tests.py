"""Tests that count a sample of users err as often as they may, and find what was planted: from settled hours to the verdict."""

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from infra.assignment import assigned_arm
from infra.pages.figures import sampled
from infra.records import ExperimentRecord, Plan, Stage
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment, Serving, Terms
from infra.storage import counted, cycles
from infra.storage.counted import EVENTS as EVENT_COLUMNS
from infra.storage.counted import HOUR, OBJECTS, Inputs, Made
from tasks.experiments.counting.totals import ARMS, gather
from tasks.experiments.counting.traffic import recent
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.planning.planner import plan_test
from tasks.experiments.verdict.decide import decide
from tasks.experiments.verdict.designs import compare_rates
from tasks.labels.counted import COLUMNS
from tasks.labels.sampled import in_sample
from tasks.statistics.ratios import Difference, difference
from tests.tasks.made import NOW, MemoryStore, completion, feedback, manifest

TESTS, USERS, EACH = 100, 480, 30
NAMES = pl.Series("user", [f"{n:032x}" for n in range(USERS)])
START = NOW - NOW % HOUR
SETTINGS = Experiment(
    **{"design": "by_user", "planned_requests": 2_000, "max_seconds": HOUR, "min_requests": 500, "min_history_requests": 0},
    **{"shadow_requests": 0, "ramp": ()},
)
PLAN = make_plan(SETTINGS, Collect(), sample=0.5).model_copy(update={"baseline_seconds": 0.0})


def experiment_of(number: int) -> ExperimentRecord:
    stages = (Stage(name="test", share=0.5, started=START),)
    return ExperimentRecord(id=f"exp-{number}", champion="1", challenger="2", share=0.5, started=START, plan=PLAN, stages=stages)


def requests(experiment: ExperimentRecord, gain: float, draw: np.random.Generator) -> pl.DataFrame:
    """Return the counted requests of an hour: users differ, and accept a challenger's completions more often by a share."""
    user = np.repeat(np.arange(USERS), draw.poisson(EACH * draw.gamma(4, 0.25, USERS)))
    arm = np.array([assigned_arm(experiment, name, START) for name in NAMES])[user]
    chance = draw.beta(5, 15, USERS)[user] * np.where(arm == "challenger", 1 + gain, 1.0)
    accepted, size = draw.random(len(user)) < chance, len(user)
    columns = {
        **{"id": [f"c{n}" for n in range(size)], "user": NAMES.gather(user), "arm": arm, "assigned_arm": arm},
        **{"time": np.sort(START + draw.random(size) * HOUR), "policy_version": np.where(arm == "challenger", "2", "1")},
        **{"ttft_ms": draw.gamma(4, 10, size), "total_ms": draw.gamma(4, 60, size)},
        **{"outcome": np.where(accepted, "accepted", "rejected"), "shown_characters": 8},
        **dict.fromkeys(("accepted_characters", "taken_characters", "taken_keys"), np.where(accepted, 8, 0)),
    }
    constant = {
        **{
            "project": "p",
            "client": "continue",
            "language": "py",
            "experiment": experiment.id,
            "assigned": experiment.id,
            "finish_reason": "stop",
        },
        **dict.fromkeys(("mixed", "withheld", "pinned", "exploring", "opted_out", "blank", "unreported", "cache_hit"), False),
        **{"rules": False, "seen_ms": 2_000.0, "not_taken": None, "kept_characters": None},
    }
    frame = pl.DataFrame(columns).with_columns(**{name: pl.lit(value) for name, value in constant.items()})
    frame = frame.with_columns(credential=pl.col("user"))
    return frame.select(
        pl.col(name).cast(kind).cast(pl.String if isinstance(kind, pl.Enum) else kind) for name, kind in COLUMNS.items()
    )


def ended(number: int, gain: float) -> tuple[str, bool, bool]:
    """Return a test's verdict, whether its 95 % interval of accepts per request holds the truth, and whether it excludes 0."""
    draw, experiment, store = np.random.default_rng((number, round(100 * gain))), experiment_of(number), MemoryStore()
    rows = requests(experiment, gain, draw)
    nothing = Made(Inputs(pl.DataFrame(schema=OBJECTS), pl.DataFrame(schema=EVENT_COLUMNS)), "0" * 16, "simulated")
    counted.write(store, PLAN.join_seconds, "hour", START, rows, nothing)
    now = START + HOUR + PLAN.join_seconds + 200
    totals = gather(store, experiment, PLAN, now, complete=False)
    chosen = rows.filter(in_sample(rows["user"], PLAN.sample))
    made = dict(chosen.group_by("arm").len().iter_rows())
    assert {arm: round(totals.during[arm]["made"].sum()) for arm in ARMS} == made  # all requests of them, and of nobody else
    found = difference(compare_rates(totals.during, totals, "accepted", "requests", PLAN), 0.05, 1.0, last_look=True)
    assert isinstance(found, Difference)
    truth = 0.25 * gain
    return decide(experiment, PLAN, totals, now).verdict, found.low <= truth <= found.high, not found.low <= 0 <= found.high


@pytest.mark.parametrize("gain", [0.0, 0.3])
def test_intervals_of_a_sampled_test_hold_the_truth_and_equal_versions_are_promoted_no_more_often_than_planned(
    gain: float,
) -> None:
    verdicts, covered, sure = zip(*(ended(number, gain) for number in range(TESTS)), strict=True)
    # Once in a thousand times, Binomial(100, 0.95) is below 87, Binomial(100, 0.05) above 12, Binomial(100, 0.025) above 8.
    assert sum(covered) >= 87
    if gain:
        assert sum(verdict == "promote" for verdict in verdicts) >= 60
    else:
        assert sum(sure) <= 12
        assert sum(verdict == "promote" for verdict in verdicts) <= 8


def test_a_plan_takes_the_users_whom_its_longest_test_can_hold_and_the_last_cycle_knows() -> None:
    store = MemoryStore()
    served = [completion(f"{n}", user=NAMES[n % 200], prefix=f"x{n}", time=NOW - 500 + n) for n in range(400)]
    answers = [feedback(f"f{row.id}", user=row.user, prefix=row.prefix, time=row.time + 2) for row in served]
    store.put_rows("events/completions/date=2027-01-01/hour=07/a.parquet", [completion("old", time=NOW - 14 * 86_400)])
    store.put_rows("events/completions/date=2027-01-15/hour=07/a.parquet", served)
    store.put_rows("events/feedback/date=2027-01-15/hour=07/a.parquet", answers)
    all_take_part = Settings(experiment=Experiment(min_history_requests=1), serving=Serving(terms=Terms(experiments=True)))

    def reading(most: int) -> Settings:
        return all_take_part.model_copy(update={"collect": Collect(most_requests=most, min_samples=10)})

    def planned(most: int) -> Plan:
        return plan_test(store, reading(most), NOW + 60)

    # 400 requests in a week are 1,657 in a day of history and the 28 days of the longest test.
    assert [planned(most).sample for most in (1_658, 1_656, 828)] == [1.0, 0.5, 0.25]
    traffic = recent(store, reading(1_656), PLAN.model_copy(update={"baseline_seconds": 86_400.0}), NOW + 60)
    assert traffic.share == 0.5 and traffic.users == in_sample(NAMES.head(200), 0.5).sum()
    last = manifest("cycle-000001").model_copy(update={"share": 0.125, "since": NOW - 60, "until": NOW, "requests": 1})
    store.put_json(cycles.key("cycle-000001", cycles.MANIFEST), last)
    assert planned(1_658).sample == 0.125
    assert sampled(0.125) == ", of a sample of 1 in 8 users (collect.most_requests)" and sampled(1.0) == ""


def test_a_test_of_few_requests_reads_those_made_before_it_and_takes_a_busy_quarter_of_an_hour_for_no_day() -> None:
    """Also where a cycle reads the requests of a rejected candidate's cycle again."""
    store = MemoryStore()
    windows = {"cycle-000001": (NOW - 30 * 86_400, NOW - 900, 9_000), "cycle-000002": (NOW - 900, NOW - 300, 30_000)}
    for cycle, (since, until, made) in windows.items():
        window = manifest(cycle).model_copy(update={"since": since, "until": until, "requests": made})
        store.put_json(cycles.key(cycle, cycles.MANIFEST), window)

    def share(most: int) -> float:
        return plan_test(store, Settings(experiment=SETTINGS, collect=Collect(most_requests=most, min_samples=10)), NOW).sample

    # 50 a second in the last 900 seconds, and 297 of the 9,000 of 30 days.
    assert [share(most) for most in (45_298, 45_296, 22_640)] == [1.0, 0.5, 0.25]
    again = manifest("cycle-000003").model_copy(update={"since": NOW - 900, "until": NOW - 100, "requests": 40_000})
    store.put_json(cycles.key("cycle-000003", cycles.MANIFEST), again)
    assert share(45_298) == 1.0
    newest = again.model_copy(update={"share": 0.125})
    store.put_json(cycles.key("cycle-000004", cycles.MANIFEST), newest)
    assert share(45_298) == 0.125, "the newest cycle alone knows its users"


def test_a_window_that_could_fill_no_cycle_is_refused() -> None:
    with pytest.raises(ValidationError, match="most_requests = 500: expected at least twice min_samples = 256"):
        Collect(most_requests=500)
