"""The fitted estimate: it finds a planted rule, is checked on later completions, and says why there is none."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.model.showing import Place, decide
from tasks.showing import report
from tasks.showing.fit import FittedEstimate, Unfitted, chosen, fit, read, with_selection, write
from tasks.showing.labels import Compared, LabelledCompletion, weighed
from tasks.showing.reliability import reliability
from tests.infra.model.test_showing import made as estimate_of
from tests.tasks.made import MemoryStore, manifest


def made(count: int, seed: int = 0, temperature: float = 0.1, true: Sequence[float] = (0.9, 0.2)) -> list[LabelledCompletion]:
    """Completions of three tokens; the probable ones are kept with the first chance of `true`, the others with the second."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(count):
        probable = rng.random() < 0.5
        logprobs = -rng.uniform(0.001, 0.01, 3) if probable else -rng.uniform(1.0, 2.0, 3)
        kept = float(rng.random() < true[0 if probable else 1])
        label = np.array([kept, kept, np.nan])
        place = Place("x = ", "\n", "python")
        rows.append(LabelledCompletion(place, temperature, "foobar", logprobs.tolist(), [3, 6, 6], label, bool(kept)))
    return rows


def test_a_planted_rule_is_found_and_calibrated() -> None:
    fitted = fit(made(3000))
    assert isinstance(fitted, FittedEstimate) and fitted.completions == 3000
    assert fitted.reliability.error < 0.05 and fitted.reliability.count == 2 * 750
    at = fitted.estimate.at(Place("x = ", "\n", "python"))
    assert at.chances([-0.005] * 3, [3, 6, 9])[1] == pytest.approx(0.9, abs=0.06)
    assert at.chances([-1.5] * 3, [3, 6, 9])[1] == pytest.approx(0.2, abs=0.06)
    assert fitted.estimate.temperature == 0.1 and list(fitted.estimate.languages) == ["python"]


def test_a_label_may_be_a_share() -> None:
    rows = [replace(row, kept=0.2 + 0.6 * row.kept) for row in made(3000, true=(1.0, 0.0))]
    fitted = fit(rows)
    assert isinstance(fitted, FittedEstimate)
    at = fitted.estimate.at(Place("x = ", "\n", "python"))
    assert at.chances([-0.005] * 3, [3, 6, 9])[1] == pytest.approx(0.8, abs=0.05)
    assert at.chances([-1.5] * 3, [3, 6, 9])[1] == pytest.approx(0.2, abs=0.05)


def test_a_rule_that_changes_is_seen_in_the_reliability() -> None:
    fitted = fit([*made(1500), *made(500, 1, true=(0.4, 0.2))])
    assert isinstance(fitted, FittedEstimate) and fitted.reliability.error > 0.15


def test_chances_that_serving_decided_by_are_checked_too() -> None:
    rows = [replace(row, decided=(0.9, 2)) for row in made(2000, true=(0.5, 0.5))]
    fitted = fit(rows)
    assert isinstance(fitted, FittedEstimate) and fitted.served
    assert fitted.served.error == pytest.approx(0.4, abs=0.05) and fitted.served.count == 2000
    assert report.metrics(fitted)["showing.served_calibration_error"] == fitted.served.error
    assert "Of the chances by which serving decided: calibration error 0.4" in report.page(fitted)


def test_chances_that_serving_decided_by_are_checked_against_the_share_that_is_kept() -> None:
    """Two of three texts are near misses, of which two of three are accepted: none is the beginning of the settled text."""
    rows = []
    for number, row in enumerate(made(900)):
        near, taken = number % 3 > 0, number % 9 not in (1, 2, 4)
        texts = Compared(f"total = {'rest' if near else 'base'}", "total = base", taken)
        kept = np.array([np.nan, float(not near), np.nan])
        rows.append(replace(row, text="total = base", ends=[6, 12, 12], kept=kept, accepted=taken, compared=texts))
    true = [float(row.kept[1]) for row in weighed(rows)]
    fitted = fit([replace(row, decided=(share, 2)) for row, share in zip(rows, true, strict=True)])
    assert isinstance(fitted, FittedEstimate) and fitted.served
    assert 0.2 < min(true) < max(true) and fitted.served.error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("second", "cuts"), [(0.0, True), (0.9, False)])
def test_texts_are_cut_where_that_surely_keeps_more(second: float, cuts: bool) -> None:
    """The first half of each text is kept, the other one nearly never or nearly always."""
    rng, rows = np.random.default_rng(0), []
    for row in made(1000, true=(1.0, 1.0)):
        label = np.array([1.0, 0.5 if rng.random() < 0.5 else 0.6, second])
        rows.append(replace(row, text="foobarbaz" * 4, ends=[12, 24, 36], kept=label))
    fitted = fit(rows)
    assert isinstance(fitted, FittedEstimate) and fitted.estimate.cuts == cuts
    gain, error = fitted.cut_gain
    assert gain > 3 * error if cuts else gain <= 3 * error
    said = "texts are cut: cutting keeps +" if cuts else "no text is cut: cutting keeps"
    assert said in report.summary(fitted) and report.metrics(fitted)["showing.cut_gain"] == gain


def test_cutting_that_only_seems_to_keep_more_cuts_nothing() -> None:
    """Chance alone decides what of a text is kept, so the beginning that looks best is no better than the whole."""
    rng, rows = np.random.default_rng(1), []
    for row in made(600):
        logprobs = (-rng.uniform(0.01, 2.0, 3)).tolist()
        rows.append(replace(row, text="foobarbaz", ends=[3, 6, 9], logprobs=logprobs, kept=np.full(3, float(rng.random() < 0.4))))
    fitted = fit(rows)
    assert isinstance(fitted, FittedEstimate) and not fitted.estimate.cuts
    assert abs(fitted.cut_gain[0]) <= 3 * fitted.cut_gain[1] + 1e-9


def test_what_is_chosen_for_looking_best_is_expected_to_be_kept_as_often_as_it_is() -> None:
    rows = made(2000, true=(0.6, 0.1))
    too_sure = estimate_of(bias=2.0, probability=1.5)
    fitted = with_selection(too_sure, rows)
    before, after = (reliability(*chosen(estimate, rows)) for estimate in (too_sure, fitted))
    assert fitted.selection < -2.0 + 1e-9 and after.error < before.error
    chances, kept = chosen(with_selection(estimate_of(bias=0.5), rows), rows)
    assert np.mean(chances) == pytest.approx(np.mean(kept), abs=1e-6)


@given(st.lists(st.tuples(st.floats(-9, 0), st.text("ab \n", max_size=5)), min_size=1, max_size=12), st.floats(-2, 2))
def test_the_beginning_that_looks_best_is_the_one_that_serving_shows(tokens: list[tuple[float, str]], bias: float) -> None:
    logprobs, parts = [p for p, _ in tokens], [part for _, part in tokens]
    text, ends = "".join(parts), np.cumsum([len(part) for part in parts]).tolist()
    estimate, place = estimate_of(bias, surprise=-0.5, log_characters=-0.2), Place("x = ", "\n")
    row = LabelledCompletion(place, 0.1, text, logprobs, ends, np.arange(1.0, len(ends) + 1), None)
    decision = decide(estimate.at(place).chances(logprobs, ends), ends, text, 0.0, 10_000)
    (chance,), (best,) = chosen(estimate, [row])
    assert chance == decision.chance and best == (decision.shown or 1)


def test_completions_of_another_temperature_take_no_part() -> None:
    fitted = fit([*made(1000), *made(300, 1, temperature=0.8, true=(0.0, 1.0))])
    assert isinstance(fitted, FittedEstimate) and fitted.completions == 1000 and fitted.estimate.temperature == 0.1


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "no completion has a label"),
        (made(100), "100 completions at temperature 0.1 have a label, 200 are needed"),
        (made(400, true=(0.0, 0.0)), "fewer than 50 beginnings were kept"),
    ],
)
def test_too_few_labels_give_no_estimate_and_the_reason_is_shown(rows: list[LabelledCompletion], reason: str) -> None:
    fitted = fit(rows)
    assert isinstance(fitted, Unfitted) and reason in fitted.reason
    assert reason in report.page(fitted) and report.metrics(fitted) == {}


@pytest.mark.parametrize("fitted", [fit(made(400)), Unfitted(reason="few")], ids=["fitted", "unfitted"])
def test_what_is_written_is_read_again(fitted: FittedEstimate | Unfitted) -> None:
    store = MemoryStore()
    write(store, "cycle-000001", manifest("cycle-000001").samples.sha256, fitted)
    write(store, "cycle-000001", "of a run that sealed nothing", Unfitted(reason="other samples"))
    store.put_json("cycles/cycle-000002/showing.json", fitted)  # of earlier code
    assert read(store, manifest("cycle-000001")) == read(store, manifest("cycle-000002")) == fitted
    assert read(store, manifest("cycle-000003")) == Unfitted(reason="the cycle was sealed by code that fits none")
