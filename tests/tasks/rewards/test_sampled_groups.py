"""Groups that a cycle draws at places whose settled text is known."""

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from infra.settings.schema import Groups, Reward, Train
from tasks.evaluation.models.base import DrawnGroup, SampledCompletion
from tasks.rewards.acceptance import Acceptance, capped, fit
from tasks.rewards.actions import SILENCE, decide
from tasks.rewards.sampled_groups import SampledGroups, SettledPlace, actions_of, draw, rewards_of

REWARD = Reward(accepted=0.75, rejected=-0.05)
GROUPS = Groups(places=20, size=4, temperature=0.8)
AT_ONE = GROUPS.model_copy(update={"temperature": 1.0})
SETTLED = "total = value + {0}\nreturn total\n"
END = 0


def place(number: int, right: bool, users: int = 10) -> SettledPlace:
    """A place whose completion was accepted if it was right."""
    settled = SETTLED.format(number)
    shown = settled.split("\n")[0] if right else "print(nothing)"
    who: dict[str, Any] = {"project": "p", "user": f"u{number % users}", "credential": "c"}
    return SettledPlace(
        f"r{number}", **who, prefix="    ", suffix="\n", settled=settled, whole=False, shown=shown, accepted=right
    )


def places(count: int = 200, users: int = 10) -> list[SettledPlace]:
    return [place(number, number % 3 == 0, users) for number in range(count)]


def completion(text: str, tokens: tuple[int, ...] = ()) -> SampledCompletion:
    ids = tokens or tuple(ord(sign) for sign in text) or (END,)
    return SampledCompletion((1, 2, 3), ids, (*(-0.5 for _ in ids[1:]), 1e-9), text)


def sampler(asked: Sequence[SettledPlace]) -> list[DrawnGroup]:
    """Of four completions one begins rightly, two are equally wrong, and one is silence."""
    texts = ("total = value", "other()", "other()", "")
    return [DrawnGroup((1, 2, 3), tuple(map(completion, texts)), END, math.log(0.1)) for _ in asked]


def fitted(judged: Sequence[SettledPlace]) -> Acceptance:
    model = fit([(p.shown, p.settled) for p in judged], [bool(p.accepted) for p in judged])
    assert isinstance(model, Acceptance)
    return model


def test_the_chance_follows_what_developers_took() -> None:
    model = fitted(places())
    line = SETTLED.format(7)
    whole, begun, wrong, blank = model.chances([(text, line) for text in ("total = value + 7", "total = val", "print(x)", " ")])
    assert whole > 0.9 > 0.5 > wrong > blank == 0.0
    assert whole > begun > wrong


def test_the_chance_falls_with_what_is_wrong_beside_a_beginning_that_is_right() -> None:
    """Developers take a text with one or two wrong characters and none with more, whatever share of it is right."""
    settled, judged = "alpha_beta_gamma_delta_epsilon", list[tuple[str, bool]]()
    for number in range(300):
        right, wrong = 4 + number % 20, (0, 1, 2, 6, 9)[number % 5]
        judged.append((settled[:right] + "#" * wrong, wrong <= 2))
    model = fit([(shown, settled) for shown, _ in judged], [taken for _, taken in judged])
    assert isinstance(model, Acceptance)
    short, long = model.chances([(settled[:6] + "##", settled), (settled[:24] + "#" * 8, settled)])
    assert short > 0.8 > 0.2 > long, "three quarters of both are right"


def test_the_error_of_the_chance_is_that_on_verdicts_that_it_was_not_fitted_on() -> None:
    error = fitted(places()).error
    assert (error.verdicts, error.accepted) == (200, 67)
    assert error.predicted == pytest.approx(67, abs=3), "calibrated in the large"
    assert error.brier < 0.01 < error.base_brier == pytest.approx(67 / 200 * 133 / 200)
    base = -(67 * math.log(67 / 200) + 133 * math.log(133 / 200)) / 200
    assert error.log_loss < 0.1 < error.base_log_loss == pytest.approx(base)


def test_verdicts_that_the_texts_do_not_explain_give_no_chance() -> None:
    sent = [replace(p, accepted=number % 2 == 0) for number, p in enumerate([place(n, True) for n in range(200)])]
    found = fit([(p.shown, p.settled) for p in sent], [bool(p.accepted) for p in sent])
    assert isinstance(found, str) and "no better than their mean: log loss 0.69" in found


@pytest.mark.parametrize("name", ["user", "credential"])
def test_who_judges_most_and_falsely_has_no_more_than_their_share_of_the_acceptance(name: str) -> None:
    """A third of the verdicts, each the contrary of what its text deserves, ended the drawing for all."""
    honest = [replace(one, credential=one.user) for one in places(120, users=30)]
    false = [replace(place(n, n % 2 == 0), user=f"h{n % 40}", credential="h", accepted=n % 2 == 1) for n in range(120, 180)]
    false = [replace(one, user="h") if name == "user" else one for one in false]
    assert draw([*honest, *false], "7", sampler, GROUPS, REWARD).reason.startswith("the acceptance fitted on 180")
    found = draw([*honest, *false], "7", sampler, GROUPS, REWARD, {"user": 0.05, name: 0.05})
    rewards = [one.sample.reward for one in found.actions if one.place.startswith("r") and one.kind == "drawn"]
    assert not found.reason and rewards[::2] == [pytest.approx(rewards[0], abs=0.1)] * len(rewards[::2])
    assert min(rewards[::2]) > 0 > max(rewards[1::2]), "right beginnings pay, wrong texts cost"
    few = {"user": 0.001}
    assert draw(honest, "7", sampler, GROUPS, REWARD, few) == draw(honest, "7", sampler, GROUPS, REWARD), "nobody has most"


def test_a_share_that_too_few_judge_for_is_two_of_them_and_lifts_no_other() -> None:
    judges = [{"user": f"u{max(number - 70, 0)}", "project": "p"} for number in range(100)]  # one of 30 has 71 of 100 verdicts
    for share, cap in ((0.05, 0.05), (0.001, 2 / 30)):
        weights = np.array(capped(judges, {"user": share, "project": 0.5}))
        assert weights[:71].sum() == pytest.approx(cap * weights.sum()), "the only project has all"
        assert weights[71:].tolist() == [1.0] * 29


@pytest.mark.parametrize("shared", [False, True])
def test_where_the_shares_cannot_hold_together_each_judge_keeps_within_their_share(shared: bool) -> None:
    """21 judge in one project, one of them with two thirds of all verdicts, and 3 in another, too few for half of the weight."""
    users = [f"u{number % 24}" for number in range(150)] + ["u0"] * 300
    projects = {f"u{number}": "a" if number < 21 else "b" for number in range(24)}
    judges = [{"user": user, "credential": projects[user] if shared else user, "project": projects[user]} for user in users]
    weights = np.array(capped(judges, {"user": 0.05, "credential": 0.5 if shared else 0.05, "project": 0.5}))
    assert weights.tolist() == capped(judges, {"user": 0.05}) and weights.min() > 0
    assert weights[np.array(users) == "u0"].sum() == pytest.approx(0.05 * weights.sum())


def test_a_verdict_on_the_rest_of_a_line_is_compared_with_the_rest_of_the_settled_text() -> None:
    rest = [replace(p, shown=p.shown[8:], typed=8) if p.accepted else p for p in places()]
    alone = [replace(p, settled=p.settled[p.typed :], typed=0) for p in rest]
    assert draw(rest, "1", sampler, GROUPS, REWARD).error == fitted(alone).error != fitted(rest).error


def test_of_places_that_are_not_drawn_at_only_the_verdicts_texts_are_held() -> None:
    held: list[weakref.ref[SettledPlace]] = []
    most = 0

    def read() -> Iterator[SettledPlace]:
        nonlocal most
        for number in range(300):
            one = place(number, number % 3 == 0)
            held.append(weakref.ref(one))
            yield one
            del one
            most = max(most, sum(each() is not None for each in held))

    found = draw(read(), "1", sampler, GROUPS, REWARD)
    assert found == draw(places(300), "1", sampler, GROUPS, REWARD) and len(found.actions) == 20 * 3
    assert most <= GROUPS.places + 2


def test_a_group_has_a_row_for_each_text_and_one_for_silence() -> None:
    drawn = draw(places(), "7", sampler, GROUPS, REWARD)
    assert len(drawn.actions) == 3 * GROUPS.places and drawn.error and not drawn.reason
    silence, right, wrong = drawn.actions[:3]
    assert [one.kind for one in drawn.actions[:3]] == ["silence", "drawn", "drawn"]
    assert (silence.share, right.share, wrong.share) == (0.25, 0.25, 0.5), "the draw of silence is its row's"
    assert (silence.sample.token_ids, silence.sample.temperature, silence.sample.reward) == ((END,), 0.8, SILENCE)
    assert right.sample.reward > silence.sample.reward > wrong.sample.reward
    for one in drawn.actions:
        assert (one.sample.outcome, one.sample.policy_version) == ("judged", "7")
        assert one.sample.completion_id.startswith(f"{one.place}/") and max(one.sample.logprobs) <= 0
    without = draw(places(), "7", sampler, GROUPS, REWARD.model_copy(update={"silence": False}))
    assert [(one.kind, one.share, one.action.blank) for one in without.actions[:3]] == [
        ("drawn", 0.25, False), ("drawn", 0.5, False), ("drawn", 0.25, True)
    ]  # fmt: skip


def test_at_temperature_1_silence_has_its_probability_in_place_of_its_draws() -> None:
    silence, right, wrong = draw(places(), "7", sampler, AT_ONE, REWARD).actions[:3]
    assert (silence.share, right.share, wrong.share) == (pytest.approx(0.1), 0.25, 0.5)
    assert (silence.sample.token_ids, silence.sample.temperature, silence.sample.reward) == ((END,), 1.0, SILENCE)
    assert silence.sample.logprobs == pytest.approx([math.log(0.1)])


@pytest.mark.parametrize("temperature", [0.5, 0.8, 2.0])
def test_at_another_temperature_the_shares_of_a_place_are_those_of_its_draws(temperature: float) -> None:
    """The end token and one other are drawn, of logits log 0.4 and log 0.6: the temperature changes how often."""
    size, scores = 1000, [one / temperature for one in (math.log(0.4), math.log(0.6))]
    chance = math.exp(scores[0]) / sum(map(math.exp, scores))
    quiet = round(size * chance)
    end = SampledCompletion((1,), (END,), (math.log(chance),), "")
    text = SampledCompletion((1,), (5,), (math.log(1 - chance),), "x")
    group = DrawnGroup((1,), (end,) * quiet + (text,) * (size - quiet), END, math.log(0.4))
    settings = Groups(places=1, size=size, temperature=temperature)
    silence, drawn = actions_of(place(1, True), group, fitted(places()), REWARD, "7", settings)
    assert silence.share == pytest.approx(chance, abs=0.001) and silence.share + drawn.share == pytest.approx(1)
    assert {one.sample.temperature for one in (silence, drawn)} == {temperature}
    assert silence.sample.logprobs == pytest.approx([math.log(chance)]), "what the trainer's ratio is taken from"
    (alone,) = actions_of(place(1, True), replace(group, completions=(text,) * size), fitted(places()), REWARD, "7", settings)
    assert alone.kind == "drawn", "silence that nothing drew is a member of the baseline alone"


@pytest.mark.parametrize(("of_token", "of_silence"), [(math.nan, -1.0), (-math.inf, -1.0), (-0.5, math.nan)])
def test_a_log_probability_that_no_update_can_use_is_refused_before_the_seal(of_token: float, of_silence: float) -> None:
    odd = SampledCompletion((1, 2, 3), (5, 6), (-0.5, of_token), "total")

    def broken(asked: Sequence[SettledPlace]) -> list[DrawnGroup]:
        return [DrawnGroup((1, 2, 3), (completion("other()"), odd), END, of_silence) for _ in asked]

    with pytest.raises(ValueError, match=r"place r\d+: a log-probability of version 7 = -?(nan|inf), expected a finite"):
        draw(places(), "7", broken, GROUPS, REWARD)


def test_a_place_at_which_silence_is_impossible_has_no_row_of_it_that_teaches() -> None:
    drawn = draw(places(), "7", lambda asked: [replace(one, silence=-math.inf) for one in sampler(asked)], AT_ONE, REWARD)
    found = decide([], [one.action for one in drawn.actions], {"r0"}, REWARD, ("written", "drawn"))
    assert {one.kind for one, advantage in zip(drawn.actions, found, strict=True) if advantage} == {"drawn"}


def test_the_places_do_not_depend_on_their_order_and_end_where_a_line_ends() -> None:
    some = places()
    chosen = {one.sample.completion_id for one in draw(some, "7", sampler, GROUPS, REWARD).actions}
    assert {one.sample.completion_id for one in draw(some[::-1], "7", sampler, GROUPS, REWARD).actions} == chosen
    unfinished = [replace(p, settled="total = val") for p in some]
    assert draw(unfinished, "7", sampler, GROUPS, REWARD).reason == "no settled text reaches the end of its line"


def test_without_accepts_there_is_nothing_to_score_by() -> None:
    rejected = [replace(p, accepted=False) for p in places()]
    reason = "0 of 200 judged completions with a settled text are accepted, expected 30 or more of either"
    assert draw(rejected, "7", sampler, GROUPS, REWARD) == SampledGroups(reason=reason)


LINE = "total = value + 7"
FLATTERING = ("t", "tot", "total total total", f"{LINE} {LINE}", f"{LINE}  # total = value", "# total", "+ 7")


def test_texts_that_flatter_the_fitted_acceptance_gain_nothing() -> None:
    """Even where each counts as surely accepted: single characters, repeats, comments, and the line with more behind it."""
    line = SETTLED.format(7)
    certain = replace(fitted(places()), bias=1000.0)
    rewards = rewards_of(FLATTERING, line, certain, REWARD)
    written = rewards_of([LINE], line, certain, REWARD)
    assert written == [pytest.approx(REWARD.accepted)] and max(rewards) < REWARD.accepted
    texts = [completion(text) for text in (*FLATTERING, LINE)]
    group = DrawnGroup((1, 2, 3), tuple(texts), END, math.log(0.1))
    own = replace(place(7, True), id="own")
    settings = Groups(places=300, size=len(texts))
    judged = places()

    def flattered(asked: Sequence[SettledPlace]) -> list[DrawnGroup]:
        return [group] * len(asked)

    found = [one for one in draw([*judged, own], "7", flattered, settings, REWARD).actions if one.place == "own"]
    advantages = decide([], [one.action for one in found], {"own"}, REWARD, ("written", "drawn"))
    relative = {one.sample.completion_id: a / one.share for one, a in zip(found, advantages, strict=True)}
    best = relative.pop(found[-1].sample.completion_id)
    assert best == max(*relative.values(), best) > 0, "the written text"
    by_length = [relative[one.sample.completion_id] for one in found[1:3]]
    assert max(by_length) < 0, "single characters"


@pytest.mark.parametrize("settings", [{"actions": ("drawn",)}, {"actions": ("served",), "surrogate_weight": 0.0}])
def test_settings_by_which_nothing_could_teach_are_refused(settings) -> None:
    with pytest.raises(ValueError, match=r'actions = .*, expected "written" among them with surrogate_weight = [01] and'):
        Train(**settings)
    assert Train(actions=("drawn",), groups=GROUPS).draws and Train(actions=("served",))


@pytest.mark.parametrize("changes", [{"surrogate_weight": 0.0}])
def test_groups_without_a_surrogate_are_refused(changes) -> None:
    with pytest.raises(ValueError, match=r"groups\.places = 20, expected 0 with surrogate_weight = 0"):
        Train(groups=GROUPS, **changes)
    assert not Train(groups=GROUPS, actions=("written",), **changes).draws and Train(groups=GROUPS).draws
