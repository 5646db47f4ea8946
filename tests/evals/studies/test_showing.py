"""The comparison of rules of showing: what a rule shows, and what it is worth."""

import numpy as np
import pytest

from evals.developers import Schedule, code_from
from evals.developers.pause import Choice, ExpectedOutcome, Pause
from evals.developers.taste import Opinion
from evals.studies.showing.bench import cut, held
from evals.studies.showing.rules import (
    CompletedPauses,
    TokenOutcomes,
    comparison,
    gain,
    gain_per_shown,
    labelled,
    level_figures,
)
from infra.model.past_acceptance import PastAcceptance
from infra.model.showing import Place
from tasks.evaluation.models.base import SampledCompletion
from tasks.showing.labels import LabelledCompletion

# Four completions of two tokens, of two users: accepted, kept characters and shown, if so many tokens are shown; no time or edit.
VALUES = [
    np.pad(np.array(rows, float), ((0, 0), (0, 3)))
    for rows in ([(1, 3, 1), (0, 0, 1)], [(0, 0, 1), (1, 9, 1)], [(0, 0, 1)] * 2, [(1, 2, 1)] * 2)
]
OUTCOMES = TokenOutcomes(["a", "b", "a", "b"], VALUES, [10, 20, 10, 20])
ALL = OUTCOMES.of([2, 2, 2, 2])


def test_what_a_rule_is_worth_adds_up_by_user() -> None:
    assert [ALL.mean(measure) for measure in ("accepted", "kept", "shown")] == [0.5, 11 / 4, 1.0]
    best = OUTCOMES.of([1, 2, 0, 2])
    assert [best.mean(measure) for measure in ("accepted", "kept", "shown")] == [0.75, 14 / 4, 0.75]
    assert best.values["kept"].tolist() == [3, 11] and best.requests.tolist() == [2, 2]
    assert gain(best, ALL, "accepted", ALL)[0] == pytest.approx(50) and gain(ALL, ALL, "kept", ALL) == (0.0, 0.0)
    assert gain_per_shown(best, ALL)[0] == pytest.approx(100) and gain_per_shown(ALL, ALL) == (0.0, 0.0)


def test_a_level_misses_a_target_that_it_does_not_reach() -> None:
    worse = OUTCOMES.of([2, 0, 0, 2])
    met = {row.name: row.met for row in level_figures("eager", worse, ALL)}
    assert not met["eager: kept characters"] and met["eager: shown"]
    assert all(row.met for row in level_figures("eager", OUTCOMES.of([1, 2, 0, 2]), ALL))


def test_the_frontier_is_compared_where_it_shows_no_more() -> None:
    ours = [ALL, OUTCOMES.of([1, 2, 0, 2]), OUTCOMES.of([0, 2, 0, 0])]
    rows = {row.name: row.value for row in comparison("held", [0.5], [OUTCOMES.of([2, 0, 2, 2])], ours, ALL)}
    assert (rows["held below 0.5: shown"], rows["held below 0.5: the frontier's shown"]) == (-25.0, -25.0)
    assert rows["held below 0.5: accepted"] == -50.0 and rows["held below 0.5: the frontier above it, accepted"] == 100.0


def test_the_plain_rules() -> None:
    logprobs = np.log([0.9, 0.5, 0.9])
    row = LabelledCompletion(Place("", ""), 0.1, "abc", logprobs.tolist(), [1, 2, 3], np.full(3, np.nan), None)
    places = CompletedPauses([], [row])
    assert [held(places, least) for least in (0.4, 0.41)] == [[3], [0]]
    assert [cut(places, least) for least in (0.4, 0.42, 0.6, 0.95)] == [[3], [2], [1], [0]]


@pytest.mark.parametrize(("stands", "kept"), [(True, [1, 1]), (False, [0, 0])])
def test_an_accepted_text_that_stands_is_the_settled_text(monkeypatch: pytest.MonkeyPatch, stands: bool, kept: list[int]) -> None:
    schedule = Schedule(20, 0, code_from())
    pauses = (schedule.first_pause(number) for number in range(100))
    pause = next(p for p in pauses if p.settled and p.settled.text and p.settled.kind == "typed")
    opinion = Opinion(True, "explored", 0, covered=1, stands=stands)
    monkeypatch.setattr(Pause, "answer", lambda *_: (ExpectedOutcome(1.0, "~~ab"), Choice(True, opinion)))
    completion = SampledCompletion((), (1, 2), (-0.1, -0.1), "~~ab")
    found = labelled(pause, completion, "~~ab", [2, 4], PastAcceptance(), 0.1)
    assert pause.settled and pause.settled.text and found.compared
    assert found.compared.settled == ("~~ab" + pause.settled.text[1:] if stands else pause.settled.text)
    assert found.kept.tolist() == kept
