"""Looks: written once, in a bounded number, none that changes something is missing, and none names a user."""

from hypothesis import given
from hypothesis import strategies as st

from infra.pages.experiment_view import progress
from infra.records import CheckResult, ExperimentRecord, Look, MetricResult, Stage, Verdict
from infra.settings.schema import Collect, Experiment
from infra.storage import looks as log
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.reports.page import experiment_page
from tasks.experiments.stages import looks
from tests.tasks.made import NOW, MemoryStore

PLAN = make_plan(Experiment(planned_requests=1000, max_seconds=36_000), Collect())
TEST = ExperimentRecord(id="e", champion="1", challenger="2", share=0.25, started=NOW, plan=PLAN)


def metric(low: float = -0.03, high: float = 0.05) -> MetricResult:
    values = {"name": "accepted", "role": "success", "champion": 0.2, "challenger": 0.21, "estimate": 0.01, "margin": 0.02}
    return MetricResult.model_validate({**values, "low": low, "high": high, "level": 0.99, "state": "unsure"})


def verdict(requests: int, name: str = "undecided", **fields: object) -> Verdict:
    arms = {"champion": requests, "challenger": requests}
    users = {"champion": 9, "challenger": 8}
    return Verdict.model_validate(
        {"verdict": name, "reason": "no gain is sure yet", "requests": arms, "users": users, "metrics": (metric(),), **fields}
    )


def broken(state: str) -> CheckResult:
    return CheckResult.model_validate({"name": "labels", "state": state, "reason": "judged per shown"})


def numbers(store: MemoryStore) -> list[int]:
    return [log.read(store, "e", n).number for n in range(1, log.newest_number(store, "e") + 1)]


def test_looks_that_only_count_more_are_recorded_once_a_minute_and_changes_at_once() -> None:
    store = MemoryStore()
    assert looks.record(store, TEST, verdict(10), NOW)
    assert not looks.record(store, TEST, verdict(20), NOW + 20), "sooner than a minute"
    assert looks.record(store, TEST, verdict(20), NOW + 60)
    assert not looks.record(store, TEST, verdict(20), NOW + 600), "nothing new"
    assert looks.record(store, TEST, verdict(20, checks=(broken("hold"),)), NOW + 601)
    ramp = [Stage(name="ramp", share=share, started=NOW + at) for share, at in ((0.1, 602), (0.2, 700))]
    ramped = TEST.model_copy(update={"stages": tuple(ramp)})
    assert looks.record(store, ramped, verdict(20, checks=(broken("hold"),)), NOW + 699)
    assert looks.record(store, ramped, verdict(20, checks=(broken("hold"),)), NOW + 701)
    assert looks.record(store, ramped, verdict(21, "promote"), NOW + 702)
    assert numbers(store) == [1, 2, 3, 4, 5, 6]
    last = log.newest(store, "e")
    assert last and (last.stage, last.share, last.verdict.metrics) == ("ramp", 0.2, (metric(),))


def test_a_long_test_is_recorded_less_often() -> None:
    month = TEST.model_copy(update={"plan": PLAN.model_copy(update={"max_seconds": 28 * 86_400.0})})
    assert (looks.interval(TEST), looks.interval(month)) == (60.0, 2419.2)
    assert looks.interval(month.model_copy(update={"plan": None})) == 60.0


def test_a_look_is_never_overwritten() -> None:
    store = MemoryStore()
    assert looks.record(store, TEST, verdict(10), NOW)
    other = Look(experiment="e", number=1, time=NOW, stage="test", share=0.5, verdict=verdict(99))
    assert not log.append(store, other)
    assert log.read(store, "e", 1).verdict.requests == {"champion": 10, "challenger": 10}


@given(st.integers(0, 200_000))
def test_thinned_numbers_are_few_with_the_first_and_the_newest(newest: int) -> None:
    found = log.thinned(newest, 60)
    assert len(found) <= 62 and found == sorted(set(found))
    assert not newest or (found[0], found[-1]) == (1, newest)
    assert newest > 60 or found == list(range(1, newest + 1))


def test_the_page_shows_sequence_margins_levels_checks_and_the_planned_end() -> None:
    store = MemoryStore()
    looks.record(store, TEST, verdict(100, checks=(broken("passed"),)), NOW + 1000)
    looks.record(store, TEST, verdict(200, checks=(broken("passed"),)), NOW + 2000)
    last = log.newest(store, "e")
    assert last
    page = experiment_page(store, TEST, last)
    for words in (
        "# e: undecided\nno gain is sure yet",
        "Version 2 against 1: test, 25% on the challenger; look 2, 2027-01-15 08:33:20 UTC",
        "| champion | 1 | 9 | 200 |",
        "| challenger | 2 | 8 | 200 |",
        "200 of 1000 requests an arm (20%); planned end 2027-01-15 10:46:40 UTC, in 2 h, by requests",
        "| acceptance per request | success | 0.2000 | 0.2100 | +0.0100 [-0.0300, +0.0500] | 99 % | above -0.02 | unsure |",
        "| labels | passed | judged per shown |",
        "![acceptance per request (more is better): difference, 99 % confidence sequence](data:image/svg+xml;base64,",
    ):
        assert words in page, words
    slow = TEST.model_copy(update={"plan": PLAN.model_copy(update={"max_seconds": 3600.0})})
    assert "planned end 2027-01-15 09:00:00 UTC, in 27 min, by the clock" in experiment_page(store, slow, last)


def test_a_pause_changes_neither_the_requests_so_far_nor_the_pace() -> None:
    """The gate counts what was asked before and during a pause. 200 of 1000 requests take a fifth of the time."""
    begun = (("ramp", 0.1, 0), ("test", 0.25, 1800), ("paused", 0.25, 7200), ("test", 0.25, 8990))
    stages = tuple(Stage(name=name, share=share, started=NOW + at) for name, share, at in begun)
    test = TEST.model_copy(update={"stages": stages, "plan": PLAN.model_copy(update={"max_seconds": 1e6})})
    for number, time in ((2, 7200.0), (3, 8900.0), (4, 9000.0)):
        look = Look(experiment="e", number=number, time=NOW + time, stage="test", share=0.25, verdict=verdict(200))
        found = progress(test.model_copy(update={"stages": stages[:number]}), look)
        assert found and (found.requests, found.share, found.by_clock) == (200, 0.2, False)
        assert found.ends == NOW + 1800 + 5 * (time - 1800)
    in_ramp = test.model_copy(update={"stages": (stages[0], stages[2])})
    waiting = progress(in_ramp, Look(experiment="e", number=2, time=NOW + 7300, stage="paused", share=0.1, verdict=verdict(200)))
    assert waiting and (waiting.requests, waiting.by_clock) == (0, True), "a ramp that is paused"


def test_the_page_of_an_anchor_names_the_champions_whose_figures_it_shows() -> None:
    store, stage = MemoryStore(), Stage(name="anchor", share=0.9, started=NOW)
    beside = TEST.model_copy(update={"stages": (stage,)})
    look = looks.record(store, beside, verdict(100), NOW + 1000)
    assert look and "| challenger | 2, with all champions since the anchor | 8 | 100 |" in experiment_page(store, beside, look)
