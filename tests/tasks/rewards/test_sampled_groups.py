"""Groups that a cycle draws at places whose settled text is known."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from infra.settings.schema import Groups, Reward, Train
from tasks.evaluation.models.base import SampledCompletion
from tasks.rewards.acceptance import fit
from tasks.rewards.reward import NOTHING
from tasks.rewards.sampled_groups import SampledGroups, SettledPlace, draw

REWARD = Reward(accepted=0.75, rejected=-0.05)
GROUPS = Groups(places=20, size=4, temperature=0.8)
SETTLED = "total = value + {0}\nreturn total\n"


def place(number: int, right: bool, users: int = 10) -> SettledPlace:
    """A place whose completion was accepted if it was right."""
    settled = SETTLED.format(number)
    shown = settled.split("\n")[0] if right else "print(nothing)"
    who = {"project": "p", "user": f"u{number % users}", "credential": "c"}
    return SettledPlace(
        f"r{number}", **who, prefix="    ", suffix="\n", settled=settled, whole=False, shown=shown, accepted=right
    )


def places(count: int = 200, users: int = 10) -> list[SettledPlace]:
    return [place(number, number % 3 == 0, users) for number in range(count)]


def sampler(contexts: Sequence[tuple[str, str]]) -> list[SampledCompletion]:
    """Every fourth completion begins rightly, every eighth is blank."""
    texts = ["total = value" if n % 4 == 0 else "" if n % 8 == 1 else f"other_{n}()" for n in range(len(contexts))]
    return [SampledCompletion((1, 2, 3), (4, 5), (-0.5, 1e-9), text) for text in texts]


def test_the_chance_follows_what_developers_took() -> None:
    judged = places()
    model = fit([(p.shown, p.settled) for p in judged], [bool(p.accepted) for p in judged])
    assert model and model.labels == 200
    line = SETTLED.format(7)
    whole, begun, wrong, blank = model.chances([(text, line) for text in ("total = value + 7", "total = val", "print(x)", " ")])
    assert whole > 0.9 > 0.5 > wrong > blank == 0.0
    assert whole > begun > wrong


def test_a_group_compares_completions_of_one_place_and_is_seen_by_nobody() -> None:
    drawn = draw(places(), "7", sampler, GROUPS, REWARD, {})
    by_place: dict[str, list[float]] = {}
    for sample in drawn.samples:
        by_place.setdefault(sample.completion_id.split("/")[0], []).append(sample.advantage)
        assert (sample.outcome, sample.policy_version, sample.temperature) == ("judged", "7", 0.8)
        assert sample.logprobs == (-0.5, 0.0) and sample.accepted_characters == 0
    assert len(by_place) == GROUPS.places
    assert all(sum(group) == pytest.approx(0, abs=1e-9) and len(group) == 4 for group in by_place.values())
    right = [s.advantage for s in drawn.samples if s.completion_id.endswith("drawn-1")]
    assert min(right) > 1.5
    blank = {s.reward for s in drawn.samples if not s.shown_characters}
    assert blank == {NOTHING}


def test_the_places_do_not_depend_on_their_order_and_end_where_a_line_ends() -> None:
    some = places()
    chosen = {s.completion_id for s in draw(some, "7", sampler, GROUPS, REWARD, {}).samples}
    assert {s.completion_id for s in draw(some[::-1], "7", sampler, GROUPS, REWARD, {}).samples} == chosen
    unfinished = [replace(p, settled="total = val") for p in some]
    assert draw(unfinished, "7", sampler, GROUPS, REWARD, {}) == SampledGroups()


def test_no_user_has_more_than_their_share_of_the_groups() -> None:
    busy = [replace(p, user="busy") if n % 2 else p for n, p in enumerate(places())]
    shares = {"user": 0.2}
    weight: dict[str, float] = {}
    for sample in draw(busy, "7", sampler, replace_places(100), REWARD, shares).samples:
        weight[sample.user] = weight.get(sample.user, 0.0) + abs(sample.advantage)
    assert weight["busy"] <= 0.2 * sum(weight.values()) + 1e-9
    alone = draw(places(users=1), "7", sampler, GROUPS, REWARD, shares)
    assert not alone.samples and "1 users for 5 or more" in alone.reason


def replace_places(count: int) -> Groups:
    return GROUPS.model_copy(update={"places": count})


def test_without_accepts_there_is_nothing_to_score_by() -> None:
    rejected = [replace(p, accepted=False) for p in places()]
    assert draw(rejected, "7", sampler, GROUPS, REWARD, {}).reason.startswith("200 judged completions")


def test_groups_without_a_surrogate_are_refused() -> None:
    with pytest.raises(ValueError, match=r"groups\.places = 20, expected 0 with surrogate_weight = 0"):
        Train(groups=GROUPS, surrogate_weight=0.0)
