"""The A/B gate: verdicts and their reasons, by the plan of the test's record."""

from typing import Any

import numpy as np
import pytest

from infra.records import Decision, ExperimentRecord, Verdict
from infra.settings.schema import Collect, Experiment
from tasks.experiments.counting.totals import ArmTotals
from tasks.experiments.planning.plan import make_plan, plan_of
from tasks.experiments.reports.recompute import recompute
from tasks.experiments.verdict.decide import brief, decide
from tasks.statistics.ratios import Difference, by_user, difference
from tests.tasks.experiments.arms import arm_totals, user
from tests.tasks.made import NOW

SETTINGS = Experiment(min_requests=200, planned_requests=20_000, max_seconds=1000, min_users=5, min_history_requests=0)


def changed(**fields: Any) -> Experiment:
    return Experiment.model_validate({**SETTINGS.model_dump(), **fields})


def experiment_of(settings: Experiment = SETTINGS, **fields: Any) -> ExperimentRecord:
    plan = make_plan(settings, Collect())
    return ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW, plan=plan, **fields)


def arm(users: int, rate: float, seed: int, characters: float = 8.0, shown: float = 0.9, name: str = "") -> dict:
    """Users with 50 requests each, of which this share is accepted."""
    rng = np.random.default_rng(seed)
    made = {}
    for i in range(users):
        visible = int(rng.binomial(50, shown))
        accepted = int(rng.binomial(visible, min(rate / shown, 1)))
        made[f"{name}{seed}-{i}"] = user(50, accepted, accepted * characters, visible)
    return made


def verdict(champion, challenger, after: float = 10, settings: Experiment = SETTINGS) -> Verdict:
    return judged(arm_totals(champion, challenger), after, settings)


def judged(totals: ArmTotals, after: float = 10, settings: Experiment = SETTINGS) -> Verdict:
    experiment = experiment_of(settings)
    assert experiment.plan
    return decide(experiment, experiment.plan, totals, NOW + after)


def states(result: Verdict) -> dict[str, str]:
    return {metric.name: metric.state for metric in result.metrics}


def test_a_clearly_better_challenger_is_promoted_with_every_interval_in_its_verdict() -> None:
    result = verdict(arm(80, 0.15, 1), arm(80, 0.35, 2))
    assert result.verdict == "promote", result.reason
    assert result.low is not None and result.low > 0
    assert (result.requests, result.users) == ({"champion": 4000, "challenger": 4000}, {"champion": 80, "challenger": 80})
    by_name = {metric.name: metric for metric in result.metrics}
    accepted, shown = by_name["accepted"], by_name["shown"]
    assert accepted.level == pytest.approx(1 - 0.0025 * 0.9) and shown.level == pytest.approx(0.9975)
    assert accepted.margin == pytest.approx(0.1 * accepted.champion) and shown.state == "not_worse"
    assert {check.state for check in result.checks} == {"passed"}


def test_a_clearly_worse_challenger_is_rejected() -> None:
    result = verdict(arm(80, 0.35, 1), arm(80, 0.15, 2))
    assert result.verdict == "reject" and "acceptance per request is worse" in result.reason


def test_more_accepts_with_far_fewer_characters_are_rejected() -> None:
    result = verdict(arm(80, 0.2, 1, characters=20), arm(80, 0.35, 2, characters=2))
    assert result.verdict == "reject"
    assert "kept characters per request is worse than its margin" in result.reason


def test_a_model_that_shows_more_and_is_accepted_less_loses() -> None:
    """35 % more is shown, 15 % less of it accepted: more accepts per request, and far more annoyances."""
    result = verdict(
        arm(200, 0.15, 1, shown=0.6), arm(200, 0.15 * 1.35 * 0.85, 2, shown=0.81), settings=changed(min_requests=9000)
    )
    assert result.verdict == "reject" and states(result)["annoyed"] == "worse", result.reason


def test_a_model_that_shows_a_fifth_less_and_is_accepted_more_wins() -> None:
    """Cursor's result: shown 21 % less, of it accepted 28 % more. It annoys less and is accepted as often."""
    result = verdict(arm(200, 0.15, 1, shown=0.6), arm(200, 0.15 * 0.79 * 1.28, 2, shown=0.6 * 0.79), 1000)
    assert result.verdict == "promote" and states(result)["annoyed"] == "better", result.reason


def test_a_gain_with_an_unsure_guardrail_waits_and_names_it() -> None:
    challenger = {name: {**sums, "failed": float(i == 0) * 20} for i, (name, sums) in enumerate(arm(80, 0.35, 2).items())}
    result = verdict(arm(80, 0.15, 1), challenger)
    assert result.verdict == "undecided" and "may be worse than their margins: failures per request" in result.reason


@pytest.mark.parametrize(("name", "count"), [("failed", 5), ("empty", 30), ("ttft_p95", 15), ("total_p50", 49), ("length", 3000)])
def test_a_guardrail_beyond_its_margin_rejects_a_better_model(name: str, count: float) -> None:
    challenger = {
        user: {**sums, name: count + (i % 3)}
        for i, (user, sums) in enumerate(arm(80, 0.35, 2, shown=0.5 if name == "empty" else 0.9).items())
    }
    result = verdict(arm(80, 0.15, 1), challenger)
    ended = ("reject", states(result).get(name)) if name == "length" else ("breach", "worse")
    assert (result.verdict, "worse") == (ended[0], ended[1]), result.reason
    assert result.breached == ("" if name == "length" else name)


def test_without_a_single_failure_the_share_of_failures_has_a_bound_from_the_number_of_requests() -> None:
    result = verdict(arm(80, 0.15, 1), arm(80, 0.35, 2))
    failed = next(metric for metric in result.metrics if metric.name == "failed")
    assert failed.high == pytest.approx(-np.log(0.00125) / 4000)


def test_an_arm_with_few_requests_shows_little_about_failures_however_many_the_other_has() -> None:
    """100 requests without a failure do not exclude a share of 3 %, above the margin."""
    settings = changed(min_requests=100, planned_requests=100, tolerated_users=0)
    experiment = experiment_of(settings).model_copy(update={"share": 0.1})
    champion = {f"a{i}": user(10, 2 + i % 3) for i in range(90)}
    challenger = {f"b{i}": user(10, 6 + i % 2) for i in range(10)}
    assert experiment.plan
    for failures in (0, 1):  # of the champion
        champion["a0"]["failed"] = failures
        found = decide(experiment, experiment.plan, arm_totals(champion, challenger), NOW + 10)
        failed = next(metric for metric in found.metrics if metric.name == "failed")
        bound = -np.log(0.95 * 0.05 / 2) / 100 - failures / 900
        assert failed.high == pytest.approx(bound) and failed.state == "unsure"
        assert found.verdict == "reject" and "may be worse than their margins: failures per request" in found.reason


def test_a_moderate_win_is_promoted_only_at_the_planned_size() -> None:
    champion, challenger = arm(240, 0.20, 1), arm(240, 0.222, 5)
    early = verdict(champion, challenger, settings=changed(planned_requests=12_001))
    assert early.verdict == "undecided" and early.low is not None and early.low < 0
    last = verdict(champion, challenger, settings=changed(planned_requests=12_000))
    assert last.verdict == "promote" and last.low is not None and last.low > 0


def test_the_end_of_the_time_is_a_planned_end_with_all_of_the_level_that_is_left() -> None:
    champion, challenger = arm(240, 0.20, 1), arm(240, 0.222, 5)
    assert verdict(champion, challenger, 999).verdict == "undecided"
    assert verdict(champion, challenger, 1000).verdict == "promote"


def test_without_a_win_at_the_planned_size_the_challenger_is_rejected_with_the_reason() -> None:
    result = verdict(arm(120, 0.2, 1), arm(120, 0.2, 2), settings=changed(planned_requests=6000))
    assert result.verdict == "reject"
    assert result.reason.startswith("no proof in 6000 requests an arm (experiment.planned_requests): no gain is sure")


@pytest.mark.parametrize(("extra", "promising"), [(1, True), (0, True), (-1, False), (-4, False)])
def test_promising_is_who_surely_lost_no_more_than_the_margin(extra: int, promising: bool) -> None:
    """Every user accepts `extra` / 4 more of 50 completions, of about 10."""

    def users(name: str, extra: int) -> dict:
        accepted = [8 + i % 5 + (extra if i % 4 == 0 else 0) for i in range(120)]
        return {f"{name}{i}": user(50, count, shown=45) for i, count in enumerate(accepted)}

    settings = changed(planned_requests=6000, margins={"accepted": 0.05})
    planned = verdict(users("a", 0), users("b", extra), settings=settings)
    assert (planned.verdict, planned.promising) == ("reject", promising), planned.reason
    early = verdict(users("a", 0), users("b", extra))
    assert not early.promising


@pytest.mark.parametrize(("rate", "name"), [(0.205, "promote"), (0.2, "promote"), (0.15, "reject")])
def test_without_inferiority_a_harmless_challenger_is_promoted(rate: float, name: str) -> None:
    settings = changed(mode="non_inferiority", margins={"accepted": 0.1, "characters": 0.1})
    result = verdict(arm(240, 0.2, 1), arm(240, rate, 3), 1000, settings)
    assert result.verdict == name, result.reason


def test_repeated_evaluation_promotes_equal_arms_no_more_often_than_alpha() -> None:
    settings = changed(min_requests=500, planned_requests=3000, max_seconds=1e9)
    promoted, runs = 0, 200
    for number in range(runs):
        rng = np.random.default_rng(number)
        accepted, result = np.zeros(120, dtype=int), None
        for look in range(1, 7):
            accepted += rng.binomial(10, 0.1, 120)
            sides = [
                {f"{s}{i}": user(10 * look, float(a), shown=9 * look) for i, a in enumerate(part)}
                for s, part in zip("ab", (accepted[:60], accepted[60:]), strict=True)
            ]
            if (result := verdict(sides[0], sides[1], settings=settings).verdict) != "undecided":
                break
        promoted += result == "promote"
        assert result in ("promote", "reject")
    # A promotion uses one side of the two-sided test. The bound is its level plus three standard errors.
    assert promoted / runs < settings.alpha / 2 + 3 * (settings.alpha / 2 / runs) ** 0.5


@pytest.mark.parametrize(
    ("champion", "challenger", "reason"),
    [
        ({}, {}, "0 and 0 users"),
        (arm(12, 0.2, 1), {}, "0 and 12 users"),
        (arm(5, 0.2, 1), arm(3, 0.2, 2), "3 and 5 users"),
        ({f"u{i}": user(1, 1) for i in range(20)}, {f"v{i}": user(1) for i in range(20)}, "requests"),
    ],
)
def test_a_test_that_could_not_tell_is_not_held_against_the_challenger(champion, challenger, reason: str) -> None:
    early = verdict(champion, challenger)
    assert early.verdict == "undecided"
    assert reason in early.reason
    late = verdict(champion, challenger, after=1000)
    assert (late.verdict, late.inconclusive, late.promising) == ("broken", True, False)
    assert "experiment.max_seconds" in late.reason


@pytest.mark.parametrize("mode", ["superiority", "non_inferiority"])
def test_a_test_without_an_answer_on_either_arm_waits_and_is_not_held_against_the_challenger(mode: str) -> None:
    """As where no feedback arrives. A challenger that shows nothing at all is held responsible."""
    settings = changed(mode=mode, planned_requests=2000)
    unknown = dict.fromkeys(("judged", "decided", "labelled", "annoyed", "length"), 0.0)
    champion, challenger = ({f"{name}{i}": {**user(50, shown=45), **unknown} for i in range(40)} for name in "ab")
    early = verdict(champion, challenger, settings=settings)
    assert early.verdict == "undecided" and early.reason == "none of 3600 completions that may have been shown has an answer"
    late = verdict(champion, challenger, 1000, settings)
    assert (late.verdict, late.inconclusive, late.promising) == ("broken", True, False) and early.reason in late.reason
    silent = {name: {**sums, "visible": 0.0, "shown": 0.0} for name, sums in challenger.items()}
    assert verdict(arm(40, 0.2, 1), silent, 1000, settings).verdict == "reject"


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_missing_proof_never_promotes(rate: float) -> None:
    champion, challenger = arm(40, rate, 1), arm(40, rate, 2)
    assert verdict(champion, challenger).verdict == "undecided"
    late = verdict(champion, challenger, after=1000)
    assert (late.verdict, late.inconclusive) == ("reject", True) and "no gain is sure" in late.reason


def test_settings_changed_during_a_test_change_nothing() -> None:
    experiment = experiment_of()
    totals = arm_totals(arm(240, 0.20, 1), arm(240, 0.222, 5))
    lax = Experiment(alpha=0.4, min_requests=1, planned_requests=1, min_users=2, max_seconds=1, margins={"annoyed": 9})
    assert plan_of(experiment) == experiment.plan
    assert decide(experiment, plan_of(experiment), totals, NOW + 10).verdict == "undecided"
    assert verdict(arm(240, 0.20, 1), arm(240, 0.222, 5), settings=lax).verdict != "undecided", "the settings would matter"


def test_a_decision_is_computed_again_from_its_record_bit_by_bit() -> None:
    experiment, totals = experiment_of(), arm_totals(arm(80, 1 / 7, 1), arm(80, 1 / 3, 2), before=arm(80, 1 / 7, 1))
    assert experiment.plan
    reached = decide(experiment, experiment.plan, totals, NOW + 10)
    made = Decision(experiment=experiment, verdict=reached, decided=NOW + 10, by="gate", evidence=totals.evidence())
    read = Decision.model_validate_json(made.model_dump_json())
    assert recompute(read) == reached
    assert "80-0" not in read.model_dump_json(), "the evidence names no user"
    of_old_rules = experiment.plan.model_copy(update={"rules": 1})
    with pytest.raises(ValueError, match="expected rules 12, which this code has, found rules 1"):
        recompute(read.model_copy(update={"experiment": experiment.model_copy(update={"plan": of_old_rules})}))
    with pytest.raises(ValueError, match="by ada: expected one of the gate"):
        recompute(read.model_copy(update={"evidence": None, "by": "ada"}))


def test_a_crossover_compares_users_with_themselves() -> None:
    """Users who differ by far more than the models do: only the comparison within the user finds the gain."""
    rng = np.random.default_rng(3)
    taste = np.linspace(0.05, 0.6, 30)
    accepted = [rng.binomial(120, taste * gain) for gain in (1.0, 1.3)]
    sides = [{f"u{i}": user(120, float(a)) for i, a in enumerate(arm)} for arm in accepted]
    crossover = changed(design="crossover", tolerated_users=0, planned_requests=3600)
    result = verdict(sides[0], sides[1], settings=crossover)
    assert result.verdict == "promote", result.reason
    half = np.arange(30) % 2 == 1
    apart = np.where(half, accepted[1], accepted[0]).astype(float)
    requests, nothing = np.full(30, 120.0), np.zeros(30)
    found = difference(by_user(half, apart, requests, nothing, nothing), 0.05, 3600, last_look=True)
    assert isinstance(found, Difference) and found.low < 0


def test_a_look_fits_into_a_tag_of_mlflow_on_postgresql() -> None:
    """The column is VARCHAR(5000): SqlRegisteredModelTag in mlflow/store/model_registry/dbmodels/models.py."""
    challenger = {
        name: {**sums, "failed": float(i % 3), "length": 20.0 * i} for i, (name, sums) in enumerate(arm(80, 0.31, 2).items())
    }
    result = verdict(arm(80, 0.15, 1), challenger)
    shown = brief(result)
    experiment = experiment_of().model_copy(update={"plan": None, "id": "cycle-000001-version-2"})
    look = Decision(experiment=experiment, verdict=shown, decided=NOW, by="gate")
    assert len(look.model_dump_json()) < 5000 and len(shown.metrics) == len(result.metrics) > 10
    assert shown.metrics[0].low == pytest.approx(result.metrics[0].low, rel=1e-3)


def half_answered(users: int, rate: float, seed: int, liars: int = 0) -> dict:
    """Users of whose 100 completions half have an answer; liars answer to 500 of 500, and accept all."""
    rng, made = np.random.default_rng(seed), {}
    for i in range(users):
        shown = 500 if i < liars else 100
        answers = shown if i < liars else int(rng.binomial(shown, 0.5))
        accepted = answers if i < liars else int(rng.binomial(answers, rate))
        sums = {"judged": answers, "decided": answers, "annoyed": answers - accepted, "length": 20 * answers}
        made[f"{seed}-{i}"] = user(shown, accepted, shown=shown) | sums
    return made


def test_invented_users_do_not_promote_by_the_answers_that_they_lend_to_others() -> None:
    settings = changed(planned_requests=5_000)
    found = [
        verdict(half_answered(60, 0.25, 2 * n), half_answered(60, 0.25, 2 * n + 1, liars=5), 10, settings) for n in range(10)
    ]
    assert sum(each.verdict == "promote" for each in found) <= 1, [each.reason for each in found]
    assert any("but not without the 5 users" in each.reason for each in found)
    better = verdict(half_answered(60, 0.25, 1), half_answered(60, 0.4, 2), 10, settings)
    assert better.verdict == "promote", better.reason


def test_the_answers_of_users_on_both_arms_are_no_others_answers() -> None:
    arms = half_answered(40, 0.25, 1), half_answered(40, 0.25, 2)
    alone = judged(arm_totals(*arms))
    both = [{**sums, "x": user(500, accepted, shown=500)} for sums, accepted in zip(arms, (0, 500), strict=True)]
    found = judged(arm_totals(both[0], both[1]))
    assert found.metrics[0].estimate == pytest.approx(alone.metrics[0].estimate)
    # Nor are they in any figure beside it: margins are shares of the mean of those who are compared.
    for name in ("requests", "users"):
        assert getattr(found, name) == getattr(alone, name)
    for name in ("acceptance", "kept"):
        for arm_name, rate in getattr(found, name).items():
            assert rate.model_dump() == pytest.approx(getattr(alone, name)[arm_name].model_dump())
    for metric, expected in zip(found.metrics, alone.metrics, strict=True):
        assert metric.champion == pytest.approx(expected.champion) and metric.margin == pytest.approx(expected.margin)
        assert metric.challenger == pytest.approx(expected.challenger) and metric.state == expected.state
    assert "1 of 81 users were served by both arms" in {check.name: check.reason for check in found.checks}["both_arms"]
