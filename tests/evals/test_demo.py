"""The demo's figures and its report."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evals.demo import closing, comparison, page
from evals.demo.record import (
    Changes,
    Comparison,
    CycleRow,
    Difference,
    Example,
    Exploration,
    GroundRow,
    Rate,
    Report,
)
from evals.developers import KINDS, ExpectedOutcome, Pair, PairedRun, Pin, RunSettings, Schedule, Tally, code_from
from infra.records import MeasuredGroup, Measures
from infra.settings import load
from tasks.showing.reliability import Bin, Reliability
from tests.tasks.made import NOW, MemoryStore, completion


def _paired(outcomes: list[tuple[str, bool, bool]]) -> PairedRun:
    def outcome(accepted: bool) -> ExpectedOutcome:
        return ExpectedOutcome(float(accepted), "x = 1", kept=3, saved=2.0, reading=0.5)

    pairs = tuple(Pair(user, i, (outcome(a), outcome(b)), 25) for i, (user, a, b) in enumerate(outcomes))
    return PairedRun((Pin("1"), Pin("2")), pairs, (Tally(), Tally()), 0)


def test_a_rate_and_its_interval_equal_a_calculation_by_hand() -> None:
    # Two users, 1 of 2 and 1 of 4: rate 1/3, influences (1 - 2/3)/6 and (1 - 4/3)/6, error sqrt(2 * 2 / 18^2), t(1) = 12.706.
    rate = comparison.rate([1, 1], [2, 4])
    assert rate.rate == pytest.approx(1 / 3)
    assert rate.high - rate.rate == pytest.approx(12.7062 * math.sqrt(2 * 2 / 18**2), rel=1e-4)
    assert rate.n == 6


def test_differences_between_users_cancel_in_the_paired_difference() -> None:
    # Rates vary between users, but each user gains exactly 0.1: the rates have variance, the difference has none.
    before, requests = [0.0, 40.0, 80.0], [100.0, 100.0, 100.0]
    result = comparison.compare((before, requests), ([count + 10 for count in before], requests))
    assert result.difference.estimate == pytest.approx(0.1)
    assert result.difference.high - result.difference.low == pytest.approx(0, abs=1e-12)
    assert result.base.high - result.base.low > 0.5


def test_intervals_of_paired_differences_cover_the_true_difference() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        user_rate = rng.beta(2, 8, size=60)[:, None]
        base, champion = rng.random((60, 20)) < user_rate, rng.random((60, 20)) < user_rate + 0.05
        n = [20.0] * 60
        difference = comparison.compare((base.sum(1).tolist(), n), (champion.sum(1).tolist(), n)).difference
        covered += difference.low <= 0.05 <= difference.high
    assert 0.92 <= covered / 400 <= 0.98


def test_comparisons_count_requests_with_nothing_accepted() -> None:
    result = comparison.comparisons(_paired([("a", False, True), ("a", False, False), ("b", True, True), ("b", False, False)]))
    acceptance = result["acceptance"]
    assert (acceptance.base.rate, acceptance.champion.rate, acceptance.base.n) == (0.25, 0.5, 4)
    assert result["accepted_characters_per_request"].champion.rate == 2.5
    assert result["shown"].difference.estimate == 0


def test_a_rate_without_requests_or_of_one_user_is_an_error() -> None:
    with pytest.raises(ValueError, match="no requests were answered"):
        comparison.rate([0, 0], [0, 0])
    with pytest.raises(ValueError, match="at least two users"):
        comparison.rate([1], [2])


def _baselines(low: float, high: float) -> dict[str, Any]:
    rate = {"rate": 0.2, "low": 0.1, "high": 0.3, "n": 100}
    difference = {"estimate": (low + high) / 2, "low": low, "high": high}
    return {"base_best": rate | {"temperature": 0.1}, "base_served": rate, "champion": rate, "difference": difference}


UNDECIDED, BETTER, WORSE = (-0.01, 0.02), (0.01, 0.03), (-0.03, -0.01)


CALIBRATION = Reliability(error=0.0123, bins=[Bin(count=7, chance=0.25, kept=0.3)])


def _report(later=BETTER, kept=UNDECIDED, new=UNDECIDED, new_kept=UNDECIDED) -> Report:
    rate = Rate(rate=0.2, low=0.1, high=0.3, n=100)
    same = changed = Comparison(base=rate, champion=rate, difference=Difference(estimate=0.02, low=0.01, high=0.05))
    low = 0.01
    rows = {"later": (later, kept), "new": (new, new_kept)}
    grounds = {
        ground: GroundRow.model_validate(
            _baselines(*accepted) | {"kept_characters": _baselines(*characters), "time_saved": _baselines(*WORSE)}
        )
        for ground, (accepted, characters) in rows.items()
    }
    sums = Measures(requests=10, shown=8, accepted=2, kept_characters=30, completed_characters=30, typed_characters=90)
    measures = (MeasuredGroup(by="all", name="", measures=sums), MeasuredGroup(by="language", name="<py>", measures=sums))
    row = CycleRow(
        cycle="cycle-000001", parent="1", version="2", samples=10, requests=13, mean_reward=0.1,
        buckets={"trained": 10, "stale": 0, "quarantined": 3}, quarantined={"<secret>": 3}, measures=measures,
        clip_fraction=0.0, kl=0.0,
        logprob_difference=1e-6, judge=5.0, verdict="promote", reason="won", estimate=0.02, low=low, high=0.05,
    )  # fmt: skip
    example = Example(
        kind="loss", file="<i>.py", right=3, prefix="<script>", truth="'&'", base="<b>", base_accepted=True, champion="",
        champion_accepted=False,
    )  # fmt: skip
    return Report(
        seed=0, developers="people", rates="404ba4b02814", seconds=1.0, base_version="1", champion_version="2",
        cycles=1, promotions=1, rejections=0, judge="reference",
        acceptance=same, acceptance_of_shown=same, accepted_characters_per_request=changed, shown=same,
        grounds=grounds, exploration=Exploration(share=0.0), calibration=CALIBRATION,
        history=[row], experiments=[], changes=Changes(gains=0, losses=1, examples=[example]), addresses={"MLflow": "http://127.0.0.1:5000"},
    )  # fmt: skip


def test_the_champion_beats_the_base_at_its_best_and_is_not_surely_worse_anywhere() -> None:
    assert _report().improved
    assert _report(later=UNDECIDED, kept=BETTER).improved
    assert not _report(later=UNDECIDED).improved
    assert not _report(kept=WORSE).improved
    assert not _report(later=WORSE, kept=BETTER).improved
    assert not _report(new=WORSE).improved
    assert not _report(new_kept=WORSE).improved


def test_grounds_compare_with_the_base_at_its_best() -> None:
    paired = _paired([("a", False, True), ("a", False, False), ("b", True, True), ("b", False, False)])
    row = comparison.ground_row(paired, ["base_best", "champion"], 0.1)
    assert (row.base_best.temperature, row.base_best.rate, row.base_served.rate, row.champion.rate) == (0.1, 0.25, 0.25, 0.5)
    assert row.kept_characters.champion.rate == 1.5
    # 100 keys of 0.2 s are written. Of the champion's four texts, two save 2 s each; reading costs 0.5 s each.
    assert row.time_saved.champion.rate == pytest.approx((2 * 2.0 - 4 * 0.5) / (100 * 0.2 / 3600))
    assert row.difference.estimate == 0.25
    assert row.champion_all is None and row.learning is None


def test_the_gain_divides_into_what_was_learnt_and_what_is_decided() -> None:
    names = ["base_best", "champion", "base_served", "champion_all"]
    rows = [("a", (0, 1, 0, 1)), ("a", (0, 1, 0, 0)), ("b", (1, 1, 0, 1)), ("b", (0, 0, 0, 0))]
    pairs = tuple(
        Pair(user, number, tuple(ExpectedOutcome(float(accepted), "x = 1", kept=3) for accepted in outcomes), 25)
        for number, (user, outcomes) in enumerate(rows)
    )
    row = comparison.ground_row(PairedRun((Pin(),) * 4, pairs, (Tally(),) * 4, 0), names, 0.1)
    assert (row.base_best.rate, row.base_served.rate, row.champion.rate) == (0.25, 0.0, 0.75)
    assert row.champion_all and row.champion_all.rate == 0.5
    assert row.learning and row.showing
    assert row.learning.estimate + row.showing.estimate == row.difference.estimate == 0.5
    assert row.showing.estimate == 0.25


def test_a_base_that_is_served_at_another_temperature_is_measured_too() -> None:
    settings = load()
    assert closing.pins_of(settings, "2").keys() == {"base_best", "champion"}
    sampling = settings.serving.sampling.model_copy(update={"temperature": 0.9})
    other = settings.model_copy(update={"serving": settings.serving.model_copy(update={"sampling": sampling})})
    pins = closing.pins_of(other, "2")
    assert list(pins)[:2] == ["base_best", "champion"]
    assert pins["base_best"] == Pin("1", temperature=0.1) and pins["base_served"] == Pin("1")


def test_exploring_requests_are_compared_with_the_others_by_user() -> None:
    def row(user: str, exploring: bool, accepted: bool | None, bucket: str = "trained") -> dict[str, Any]:
        return {"user": user, "exploring": exploring, "accepted": accepted, "bucket": bucket}

    rows = [row("a", False, True), row("a", False, False), row("a", True, False), row("b", False, True), row("b", True, True)]
    rows += [row("b", False, False), row("c", True, None, "unlabelled"), row("a", True, False, "surplus")]
    found = comparison.exploration(rows, 0.1)
    assert found.exploring and found.others and found.difference
    assert (found.exploring.n, found.exploring.rate) == (3, pytest.approx(1 / 3))
    assert (found.others.n, found.others.rate) == (4, 0.5)
    assert found.cost == pytest.approx(0.1 * (0.5 - 1 / 3)) and found.taught == 2
    assert comparison.exploration(rows[:2], 0.0).difference is None
    assert comparison.exploration([], 0.0).taught == 0


def test_the_champions_chances_are_read_from_its_recorded_completions() -> None:
    store = MemoryStore()
    rows = [completion(str(n), time=NOW, chance=0.9 if n % 2 else 0.1, audited=n == 8) for n in range(9)]
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", [*rows, completion("x", time=NOW, chance=0.5)])
    pairs = tuple(
        Pair("u", n, (ExpectedOutcome(0.0, ""), ExpectedOutcome(0.9, "four", kept=4 if n % 2 else 1)), 4, ("", str(n)))
        for n in range(9)
    )
    run = PairedRun((Pin("1"), Pin("2")), pairs, (), 0)
    found = closing.recorded(store, NOW - 10, run, lambda: NOW + 1, wait=0.0)
    assert {name: one.chance for name, one in found.items()} == {str(n): 0.9 if n % 2 else 0.1 for n in range(8)} | {"8": None}
    calibrated = closing.calibration(run, found)
    assert calibrated and calibrated.error == pytest.approx((0.225 - 0.1) / 2)
    assert [(bin.count, bin.kept) for bin in calibrated.bins] == [(4, pytest.approx(0.225)), (4, pytest.approx(0.9))]
    assert closing.calibration(run, {}) is None


def test_what_the_decision_held_back_counts_as_shown_at_the_level_all() -> None:
    people = RunSettings(users=3, seed=1, quirks=KINDS["people"])
    code = code_from()
    pauses = [Schedule(3, 1, code, people.quirks).first_pause(number, "later") for number in range(3)]
    texts = [pause.position.truth.split("\n")[0] for pause in pauses]
    shown = (texts[0], "", texts[2][:1])  # the second is suppressed, the third cut
    pairs = tuple(
        Pair(pause.developer.name, number, (ExpectedOutcome(0.0, ""), pause.answer(text)[0]), pause.keys, ("", str(number)))
        for number, (pause, text) in enumerate(zip(pauses, shown, strict=True))
    )
    store = MemoryStore()
    rows = [
        completion(str(n), time=NOW, text=text, held_back=whole[len(text) :], withheld=not text)
        for n, (text, whole) in enumerate(zip(shown, texts, strict=True))
    ]
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", rows)
    run = PairedRun((Pin("1"), Pin("2")), pairs, (), 0)
    found = closing.recorded(store, NOW - 10, run, lambda: NOW + 1, wait=0.0)
    whole = closing.all_shown(run, "later", people, code, found)
    assert whole and whole.pins == (Pin("1"), Pin("2"), Pin("2"))
    assert [pair.outcomes[:2] for pair in whole.pairs] == [pair.outcomes for pair in pairs]
    assert [pair.outcomes[2] for pair in whole.pairs] == [pause.answer(t)[0] for pause, t in zip(pauses, texts, strict=True)]
    assert whole.pairs[1].outcomes[2].shown and not whole.pairs[1].outcomes[1].shown
    assert closing.all_shown(run, "later", people, code, {"0": found["0"]}) is None


def test_the_report_has_the_documented_fields(tmp_path: Path) -> None:
    page.write(_report(), tmp_path)
    report_json = json.loads((tmp_path / "report.json").read_text())
    assert {"cycles", "promotions", "rejections", "seed", "developers", "rates", "seconds"} <= report_json.keys()
    assert report_json["grounds"].keys() == {"later", "new"}
    for ground in report_json["grounds"].values():
        for row in (ground, ground["kept_characters"], ground["time_saved"]):
            assert row["base_best"].keys() == {"rate", "low", "high", "n", "temperature"}
            assert row["base_served"].keys() == row["champion"].keys() == {"rate", "low", "high", "n"}
            assert row["difference"].keys() == {"estimate", "low", "high"}
    for metric in ("acceptance", "accepted_characters_per_request", "shown"):
        assert report_json[metric]["base"].keys() == {"rate", "low", "high", "n"}
        assert report_json[metric]["difference"].keys() == {"estimate", "low", "high"}
    assert report_json["calibration"] == {"error": 0.0123, "bins": [{"count": 7, "chance": 0.25, "kept": 0.3}]}
    html = (tmp_path / "report.html").read_text()
    assert not re.search("<script|<i>|<b>\\.", html) and "&lt;i&gt;.py" in html
    assert "not accepted: nothing shown" in html
    assert "base as served" not in html and "calibration error 0.0123" in html
    assert "7 beginnings: chance 0.250, kept 0.300" in html
    rows = [
        f'<tr><th scope="row">{name}</th><td class="n">{count}</td></tr>' for name, count in (("trained", 10), ("quarantined", 3))
    ]
    rows += [
        f'<tr><th scope="row">{name}</th><td class="n">{n}</td></tr>'
        for name, n in (("quarantined: &lt;secret&gt;", 3), ("all requests", 13))
    ]
    assert "".join(rows) in html
    assert '<tr><th scope="row">share of completed code</th><td class="n">0.2500</td></tr>' in html
    assert '<th scope="row">language &lt;py&gt;</th><td class="n">10</td><td class="n">0.2000</td>' in html
