"""What counts in a test: users with a history, and of a busy user or credential a part."""

import itertools
from typing import Any, Literal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.assignment import assigned_arm
from infra.records import Completion, ExperimentRecord, Feedback, Plan, Stage
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from infra.storage import counted
from infra.storage.store import sha256
from tasks.experiments.counting.metrics import SUMS
from tasks.experiments.counting.totals import IN_BLOCK, LATER, QUARTERS, cap_requests, gather, of_evidence, total
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.verdict.breach import breach
from tasks.experiments.verdict.checks import run_checks
from tasks.labels.attribution import attribute, label
from tests.tasks.labels.test_explain import seal
from tests.tasks.made import NOW, MemoryStore, completion, feedback
from tests.tasks.rows import frame

TEST = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW)


def plan(**fields: Any) -> Plan:
    """Return the default plan with other values; everyone counts."""
    values = make_plan(Experiment(min_history_requests=0), Collect(settle_seconds=5)).model_dump()
    return Plan.model_validate({**values, **fields})


def labelled(completions, events) -> pl.DataFrame:
    requests, matches, _ = attribute(frame(completions, Completion), frame(events, Feedback), 60)
    return label(requests, matches)


cells = st.lists(
    st.tuples(st.sampled_from(["champion", "challenger"]), st.integers(0, 20), st.integers(0, 4), st.integers(1, 500)),
    min_size=1,
    max_size=30,
    unique_by=lambda cell: cell[:3],
)


def sums(rows) -> pl.DataFrame:
    made = [(arm, f"u{user}", f"c{credential}", float(n)) for arm, user, credential, n in rows]
    frame = pl.DataFrame(made, ["arm", "user", "credential", "requests"], orient="row").sort("arm", "user", "credential")
    others = [*(name for name in SUMS if name != "requests"), *(part + name for part in (LATER, IN_BLOCK) for name in SUMS)]
    return frame.with_columns(**{name: pl.col("requests") / 4 for name in others})


@given(cells, st.sampled_from([1.0, 2.0, 5.0]), st.sampled_from([0.2, 0.5, 1.0]))
def test_no_user_or_credential_counts_with_more_than_its_part(rows, weight: float, share: float) -> None:
    given = sums(rows)
    found = cap_requests(given, plan(max_user_weight=weight, max_credential_weight=share))
    median = given.group_by("arm", "user").agg(pl.col("requests").sum())["requests"].median()
    assert isinstance(median, float)
    most = found.group_by("arm", "user").agg(pl.col("requests").sum())["requests"].max()
    assert isinstance(most, float) and most <= weight * median * (1 + 1e-9)
    of_arm = found.group_by("arm").agg(pl.col("requests").sum().alias("all"))
    by_credential = found.group_by("arm", "credential").agg(pl.col("requests").sum()).join(of_arm, on="arm")
    assert (by_credential["requests"] <= share * by_credential["all"] * (1 + 1e-6)).all()
    assert found["accepted"].to_list() == pytest.approx((found["requests"] / 4).to_list()), "the rates stay"


def test_who_is_not_known_from_before_the_test_counts_in_no_gate() -> None:
    store = MemoryStore()
    limits = Settings(collect=Collect(max_user_share=1, max_new_users=2, settle_seconds=5))

    def ship(name: str, people: list[str], at: float, **fields: str) -> None:
        served = [completion(f"{name}{u}", user=u, prefix=f"{name}{u}", time=at + i, **fields) for i, u in enumerate(people)]
        store.put_rows(f"events/completions/date=2027-01-15/hour=08/{name}.parquet", served)
        events = [feedback(c.id, user=c.user, prefix=c.prefix, time=c.time + 1) for c in served]
        store.put_rows(f"events/feedback/date=2027-01-15/hour=08/{name}.parquet", events)

    ship("before", ["ada", "bob", "held back"], NOW - 90)
    seal(store, "cycle-000001", NOW - 10, limits)
    ship("test", ["ada", "held back", "invented"], NOW + 1, experiment="e")
    found = gather(store, TEST, plan(min_history_requests=1), NOW + 60)
    assert (found.counts, found.before["requests"].tolist()) == ({"champion": 1, "challenger": 0}, [1.0])
    assert sum(found.absent.values()) == 1, "bob"
    assert gather(store, TEST, plan(min_history_requests=0), NOW + 60).counts["champion"] == 3
    assert gather(store, TEST, plan(min_history_requests=2), NOW + 60).counts == {"champion": 0, "challenger": 0}


@pytest.mark.parametrize("design", ["by_user", "crossover"])
def test_a_replica_that_learns_late_of_a_stage_does_not_break_the_test(design: Literal["by_user", "crossover"]) -> None:
    """Two replicas behind a balancer: the registry does not answer one of them for the first minute of the last stage."""
    frozen, late = plan(design=design, block_seconds=600.0), 60
    ramp, test = Stage(name="ramp", share=0.2, started=NOW - 600), Stage(name="test", share=0.5, started=NOW)
    before = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW - 600, plan=frozen, stages=(ramp,))
    now, completions = before.model_copy(update={"stages": (ramp, test)}), []
    for number, second in itertools.product(range(60), range(0, 1800, 20)):
        time, user, replica = NOW + second + number / 100, f"u{number}", (number + second // 20) % 2
        known = before if replica and second < late else now
        arm = assigned_arm(known, user, time)
        of_test = {"experiment": "e", "assigned": "e", "assigned_arm": arm, "arm": arm}
        version = {"champion": "1", "challenger": "2"}[arm]
        completions.append(completion(f"{number} {second}", user=user, time=time, policy_version=version, **of_test))
    found = total(labelled(completions, []), now, frozen, until=NOW + 3600)
    (checked,) = (check for check in run_checks(found, 0.5, frozen) if check.name == "both_arms")
    assert checked.state == "passed", checked.reason
    if design == "by_user":
        assert not found.both.any()
        assert found.counts == {arm: sum(assigned_arm(now, f"u{n}", NOW) == arm for n in range(60)) for arm in found.counts}
    assert sum(found.during[arm]["made"].sum() for arm in found.during) < len(completions)
    assert all(assigned_arm(now, c.user, c.time) == c.arm for c in completions if c.time >= NOW + late)


@pytest.mark.parametrize("design", ["by_user", "crossover"])
@pytest.mark.parametrize(("hours", "state"), [(0.9, "passed"), (4.0, "broken")])
def test_a_replica_that_is_cut_off_breaks_the_test_and_one_in_an_outage_is_named(
    design: Literal["by_user", "crossover"], hours: float, state: str
) -> None:
    """The stage before gives it the champion, for users or blocks that are the challenger's at the other replica."""
    frozen, cut_off = plan(design=design, block_seconds=1200.0), hours * 3600
    ramp, test = Stage(name="ramp", share=0.2, started=NOW - 600), Stage(name="test", share=0.5, started=NOW)
    before = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW - 600, plan=frozen, stages=(ramp,))
    now, completions = before.model_copy(update={"stages": (ramp, test)}), []
    for number, second in itertools.product(range(30), range(0, 4 * 3600, 300)):
        time, user, replica = NOW + second + number / 100, f"u{number}", (number + second // 300) % 2
        arm = assigned_arm(before if replica and second < cut_off else now, user, time)
        of_test = {"experiment": "e", "assigned": "e", "assigned_arm": arm, "arm": arm}
        version = {"champion": "1", "challenger": "2"}[arm]
        completions.append(completion(f"{number} {second}", user=user, time=time, policy_version=version, **of_test))
    found = total(labelled(completions, []), now, frozen, until=NOW + 5 * 3600)
    late = [c for c in completions if assigned_arm(now, c.user, c.time) != c.arm]
    turns = {(c.user, c.time // 1200 if design == "crossover" else 0) for c in late if c.time > NOW + 3600}
    assert (found.late, found.overdue) == (len(late), len(turns)) and bool(turns) is (state == "broken")
    (checked,) = (check for check in run_checks(found, 0.5, frozen) if check.name == "both_arms")
    assert checked.state == state, checked.reason
    assert f"; {len(late)} requests that a replica assigned by the stage before are left out" in checked.reason
    assert (f"of {len(turns)} {'blocks' if design == 'crossover' else 'users'} later than 1 h after" in checked.reason) is bool(
        turns
    )
    assert checked in run_checks(of_evidence(found.evidence()), 0.5, frozen)


def test_only_settled_comparable_requests_count() -> None:
    fields = {"experiment": "e", "time": NOW + 1}
    completions = [
        completion("accepted", prefix="a", **fields),
        completion("rejected", prefix="b", **fields),
        completion("unlabelled", prefix="c", **fields),
        completion("empty", prefix="d", text="", **fields),
        completion("pinned", prefix="e", pinned=True, **fields),
        completion("exploring", prefix="e2", exploring=True, **fields),
        completion("opted out", prefix="f", opted_out=True, **fields),
        completion("young", prefix="g", experiment="e", time=NOW + 50),
        completion("other test", prefix="h", experiment="another", time=NOW + 1),
        completion("challenger", prefix="i", user="v", arm="challenger", **fields),
        completion("before", prefix="j", time=NOW - 5),
    ]
    events = [
        feedback("1", prefix="a", time=NOW + 2),
        feedback("2", prefix="b", outcome="rejected", time=NOW + 2),
        feedback("3", prefix="i", user="v", time=NOW + 2),
        feedback("4", prefix="j", time=NOW - 4),
    ]
    found = total(labelled(completions, events), TEST, plan(max_characters=5), until=NOW + 20)
    names = ("requests", "labelled", "judged", "visible", "accepted", "characters", "annoyed", "shown", "empty", "failed", "made")
    user, other = ({name: sums[name].tolist() for name in names} for sums in found.during.values())
    assert {name: values[0] for name, values in user.items()} == dict(
        **{"requests": 4, "labelled": 3, "judged": 2, "visible": 3, "accepted": 1},
        **{"characters": 5, "annoyed": 1, "shown": 3, "empty": 1, "failed": 0, "made": 4},
    )
    assert [other[name] for name in ("requests", "accepted", "characters")] == [[0, 1], [0, 1], [0, 5]]
    assert found.before["accepted"].tolist() == [1, 0]


def test_what_continue_does_not_tell_of_was_not_taken() -> None:
    """Left out, the others' rate would stand for it. A closed request showed nothing, so it annoyed nobody."""
    fields = {"experiment": "e", "prefix": "a", "time": NOW + 1}
    completions = [
        completion("continued", text="foo(bar)", **fields),
        completion("accepted", text="bar)", **{**fields, "prefix": "afoo(", "time": NOW + 2}),
        completion("closed", text="baz", finish_reason="disconnected", **{**fields, "prefix": "y", "time": NOW + 4}),
        completion("unknown", **{**fields, "prefix": "z", "time": NOW + 15}),
    ]
    accept = feedback("1", prefix="afoo(", shown="bar)", time=NOW + 3)
    found = total(labelled(completions, [accept]), TEST, plan(), until=NOW + 20).during["champion"]
    names = ("visible", "judged", "decided", "accepted", "annoyed", "labelled", "length")
    assert {name: found[name].tolist() for name in names} == {
        **{"visible": [4], "judged": [3], "decided": [1], "accepted": [1], "annoyed": [1], "labelled": [3], "length": [4]}
    }
    early = completion("early", text="", ttft_ms=None, finish_reason="disconnected", **{**fields, "prefix": "x"})
    both = total(labelled([*completions, early], [accept]), TEST, plan(), until=NOW + 20).during["champion"]
    assert [both[name].tolist() for name in ("requests", "visible", "closed")] == [[5], [4], [1]], "before its first token"
    silent = total(labelled(completions, []), TEST, plan(), until=NOW + 20).during["champion"]
    assert silent["judged"].tolist() == [0], "an editor that reports nothing says nothing by its silence"


def test_what_the_editor_says_was_not_taken_is_no_missing_answer() -> None:
    """Left out, the rate of the others stood for it: two accepts of seven requests counted as 4.7."""
    reasons = ("typed_through", "replaced", "cancelled", "empty")
    fields = {"client": "other", "experiment": "e", "time": NOW + 1}
    completions = [completion(name, prefix=name, **fields) for name in ("a", "b", "r", *reasons)]
    answers = [feedback("1", prefix="a", time=NOW + 2), feedback("2", prefix="b", time=NOW + 2)]
    answers.append(feedback("3", prefix="r", outcome="rejected", time=NOW + 2))
    others = [
        feedback(why, completion_id=why, prefix="", shown="", outcome="rejected", reason=why, time=NOW + 2)  # type: ignore[arg-type]
        for why in reasons
    ]
    found = total(labelled(completions, [*answers, *others]), TEST, plan(), until=NOW + 20).during["champion"]
    names = ("requests", "visible", "judged", "decided", "accepted", "annoyed", "cancelled")
    assert {name: found[name].tolist() for name in names} == {
        **{"requests": [7], "visible": [5], "judged": [5], "decided": [3], "accepted": [2], "annoyed": [3], "cancelled": [0]}
    }


def test_answers_are_missing_above_the_share_that_is_usual_for_the_client() -> None:
    """Of the client `a`, one of four completions has no answer, all of them on the champion's arm; a silent user misses none."""
    answered = {("u", "champion", "a"): (True, False), ("v", "challenger", "a"): (True, True), ("w", "champion", "b"): (True,)}
    answered[("silent", "champion", "a")] = (False, False)
    completions, events = [], []
    for (user, arm, client), each in answered.items():
        for number, known in enumerate(each):
            at: Any = {"prefix": f"{user}{number}", "user": user, "time": NOW + 1}
            completions.append(completion(f"{user}{number}", experiment="e", arm=arm, client=client, **at))
            if known:
                events.append(feedback(f"{user}{number}", **{**at, "time": NOW + 2}))
    found = total(labelled(completions, events), TEST, plan(max_credential_weight=1, max_user_weight=99), until=NOW + 20)
    missing = {arm: sums["unanswered"].tolist() for arm, sums in found.during.items()}
    assert missing == {"champion": [0.0, 0.5, 0.0, 0.0], "challenger": [0.0, 0.0, -0.5, 0.0]}, "by user: silent, u, v, w"


def test_the_usual_share_of_missing_answers_is_that_of_the_way_to_report() -> None:
    """Users with Continue's requests whose editor reports in another way leave out half, and the champion has more of them."""
    answered = {("u", "champion", "continue"): 2, ("v", "challenger", "continue"): 2, ("x", "champion", "own"): 1}
    answered |= {("y", "champion", "own"): 1, ("z", "challenger", "own"): 1}
    completions, events = [], []
    for (user, arm, reporter), known in answered.items():
        for number in range(2):
            at: Any = {"prefix": f"{user}{number}", "user": user, "time": NOW + 1}
            completions.append(completion(f"{user}{number}", experiment="e", arm=arm, client="continue", **at))
            if number < known:
                events.append(feedback(f"{user}{number}", **{**at, "client": reporter, "time": NOW + 2}))
    found = total(labelled(completions, events), TEST, plan(max_credential_weight=1, max_user_weight=99), until=NOW + 20)
    assert not any(sums["unanswered"].any() for sums in found.during.values())


def _reported(rows: list[tuple[str, str, str, float, list[bool]]]) -> pl.DataFrame:
    """Return completions of a user, an arm and a client from a time on, a tenth of a second apart, each answered or not."""
    completions, events = [], []
    for user, arm, client, begin, answers in rows:
        for number, known in enumerate(answers):
            name, of_test = f"{user}{begin}{number}", {"experiment": "e", "arm": arm} if begin >= NOW else {}
            at: Any = {"prefix": name, "user": user, "time": begin + number / 10}
            completions.append(completion(name, client=client, **of_test, **at))
            if known:
                events.append(feedback(name, **{**at, "time": at["time"] + 0.05}))
    return labelled(completions, events)


def test_on_one_arm_alone_the_usual_share_of_missing_answers_is_that_before_the_test() -> None:
    """All users of `zed` are on the challenger's arm, where a fault loses half of the answers; before, a quarter was missing."""
    rows = [("u", "champion", "a", NOW + 1, [True] * 4), ("v", "challenger", "zed", NOW + 1, [True, False] * 2)]
    earlier = [("v", "", "zed", NOW - 50, [True, True, True, False])]
    both = plan(max_credential_weight=1, max_user_weight=99)
    found = total(_reported([*rows, *earlier]), TEST, both, until=NOW + 20)
    assert {arm: sums["unanswered"].sum() for arm, sums in found.during.items()} == {"champion": 0.0, "challenger": 1.0}
    unknown = total(_reported(rows), TEST, both, until=NOW + 20)
    assert not any(sums["unanswered"].any() for sums in unknown.during.values()), "nothing is known before the test"


def test_a_busy_user_decides_neither_what_is_usual_nor_the_percentiles() -> None:
    """One user makes nine tenths of the requests, fast ones without an answer."""
    rows = [(f"u{i}", ("champion", "challenger")[i % 2], "a", NOW + 1, [True, True, True, False]) for i in range(10)]
    busy = [("busy", "champion", "a", NOW + 1, [True, *[False] * 399])]
    frame = _reported([*rows, *busy]).with_columns(ttft_ms=pl.when(pl.col("user") == "busy").then(1.0).otherwise(100.0))
    found = total(frame, TEST, plan(max_credential_weight=1, max_user_weight=1), until=NOW + 90)
    of_others = sum(sums["unanswered"][1:].sum() for sums in found.during.values())
    assert of_others == pytest.approx(10 - 40 * 13 / 44), "13 of the 44 typical completions have no answer"
    slow = sum(sums["ttft_p50"].sum() for sums in found.during.values())
    assert slow == 0, "a time of 100 ms is the median of typical requests"


def test_slow_requests_of_one_arm_do_not_raise_the_percentile_that_they_are_compared_with() -> None:
    rows = [(f"u{i}", ("champion", "challenger")[i % 2], "a", NOW + 1, [True] * 20) for i in range(20)]
    at, slow = pl.int_range(pl.len()).over("user"), pl.col("arm") == "challenger"
    frame = (
        _reported(rows)
        .with_columns(total_ms=200.0 + at)
        .with_columns(total_ms=pl.when(slow & (at < 8)).then(60_000.0).otherwise("total_ms"))
    )
    found = total(frame, TEST, plan(max_credential_weight=1), until=NOW + 90)
    shares = {arm: sums["total_p95"].sum() / sums["requests"].sum() for arm, sums in found.during.items()}
    assert shares == pytest.approx({"champion": 0.05, "challenger": 0.45})
    assert (sure := breach(plan(), found)) and sure.metric == "total_p95"


def test_what_the_editor_shows_again_from_its_cache_may_be_taken_there() -> None:
    fields = {"experiment": "e", "prefix": "a", "time": NOW + 1}
    completions = [
        completion("cached", text="foo(bar)", **fields),
        completion("accepted", text="bar)", **{**fields, "prefix": "afoo(", "time": NOW + 2}),
    ]
    events = [
        feedback("1", prefix="a", time=NOW + 3, cache_hit=True),
        feedback("2", prefix="afoo(", shown="bar)", time=NOW + 3),
    ]
    found = total(labelled(completions, events), TEST, plan(), until=NOW + 20).during["champion"]
    assert [found[name].tolist() for name in ("visible", "judged", "annoyed")] == [[2], [1], [0]]


def test_a_request_that_another_version_answered_counts_on_the_arm_that_was_assigned() -> None:
    user = next(f"u{i}" for i in range(99) if assigned_arm(TEST, f"u{i}", NOW) == "challenger")
    fields = {"user": user, "assigned": "e", "time": NOW + 1}
    completions = [
        completion("its own", prefix="a", arm="challenger", experiment="e", **fields),
        completion("fallback", prefix="b", arm="champion", **fields),
        completion("mixed", prefix="c", arm="challenger", mixed=True, **fields),
        completion("error", prefix="d", arm="challenger", experiment="e", finish_reason="error", **fields),
    ]
    found = total(labelled(completions, [feedback("1", user=user, prefix="b", time=NOW + 2)]), TEST, plan(), NOW + 20)
    sums = found.during["challenger"]
    assert [sums[name].tolist() for name in ("requests", "failed", "accepted")] == [[4], [3], [1]]
    assert found.requests["champion"] == 0


def test_the_later_part_is_the_second_half_of_the_test_and_the_other_that_of_each_block() -> None:
    block = 100.0
    begin = NOW - NOW % block
    test = TEST.model_copy(update={"started": begin})
    times = [begin + at for at in (10, 60, 110, 160, 170)]
    completions = [completion(str(at), time=at, experiment="e", prefix=str(at)) for at in times]
    rows = labelled(completions, [])
    found = total(rows, test, plan(design="crossover", block_seconds=block), begin + 200)
    assert [part["champion"]["requests"].tolist() for part in (found.later, found.in_block)] == [[3], [3]]
    assert [found.during["champion"][name].sum() for name in QUARTERS] == [0, 2, 0, 0], "two turns, in the morning"
    at_end = total(rows, test, plan(), begin + 330)
    assert at_end.later["champion"]["requests"].tolist() == [1]


def test_a_time_is_compared_with_both_arms_percentiles() -> None:
    rows = [completion(str(i), prefix=str(i), user=f"u{i}", time=NOW + 1, experiment="e", total_ms=float(i)) for i in range(101)]
    found = total(labelled(rows, []), TEST, plan(), NOW + 20).during["champion"]
    assert (found["total_p50"].sum(), found["total_p95"].sum(), found["ttft_p50"].sum()) == (50, 5, 0)


def test_evidence_names_the_objects_that_were_read() -> None:
    store = MemoryStore()
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", [completion(experiment="e", time=NOW + 1)])
    store.put_rows("events/feedback/date=2027-01-15/hour=08/a.parquet", [feedback(time=NOW + 2)])
    evidence = gather(store, TEST, plan(settle_seconds=5), NOW + 60)
    assert evidence.during["champion"]["accepted"].tolist() == [1]
    hours = [r for r in evidence.inputs if r.key.startswith(counted.PREFIX)]
    assert len(hours) == 23, "the day of history before the test, without its last hour, which has not settled"
    assert all(r.sha256 == sha256([store.objects[r.key]]) for r in hours)
    assert {r.key.split("/")[1] for r in evidence.inputs if r not in hours} == {"completions", "feedback"}
