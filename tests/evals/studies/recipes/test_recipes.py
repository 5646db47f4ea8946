"""The samples of each recipe of the same requests, the parts of a run, and the figures of a gain."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from evals.base_model import update
from evals.compare.gains import Sums, by_user
from evals.developers import KINDS, Schedule, code_from
from evals.studies.recipes import bench as bench_recipes
from evals.studies.recipes import cells, samples
from evals.studies.recipes.bench import Cell, Options, plan
from evals.studies.recipes.cells import SAMPLED_BY, SERVED_BY, Bench, Parts, Paused, Sizes, labelled_of, options_of
from evals.studies.recipes.drift import Drift, own_share
from evals.studies.recipes.gains import OUTCOMES, SHIPPED, Gain, against, difference, figures
from evals.studies.recipes.policy import Policy
from evals.studies.recipes.samples import RECIPES, Lesson, Recipe, matched, sampled_values, samples_of, tokens_shown
from evals.studies.recipes.stream import Outcome, Request, Stream, open_stream, settle
from evals.studies.showing.rules import CompletedPauses
from infra import settings as configuration
from infra.model.showing import Place
from infra.records import Sample
from infra.settings import Settings
from infra.settings.schema import Hindsight
from tasks.evaluation import positions
from tasks.showing.fit import Unfitted
from tasks.showing.labels import LabelledCompletion, labelled
from tasks.trainer.job import Job
from tasks.trainer.options import UpdateSettings
from tasks.trainer.update.targets import taught_by
from tests.tasks.labels.test_hindsight import BEGIN, END, accounted, asked, here, row


@pytest.fixture(scope="module")
def settings() -> Settings:
    return configuration.load()


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """Developers who write this repository's own rooms."""
    return Schedule(30, 0, positions.Code(own_files()))


@pytest.fixture(scope="module")
def lesson(settings: Settings, schedule: Schedule) -> Lesson:
    """A hundred requests that the base completed, beside developers who accept nothing."""
    base = configuration.path(settings.model.base)
    stream = open_stream(schedule, 0, 100, Policy(base, settings), settings, 1)
    return Lesson(stream, schedule, base, settings, "7", seed=1)


def own_files() -> list[positions.Source]:
    root = Path(positions.__file__).parents[2]
    sources = positions.read_sources(sorted((root / "infra").rglob("*.py")), [root])
    return [source for source in sources if not positions.is_scored(source.name)]


@pytest.mark.parametrize("recipe", [name for name, one in RECIPES.items() if "drawn" not in one.actions and one.developers])
def test_every_recipe_has_something_to_teach_under_its_own_training(settings: Settings, lesson: Lesson, recipe: str) -> None:
    made = samples_of(RECIPES[recipe], lesson)
    training = UpdateSettings(**settings.train.model_dump(include=set(UpdateSettings.model_fields)) | RECIPES[recipe].update)
    assert taught_by(made, training)
    assert RECIPES[recipe].update.keys() <= Job.model_fields.keys()


def test_settled_text_is_mined_from_later_requests_and_its_first_line_is_taught(schedule: Schedule, lesson: Lesson) -> None:
    taught = {s.completion_id: s.settled_token_ids for s in samples_of(RECIPES["written"], lesson) if s.outcome != "standing"}
    wrote = {}
    for number in range(len(lesson.requests)):
        truth = schedule.first_pause(number).settled
        if truth and truth.text is not None:
            wrote[str(number)] = {text.split("\n")[0] for text in (truth.text, truth.first) if text is not None}
    renderer = lesson.renderer
    right = [any(ids[:24] == (*renderer.encode(t), renderer.end)[:24] for t in wrote.get(n, ())) for n, ids in taught.items()]
    assert len(right) > 50 and np.mean(right) > 0.97
    assert len(taught) < len(lesson.requests), "what no later request shows is no label"


def test_the_control_has_the_same_number_of_rows_and_tokens() -> None:
    pool = [sample_of(length, str(number)) for number, length in enumerate((5, 3, 3, 8, 4, 12, 5))]
    chosen = matched(pool, [5, 3, 9, 3])
    assert [len(s.settled_token_ids) for s in chosen] == [5, 3, 8, 3]
    assert len({s.completion_id for s in chosen}) == 4
    assert chosen[0].completion_id == "0", "the first of a length is taken first"


def sample_of(length: int, name: str) -> Sample:
    empty = {"user": "u", "policy_version": "1", "prompt_token_ids": (1,), "token_ids": (), "logprobs": ()}
    counts = {"temperature": 1.0, "outcome": "unjudged", "shown_characters": 0, "accepted_characters": 0}
    return Sample.model_validate({"completion_id": name, "settled_token_ids": (7,) * length, **empty, **counts})


REQUEST = Request("u", 0.0, "p", "s", (1, 2), (3, 4, 5), (-1.0, -0.5, -0.1), (3, 6, 6), 0.1, "abcdef", 3)


def test_what_was_shown_is_taught_by_what_the_developer_did() -> None:
    served, both, quiet = RECIPES["served"], RECIPES["all"], RECIPES["all_without_silence"]
    accepted = replace(REQUEST, outcome="accepted", shown="abcdef")
    assert sampled_values(accepted, served)["token_ids"] == (3, 4, 5)
    assert sampled_values(accepted, served)["accepted_characters"] == 6
    cut = replace(REQUEST, outcome="rejected", shown="abc", served=1)
    assert sampled_values(cut, served) | {"logprobs": None} == {
        **{"token_ids": (3,), "logprobs": None, "temperature": 0.1, "outcome": "rejected", "shown_characters": 3},
        **{"accepted_characters": 0, "kept_characters": None},
    }
    unheard = replace(REQUEST, shown="abcdef", settled="abc", there="abc")
    assert not sampled_values(unheard, served) and sampled_values(unheard, both)["kept_characters"] is not None
    assert not sampled_values(replace(unheard, settled=None), both)
    nothing = replace(REQUEST, outcome="nothing", text="", ends=(0,), tokens=(9,), logprobs=(-0.1,), served=1)
    assert sampled_values(nothing, both)["token_ids"] == (9,) and not sampled_values(nothing, quiet)


def test_what_is_kept_is_counted_as_in_a_cycle() -> None:
    """An accepted block, in which somebody typed its first two characters and went on; and one that was undone."""
    text, cursor = "foo(bar)\n    one = 1\n    two = 2", "foo(bar)\n    one"
    first = replace(REQUEST, prefix=BEGIN, suffix=END, text=text, shown=text[2:], outcome="accepted")
    within = replace(first, time=20.0, prefix=BEGIN + cursor, suffix=text.removeprefix(cursor) + END)
    undone = replace(first, time=20.0)
    for later, settled, typed, kept in ((within, "foo(bar)\n", 2, len(text) - 2), (undone, None, 0, 0)):
        (found,) = settle([first, later], 1, Hindsight(), 24)
        assert (found.settled, found.typed, found.kept) == (settled, typed, kept)
        sent = here(prefix=BEGIN + text[:2], shown=text[2:])
        requests = [asked(text=text), asked("d", 20, later.prefix.removeprefix(BEGIN), suffix=later.suffix)]
        counted = row(accounted(requests, [sent]))
        assert (counted["settled"], counted["typed_over"], counted["kept_characters"]) == (settled, typed, kept)


@pytest.mark.parametrize(
    ("shown", "served", "tokens"), [("abcdef", 3, 3), ("abc", 1, 1), ("bcdef", 3, 3), ("abc", 3, 1), ("", 3, 3)]
)
def test_the_tokens_of_a_sample_are_those_whose_text_was_shown(shown: str, served: int, tokens: int) -> None:
    assert tokens_shown(replace(REQUEST, shown=shown, served=served)) == tokens


@pytest.mark.parametrize(
    ("shown", "there", "kept"),
    [
        *(("abcdef", None, [None, 1, None]), ("abc", None, [1, None, None]), ("bc", None, [1, None, None])),
        ("abcdef", "", [None, 0, None]),  # undone
    ],
)
def test_the_label_of_an_answer_is_that_of_the_last_token_with_text_as_in_a_cycle(
    shown: str, there: str | None, kept: list[int | None]
) -> None:
    request = replace(REQUEST, outcome="accepted", shown=shown, there=there)
    row = dict(
        **{"token_ends": request.ends, "text": request.text, "held_back": "", "settled": None, "extent": request.extent},
        **{"shown_characters": len(shown), "kept_characters": request.kept},
        **{"outcome": "accepted", "chance": None, "audited": False, "prefix": "p", "suffix": "s", "language": ""},
        **{"user_acceptance": None, "project_acceptance": None, "temperature": 0.1, "logprobs": request.logprobs},
    )
    for found in (labelled_of(request), labelled(row)):
        assert [None if np.isnan(one) else one for one in found.kept] == kept


def test_groups_that_nobody_saw_stand_beside_what_was_shown(lesson: Lesson, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [one.settled.split("\n")[0] if one.settled and number % 2 else "zz" for number, one in enumerate(lesson.requests)]
    outcomes: list[Outcome] = ["accepted" if text != "zz" else "rejected" for text in texts]
    requests = [
        replace(one, shown=text, outcome=outcome) for one, text, outcome in zip(lesson.requests, texts, outcomes, strict=True)
    ]
    monkeypatch.setattr("tasks.rewards.acceptance.LEAST_EACH", 10)
    drawn_from = replace(lesson, stream=Stream(tuple(requests)))
    made = samples_of(RECIPES["written_drawn"], drawn_from)
    drawn = [s for s in made if s.outcome == "judged"]
    assert [s for s in made if s.outcome != "judged"] == samples_of(RECIPES["written"], drawn_from)
    assert drawn and {s.temperature for s in drawn} == {lesson.settings.train.groups.temperature, 1.0}
    known = {str(number) for number, one in enumerate(requests) if one.settled is not None}
    assert {s.completion_id.split("/")[0] for s in drawn} <= known


def test_the_probe_measures_quality_variety_length_and_agreement(schedule: Schedule) -> None:
    pauses = [schedule.first_pause(number, "later") for number in range(4)]
    texts = [pauses[0].position.truth, "zq", "zq", ""]
    chances = ([math.log(0.5)], [0.0], [math.log(0.25)], [0.0])
    made = zip(texts, chances, strict=True)
    rows = [LabelledCompletion(Place("", ""), 0.1, text, logprobs, [1], np.array([0.0]), None) for text, logprobs in made]
    probe = Drift.of(CompletedPauses(pauses, rows))
    assert probe.variety == pytest.approx(2 / 3) and probe.agreement == pytest.approx((0.5 + 1 + 0.25 + 1) / 4)
    assert probe.quality == pytest.approx(1 / 3, abs=0.15)
    assert probe.length == pytest.approx(sum(map(len, texts)) / 3)
    mine = replace(REQUEST, outcome="accepted", shown="ab", settled="ab c")
    assert own_share(Stream((mine, replace(mine, outcome="rejected"), replace(mine, settled=None)))) == 0.5


def gain(change: float, seed: int = 0, interactions: int = 7200, ground: str = "later") -> Gain:
    """The gain at 1,000 places of 50 users."""
    rng = np.random.default_rng(seed)
    base = rng.random(1000) * 0.2
    users, written = [f"u{i % 50}" for i in range(1000)], np.full(1000, 30.0)

    def sums(values: np.ndarray) -> Sums:
        columns = {"accepted": values, "kept": 10 * values, "saved": values, "edit": values, "reading": values, "shown": values}
        return by_user(users, columns | {"written": written})

    best, everything, after = (sums(v) for v in (base, base - 0.01, base + change + rng.normal(0, 0.01, 1000)))
    readings = {"quality": (0.5, "0 to 1")}
    return Gain(ground, interactions, best, everything, after, after, readings)  # type: ignore[arg-type]  # a ground's name


def test_a_gain_has_an_interval_over_the_users_of_all_seeds() -> None:
    rows = {f.name: f for f in figures({"written": {0: [gain(0.03, 1)], 1: [gain(0.01, 2)]}}, "people abc")}
    name = "people abc written: later after 7200"
    assert rows[f"{name}, accepted"].value == pytest.approx(2.0, abs=0.2)
    assert 0.4 > rows[f"{name}, accepted, half of the interval"].value > 0
    assert rows[f"{name}, kept characters"].value == pytest.approx(20, abs=3)
    assert rows[f"{name}, time saved"].value == pytest.approx(0.02 / 30 * 3600 / 0.2, rel=0.1)
    assert rows[f"{name}, time saved"].unit == "s per hour of writing"
    assert rows[f"{name}, with the decision to show: accepted"].value == pytest.approx(3.0, abs=0.2)
    assert rows[f"{name}, quality"].value == 0.5
    assert rows[f"{name}, seeds"].value == 2 and rows[f"{name}, places"].value == 2000
    assert difference(gain(0.03).best, gain(0.03).best, OUTCOMES[0]) == (0.0, 0.0)


def test_the_interval_of_several_seeds_is_no_narrower_than_the_differences_between_them_allow() -> None:
    changes = (0.05, 0.01, 0.0)
    rows = {f.name: f.value for f in figures({"written": {i: [gain(c, i)] for i, c in enumerate(changes)}}, "people abc")}
    name = "people abc written: later after 7200, accepted"
    student = 4.303 * np.std([100 * change for change in changes], ddof=1) / math.sqrt(3)
    assert rows[name] == pytest.approx(2.0, abs=0.2)
    assert rows[f"{name}, half of the interval"] == pytest.approx(student, rel=0.05)
    same = {f.name: f.value for f in figures({"written": {i: [gain(0.02, 1)] for i in range(3)}}, "people abc")}
    assert same[f"{name}, half of the interval"] > 0, "the interval over users stays"
    runs = {SHIPPED: {i: [gain(c, i)] for i, c in enumerate(changes)}, "written": {i: [gain(0.0, i)] for i in range(3)}}
    assert any(not row.met for row in figures(runs)), "what one seed gains and the others do not is not sure"


@pytest.mark.parametrize(("shipped", "met"), [(0.03, True), (0.0101, False), (0.0, False)])
def test_the_shipped_recipe_must_be_surely_better_than_the_written_text_and_worse_in_nothing(shipped: float, met: bool) -> None:
    runs = {SHIPPED: {0: [gain(shipped, 2)]}, "written": {0: [gain(0.01, 1)]}, "control": {0: [gain(-0.02, 1)]}}
    assert all(row.met for row in figures(runs)) == met
    assert not [*against(runs, SHIPPED, "drawn")]
    more = {SHIPPED: {0: [gain(0.0, 2, 1800), gain(0.03, 2)]}, "written": {0: [gain(0.01, 1)], 1: [gain(0.01, 1)]}}
    assert all("later after 7200" in row.name for row in against(more, SHIPPED, "written"))


def test_a_difference_between_two_recipes_is_in_percent_of_the_other_recipe() -> None:
    rows = {row.name: row for row in against({SHIPPED: {0: [gain(0.1, 1)]}, "written": {0: [gain(0.1, 2)]}}, SHIPPED, "written")}
    kept = rows[f"{SHIPPED} above written: later after 7200, kept characters"]
    assert kept.unit == "% of written's" and rows[f"{kept.name}, low"].unit == kept.unit
    assert rows[f"{SHIPPED} above written: later after 7200, accepted"].unit == "points"


@pytest.mark.parametrize(("change", "met"), [(0.02, True), (0.005, False)])
def test_with_plain_developers_the_shipped_recipe_must_gain_two_points(change: float, met: bool) -> None:
    assert all(row.met for row in figures({SHIPPED: {0: [gain(change, 1)]}}, "plain abc")) == met
    assert all(row.met for row in figures({SHIPPED: {0: [gain(change, 1)]}}, "people abc"))


def test_the_plan_has_more_seeds_and_both_kinds_for_the_two_recipes_that_matter() -> None:
    cells_ = plan(Options())
    assert cells_[:2] == [Cell("people", "written", 0), Cell("people", SHIPPED, 0)]
    counted = Counter((one.kind, one.recipe) for one in cells_)
    assert counted["people", "written"] == counted["people", SHIPPED] == 5 and counted["plain", "written"] == 2
    assert counted["people", "served"] == counted["people", "control"] == 2 and not counted["plain", "served"]
    assert counted["people", "all_explored"] == 1
    assert plan(Options(("drawn",), (3,), kinds=("plain",))) == [Cell("plain", "drawn", 3)]
    assert plan(Options(quick=True)) == [Cell("people", "written", 0), Cell("people", SHIPPED, 0)]


def test_the_updates_between_the_comparisons_are_as_large_as_a_cycle() -> None:
    assert bench_recipes.counts("1800..28800") == [1800, 3600, 7200, 14_400, 28_800]
    assert bench_recipes.counts("1800,5000") == [1800, 5000]
    for wrong in ("7200,1800", "1800,7200k", "7200,", "0..0"):
        with pytest.raises(ValueError, match=rf"1800\.\.28800, got '{wrong}'"):
            bench_recipes.counts(wrong)
    assert Sizes(1, (1800, 7200, 28_800), 7200, 8).updates == [
        *((0, 1800), (1800, 7200), (7200, 14_400)),
        *((14_400, 21_600), (21_600, 28_800)),
    ]


def test_a_run_that_was_stopped_goes_on_and_equal_rows_make_one_model(
    settings: Settings, schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Counter[str] = Counter()

    def trained(job: tuple[str, ...], log: Path, *_: object) -> None:
        base = configuration.path(settings.model.base)
        (log.parent / "checkpoint").symlink_to(base)
        made["trained"] += 1

    monkeypatch.setattr(update, "follow", trained)
    monkeypatch.setattr(update, "costs", lambda folder: {"seconds of the update": (1.0, "s")})
    monkeypatch.setattr(samples, "context_line_samples", lambda *_: [])
    monkeypatch.setattr(cells, "samples_of", lambda recipe, given: [sample_of(3, "a")])
    same = Recipe("", ("written",), {"surrogate_weight": 0.0})
    monkeypatch.setattr(cells, "RECIPES", {"written": same, "other": replace(same, meaning="other")})
    said: list[str] = []
    times = iter((100.0, 104.0, 105.0, 111.0))
    parts = Parts(10.0, said.append, lambda: next(times))
    bench = Bench("plain", 0, Sizes(30, (8,), 8, 4), schedule, settings, tmp_path, parts)
    with pytest.raises(Paused):
        bench.gains("written")
    assert [line.rsplit(": ")[1].split(" ")[0] for line in said] == ["requests", "samples", "update"]
    rest = replace(bench, parts=Parts(math.inf, said.append))
    first = rest.gains("written")
    assert [(g.ground, g.interactions, g.trained.requests.sum()) for g in first] == [
        ("later", 8, 4),
        ("new", 8, 2),
    ]
    assert values(first[0].trained) == values(first[0].best), "the model that was copied is the base"
    assert values(first[0].trained_all) == values(first[0].best_all), "too few places for an estimate: all is shown"
    assert first[0].notes["seconds of the update"] == (1.0, "s") and "seconds of the update" not in first[1].notes
    assert first[1].notes["quality"] == (first[1].notes["quality of the base"][0], "0 to 1")
    done = len(said)
    again = rest.gains("other")
    assert [values(g.trained) for g in again] == [values(g.trained) for g in first]
    assert [(g.ground, g.interactions) for g in again] == [(g.ground, g.interactions) for g in first] and made["trained"] == 1
    assert said[done:] == ["plain, seed 0, other: samples of version 1"]
    kept = json.loads(next((tmp_path / "streams").glob("*.json")).read_text())["stream"]
    assert (
        cells.stream_of(kept).requests
        == open_stream(schedule, 0, 8, Policy(configuration.path(settings.model.base), settings), settings, 0).requests
    )


def values(found: Sums) -> dict[str, list[float]]:
    return {"requests": found.requests.tolist()} | {name: column.tolist() for name, column in found.values.items()}


def test_a_part_is_named_by_the_settings_that_it_follows_from(settings: Settings) -> None:
    train = settings.train
    assert options_of(train) == options_of(train.model_copy(update={"job": Path("job.json"), "processes": 8}))
    assert options_of(train) != options_of(train.model_copy(update={"epochs": train.epochs + 1}))
    other = settings.model_copy(update={"serving": settings.serving.model_copy(update={"log_format": "json"})})
    assert settings.model_dump_json(include=SAMPLED_BY) == other.model_dump_json(include=SAMPLED_BY)
    warmer = settings.serving.model_copy(update={"sampling": settings.serving.sampling.model_copy(update={"temperature": 0.3})})
    other = settings.model_copy(update={"serving": warmer})
    assert settings.model_dump_json(include=SERVED_BY) != other.model_dump_json(include=SERVED_BY)


def test_nobody_meets_a_decision_that_was_fitted_on_what_they_wrote(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    users, fitted_on = [f"u{number}" for number in range(40)], []
    rows = [LabelledCompletion(Place(user, ""), 0.1, "ab", [-0.1, -3.0], [1, 2], np.array([1.0, 0.0]), None) for user in users]
    pauses = [SimpleNamespace(developer=SimpleNamespace(name=user)) for user in users]
    places = CompletedPauses(pauses, rows)  # type: ignore[arg-type]  # pauses with the fields that are read

    def fit(completions: list[LabelledCompletion]) -> Unfitted:
        fitted_on.append({completion.place.prefix for completion in completions})
        return Unfitted(reason="too few")

    monkeypatch.setattr(cells, "fit", fit)
    estimates = cells.cross_fitted(places)
    assert all(user not in fitted_on[cells.half_of(user)] for user in users) and set.union(*fitted_on) == {*users}
    assert cells.shown_of(estimates, places, settings.serving.showing, settings.serving.sampling) == [2] * 40


@pytest.mark.long(reason="a whole small study, with two updates")
@pytest.mark.stack
def test_a_recipe_trains_in_a_closed_loop_and_is_compared(settings: Settings, tmp_path: Path) -> None:
    schedule = Schedule(20, 0, code_from(), KINDS["people"])
    bench = Bench("people", 0, Sizes(20, (32, 64), 32, 8), schedule, settings, tmp_path, Parts(math.inf, print))
    found = bench.gains("written_served")
    for gain in found:
        assert gain.notes["agreement"] != gain.notes["agreement of the base"], f"{gain.ground}: of the trained model's own draws"
    assert any(values(gain.trained_all) != values(gain.best_all) for gain in found)
    assert len(list((tmp_path / "models").glob("*/checkpoint/model.safetensors"))) == 2
    assert found[0].notes["seconds of the update"][0] > 0
