"""The offline gate: each planted regression is caught by the guardrail that names it, and the champion itself passes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evals.studies.gate import rates
from evals.studies.gate.plants import worsened
from infra.settings.evaluation import MARGINS, UNSET
from infra.settings.schema import Gate
from tasks.evaluation.gate import guardrails
from tasks.evaluation.gate.guardrails import GUARDRAILS, checks_of, column_of
from tasks.evaluation.gate.measures import BY_NAME
from tasks.evaluation.gate.values import Places, Values
from tasks.evaluation.gate.verdict import GateResult, gate_candidate
from tasks.evaluation.metrics.habits import repetition
from tasks.evaluation.metrics.place import measure
from tasks.evaluation.positions import Position
from tasks.evaluation.scores import PositionScore
from tests.tasks.evaluation.made_scores import FILES, PLACES, measured_as, scores, written

SETTINGS = Gate(min_places=200)


def verdict(candidate: list[PositionScore], settings: Gate = SETTINGS, **keywords: bool) -> GateResult:
    return gate_candidate(candidate, scores(), settings, **keywords)


def failed(result: GateResult) -> set[str]:
    return {finding.name for finding in result.findings if finding.verdict == "failed"}


def test_the_champion_itself_passes_with_every_number_and_reason() -> None:
    result = verdict(scores())
    assert (result.verdict, failed(result)) == ("passed", set())
    assert {f.guardrail for f in result.findings} == set(MARGINS) - {"slices", "drift", "silent", "passed"}
    assert {f.slice for f in result.findings} == {"", "language: py", "language: go"}
    unset = [f"{name}: evaluate.gate.margins.{name} is not set" for name in ("silent", "drift")]
    assert result.left_out == ("passed: known at 0 of 240 places, a verdict needs 60", *unset)
    for finding in result.findings:
        assert (finding.difference, finding.verdict) == (0, "passed") and "within the margin" in finding.reason
        assert finding.candidate == finding.champion


def every(change: Callable[[PositionScore], PositionScore], share: float = 1.0) -> list[PositionScore]:
    return [change(s) if i < share * PLACES else s for i, s in enumerate(scores())]


WORSE: dict[str, Any] = {"exact": False, "edit_similarity": 0.0, "matching_characters": 0, "judged": 0.0}


@pytest.mark.parametrize(
    ("guardrail", "candidate"),
    [
        ("exact", every(lambda s: replace(s, exact=False))),
        ("edit_similarity", every(lambda s: replace(s, edit_similarity=s.edit_similarity / 2))),
        ("matching_characters", every(lambda s: replace(s, matching_characters=s.matching_characters // 3))),
        ("judged", every(lambda s: replace(s, judged=(s.judged or 0) - 2))),
        ("empty", every(lambda s: replace(s, completion="", **WORSE))),
        ("empty", every(lambda s: replace(s, completion=" "), 0.2)),
        ("variety", every(lambda s: replace(s, completion="return None", **WORSE))),
        ("variety", every(lambda s: replace(s, completion="return None"), 0.5)),
        ("longer", every(lambda s: replace(s, completion=f"{s.completion}; {s.completion.upper()}; {s.offset}"))),
        ("repetition", every(lambda s: replace(s, completion="a.b.a.b.a.b.a.b"), 0.3)),
        ("shorter", every(lambda s: replace(s, completion=s.completion[:3] + str(s.offset % 10)))),
        ("comments", every(lambda s: written(s, f"{s.completion}  # see {s.offset}"))),
        ("comments", every(lambda s: written(s, f"{s.completion}  // see {s.offset}"), 0.4)),
        ("syntax", every(lambda s: measured_as(s, breaks_syntax=1.0))),
        ("syntax", every(lambda s: measured_as(s, breaks_syntax=1.0), 0.6)),
    ],
)
def test_a_planted_regression_fails_with_its_guardrail_named(guardrail: str, candidate: list[PositionScore]) -> None:
    result = verdict(candidate)
    assert result.verdict == "failed"
    assert guardrail in failed(result), result.reason
    assert f"{guardrail}: surely" in result.reason


def test_a_model_that_is_worse_in_one_language_only_fails_there() -> None:
    """The other language is better by as much, so that all places together show nothing."""
    changed = [replace(s, edit_similarity=s.edit_similarity + (0.25 if "language: py" in s.slices else -0.25)) for s in scores()]
    assert failed(verdict(changed)) == {"edit_similarity (language: go)"}


def test_a_small_slice_is_named_and_has_no_vote() -> None:
    champion = [replace(s, slices=("language: go" if i < 20 else "language: py",)) for i, s in enumerate(scores())]
    result = gate_candidate(champion, champion, SETTINGS)
    assert "language: go: 20 places, a verdict needs 60" in result.left_out
    assert {f.slice for f in result.findings} == {"", "language: py"}


def test_small_languages_count_together_and_a_slice_may_have_its_own_margin() -> None:
    languages = ["go", "rs", "kt", "py", "py", "py"]
    champion = [replace(s, slices=(f"language: {languages[i % 6]}",)) for i, s in enumerate(scores())]
    result = gate_candidate(champion, champion, SETTINGS)
    together = "language: 3 small ones"
    assert {f.slice for f in result.findings} == {"", "language: py", together}
    assert f"language: go: 40 places, a verdict needs 60; it counts with {together}" in result.left_out
    worse = [replace(s, edit_similarity=s.edit_similarity + (0.3 if "language: py" in s.slices else -0.3)) for s in champion]
    assert failed(gate_candidate(worse, champion, SETTINGS)) == {f"edit_similarity ({together})"}
    wide = SETTINGS.model_copy(update={"slice_margins": {together: 0.9}})
    assert gate_candidate(worse, champion, wide).verdict == "passed"
    slices = {f.slice: f.margin for f in gate_candidate(champion, champion, wide).findings if f.slice}
    assert slices == {"language: py": SETTINGS.margins["slices"], together: 0.9}


def test_a_project_in_few_files_has_no_vote_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    champion = [
        replace(s, slices=(f"project: {'few' if i % 40 < 7 else 'many' if i % 40 < 30 else 'other'}",))
        for i, s in enumerate(scores() * 2)
    ]
    champion = [replace(s, id=str(i)) for i, s in enumerate(champion)]
    result = gate_candidate(champion, champion, SETTINGS)
    assert {f.slice for f in result.findings} == {"", "project: many", "project: other"}
    assert "project: few: 84 places in 7 files of equal size, a verdict needs 8" in result.left_out
    monkeypatch.setattr(guardrails, "MIN_FILES", 7)
    looser = gate_candidate(champion, champion, SETTINGS)
    assert "project: few" in {f.slice for f in looser.findings}


def test_small_projects_in_few_files_have_no_vote_together_either() -> None:
    def named(few: int) -> list[PositionScore]:
        """Three projects of as many files together, and another one."""
        rows = [(i, s, f"project: {'abc'[i % 40 % 3]}" if i % 40 < few else "project: large") for i, s in enumerate(scores() * 2)]
        return [replace(s, id=str(i), slices=(project,)) for i, s, project in rows]

    few, enough = (gate_candidate(rows, rows, SETTINGS) for rows in (named(7), named(8)))
    assert {f.slice for f in few.findings} == {"", "project: large"}
    assert not any("it counts with" in note for note in few.left_out)
    assert {f.slice for f in enough.findings} == {"", "project: large", "project: 3 small ones"}


def in_files(rows: list[PositionScore], files: int) -> list[PositionScore]:
    return [replace(s, file=f"file {i % files}", slices=("set: a",)) for i, s in enumerate(rows)]


def test_a_loss_of_its_margin_does_not_pass_in_two_files() -> None:
    """A bootstrap over two files let it pass in a quarter of the cases, and failed equal candidates as often."""
    verdicts = {}
    for files in (2, 8):
        champion = in_files(scores(), files)
        rows = [in_files(scores(noise=0.3, seed=seed), files) for seed in range(60)]
        worse = [[replace(s, edit_similarity=s.edit_similarity - MARGINS["edit_similarity"]) for s in each] for each in rows]
        found = [[gate_candidate(each, champion, SETTINGS).verdict for each in kind] for kind in (worse, rows)]
        verdicts[files] = found[0].count("passed"), found[1].count("failed")
    assert verdicts[2] == (0, 0) and max(verdicts[8]) <= 3
    result = gate_candidate(in_files(scores(), 2), in_files(scores(), 2), SETTINGS)
    assert "edit_similarity: 240 places in 2 files are too few, 5 files of equal size are asked" in result.reason
    halves = [replace(s, slices=(f"set: {i // 120}",)) for i, s in enumerate(in_files(scores(), 4))]
    assert "set: 0: 120 places in 4 files of equal size, a verdict needs 5" in gate_candidate(halves, halves, SETTINGS).left_out


def test_a_metric_that_is_known_in_few_files_is_not_checked() -> None:
    rows = [s if i % FILES < 4 else measured_as(s, breaks_syntax=None) for i, s in enumerate(scores() * 4)]
    rows = [replace(s, id=str(i)) for i, s in enumerate(rows)]
    result = gate_candidate(rows, rows, SETTINGS)
    assert result.verdict == "passed" and "syntax: 96 places in 4 files of equal size, a verdict needs 5" in result.left_out


def test_longer_counts_beyond_the_true_text_only() -> None:
    """A candidate that writes whole lines where the champion wrote half is not longer; one that goes on after them is."""
    half = [replace(s, completion=s.truth[: len(s.truth) // 2]) for s in scores()]
    whole = [replace(s, completion=s.truth) for s in scores()]
    beyond = [replace(s, completion=s.truth + "_more") for s in scores()]
    found = [
        {f.guardrail: f for f in gate_candidate(candidate, half, SETTINGS).findings if not f.slice}
        for candidate in (whole, beyond)
    ]
    assert (found[0]["longer"].difference, found[0]["longer"].verdict) == (0, "passed")
    typical = np.mean([len(s.truth) for s in scores()])
    assert found[1]["longer"].difference == pytest.approx(5 / typical) and found[1]["longer"].verdict == "failed"


def test_the_simulation_finds_equal_models_equal_and_a_lost_margin_lost() -> None:
    """Two models that are the same pass always, and each planted loss is let through as seldom as promised, with its row."""
    wide = [measured_as(s, passed=float(i % 2), silent=None) for i, s in enumerate(scores() * 2)]
    rows = [replace(s, id=str(i)) for i, s in enumerate(wide)]
    figures = {f.name: f for f in rates.figures_of("gate", rates.Pool.of(rows, rows), 240, SETTINGS, 20)}
    assert figures["gate.equal.passed"].value == 1.0 and figures["gate.equal.blocked_by.exact"].value == 0.0
    worse = {name.removeprefix("gate.one_margin_worse."): f.value for name, f in figures.items() if "worse" in name}
    assert {"exact", "passed", "syntax", "longer", "variety", "edit_similarity (language: go)"} <= worse.keys()
    assert sum(worse.values()) / len(worse) < 0.2
    drawn = rates.Pool.of(rows, rows).draw(240, np.random.default_rng(0))
    assert abs(drawn.places.asks.sum() - 240) < 60


def test_two_sets_may_name_one_file_and_offset() -> None:
    """Places of different sets are different places, and files of different sets different clusters."""
    twice = [replace(s, set=name, offset=0, id=str(i), file="a.py") for name in "xy" for i, s in enumerate(scores()[:120])]
    finding = next(f for f in gate_candidate(twice, twice, SETTINGS).findings if f.guardrail == "edit_similarity" and not f.slice)
    assert (finding.places, finding.files) == (240, 2)
    with pytest.raises(ValueError, match="score both on one set"):
        gate_candidate(twice[120:] + twice[:120], twice, SETTINGS)


def test_noise_is_undecided_and_undecided_does_not_pass() -> None:
    result = verdict(scores(noise=1.0))
    assert (result.verdict, failed(result)) == ("undecided", set())
    assert "edit_similarity: not surely within the margin" in result.reason


def test_too_few_places_and_unknown_values_are_undecided() -> None:
    few = gate_candidate(scores()[:100], scores()[:100], SETTINGS)
    assert (few.verdict, few.findings) == ("undecided", ()) and "evaluate.gate.min_places asks for 200" in few.reason
    unscored = [replace(s, judged=None) for s in scores()]
    result = verdict(unscored)
    assert result.verdict == "undecided" and "judged: 0 places in 0 files are too few" in result.reason
    ignored = verdict(unscored, judge_counts=False)
    assert ignored.verdict == "passed" and "judged: the judge's scores do not count" in ignored.left_out
    wanted = Gate(min_places=200, margins={"drift": 0.5})
    assert verdict(scores(), wanted).verdict == "undecided", "a guardrail that is set and not computed does not pass"
    drifted = [replace(s, drift=0.6 + 0.01 * (i % 7)) for i, s in enumerate(scores())]
    still = [replace(s, drift=0.0) for s in scores()]
    assert "drift" in failed(gate_candidate(drifted, still, wanted))


def test_failed_judgements_are_left_out_in_pairs() -> None:
    candidate = [replace(s, judged=None if i % 10 == 0 else s.judged) for i, s in enumerate(scores())]
    finding = next(f for f in verdict(candidate).findings if f.guardrail == "judged")
    assert (finding.places, finding.difference, finding.verdict) == (PLACES * 9 // 10, 0, "passed")
    assert finding.candidate == finding.champion, "both means are of the places that both have"


def test_scores_of_other_places_are_refused() -> None:
    with pytest.raises(ValueError, match="score both on one set"):
        gate_candidate(scores()[1:], scores()[:-1], SETTINGS)


def test_a_loss_of_one_margin_is_planted_as_large_as_it_says() -> None:
    """The bench's plants: on average each takes one margin of its guardrail."""
    rows = [measured_as(s, passed=float(i % 2)) for i, s in enumerate(scores() * 10)]
    champion, places = Values.of(rows), Places.of(rows)
    checks = checks_of(champion, champion, places, SETTINGS).checks
    assert {check.guardrail.name for check in checks} == set(MARGINS) - {"slices", "drift", "silent"}
    for check in checks:
        if check.slice:
            continue
        mean = float(np.nanmean(champion.by_measure[check.guardrail.measure.name]))
        worse = worsened(check, mean, champion, np.random.default_rng(0))
        column = column_of(check.guardrail, worse, champion)
        loss = float(column.difference.sum() / column.weight.sum())
        sign = -1 if check.guardrail.worse == "less" else 1
        assert sign * loss == pytest.approx(check.margin, rel=0.25), check.guardrail.name


def test_every_guardrail_has_a_margin() -> None:
    assert {g.name for g in GUARDRAILS} == {*MARGINS, *UNSET} - {"slices"}


def test_a_language_without_a_grammar_is_counted_and_not_checked() -> None:
    unknown = [replace(s, measured=replace(s.measured, breaks_syntax=None, commented=None)) for s in scores()]
    result = gate_candidate(unknown, unknown, SETTINGS)
    assert result.verdict == "passed"
    few = "known at 0 of 240 places, a verdict needs 60"
    assert {f"syntax: {few}", f"comments: {few}"} <= set(result.left_out)


def quiet(count: int, loud: int) -> list[PositionScore]:
    """Return scores at places where nothing should be written; at the first ones something is."""
    texts = ["x = 1"] * loud + [""] * (count - loud)
    place = Position("a.py", 0, "a = 1", "", "")
    empty = [replace(s, truth="", slices=()) for s in scores()[:count]]
    return [replace(s, completion=t, measured=measure(place, t)) for s, t in zip(empty, texts, strict=True)]


def test_silence_is_measured_where_nothing_should_be_written_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardrails, "MIN_PLACES", 40)
    margins = {**MARGINS, "silent": 0.2}
    settings = SETTINGS.model_copy(update={"margins": margins})
    same = gate_candidate(scores() + quiet(80, 4), scores() + quiet(80, 4), settings)
    assert same.verdict == "passed" and {f.places for f in same.findings if f.guardrail == "exact"} == {PLACES}
    worse = gate_candidate(scores() + quiet(80, 60), scores() + quiet(80, 4), settings)
    assert failed(worse) == {"silent"}
    (finding,) = (f for f in worse.findings if f.guardrail == "silent")
    assert (finding.candidate, finding.champion, finding.places) == (0.25, 0.95, 80)
    few = gate_candidate(scores()[:150] + quiet(80, 0), scores()[:150] + quiet(80, 0), settings)
    assert few.verdict == "undecided" and few.reason.startswith("150 places")


def test_measures_by_hand() -> None:
    assert repetition("a b a b a b") == pytest.approx(0.5)  # aba, bab, aba, bab
    assert (repetition("a b"), repetition("f(x, y)")) == (0.0, 0.0)
    rows = [replace(s, completion=text) for s, text in zip(scores(), ("a", "a", "b", "c"), strict=False)]
    assert BY_NAME["variety"].values(rows).mean() == pytest.approx(1.5)  # shares of 1/2, 1/4, 1/4
