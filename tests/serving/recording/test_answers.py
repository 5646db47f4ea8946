"""The past acceptance that serving counts is that of the labels joined from the same events."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infra.model.past_acceptance import LEAST, PRIOR, PastAcceptance
from infra.model.verdicts import STRENGTH
from infra.records import Completion, Feedback, NotTaken
from serving.access import Caller
from serving.recording.answers import Answers
from serving.recording.served import Served
from tests.serving.fakes import TEXT, House
from tests.serving.gateway.test_feedback import continue_event
from tests.serving.gateway.test_showing import NO_AUDIT, SURE, served
from tests.tasks.made import NOW, completion, feedback
from tests.tasks.rows import join

JOIN_SECONDS = 60.0


def history(seed: int) -> tuple[list[Completion], list[Feedback]]:
    """Return completions of two users at different places, and events of them, in any number, as they arrive."""
    draw = random.Random(seed)
    completions: list[Completion] = []
    events: list[Feedback] = []
    for number in range(40):
        user, time = draw.choice("ab"), NOW + number
        special = draw.choice(["", "", "", "", "exploring", "pinned"])
        fields: dict[str, Any] = {"prefix": f"x{number} = ", "suffix": draw.choice(["", "\n", "s"]), "user": user, "time": time}
        fields |= {"client": draw.choice(["continue", "rlinf", "tabby"]), special: True} if special else {}
        text = draw.choice(["foo(bar)", " foo", "f"])
        completions.append(completion(f"c{number}", text=text, **fields))
        for impression in range(draw.choice([0, 0, 1, 1, 1, 2, 3])):
            by_id, typed = draw.random() < 0.5, draw.randrange(2 if len(text) > 1 else 1)
            client_id, sender = draw.choice([f"k{number}-{impression}", ""]), user
            shown = text[typed:].removeprefix(draw.choice(["", " "]))
            own: dict[str, Any] = {"prefix": fields["prefix"] + text[:typed], "suffix": fields["suffix"], "shown": shown}
            if by_id:
                own = {
                    "prefix": "",
                    "suffix": "",
                    "shown": draw.choice(["", "", text[:2], text.strip(), "else"]),
                    "completion_id": f"c{number}",
                }
                sender = draw.choice([user] * 19 + ["eve"])
            for _ in range(draw.choice([1, 1, 2, 3])):
                own |= {"time": time + draw.choice([0.1, 5.0, 30.0, 59.0, 61.0]), "cache_hit": draw.random() < 0.1}
                own |= {"outcome": draw.choice(STRENGTH), "reason": draw.choice(get_args(NotTaken)), "user": sender}
                events += [feedback(f"f{len(events)}-{n}", client_id=client_id, **own) for n in range(draw.choice([1, 1, 3]))]
    return completions, sorted(events, key=lambda event: event.time)


def counted(completions: Sequence[Completion], events: Sequence[Feedback]) -> PastAcceptance:
    """Return the past acceptance after all completions, then all events."""
    remembered, past = Served(), PastAcceptance()
    answers = Answers(remembered, past, JOIN_SECONDS)
    for row in completions:
        remembered.add(Caller(row.project, row.user, "t", row.client, row.opted_out), row.id, row.prefix, row.suffix, row.time)
        answers.ended(remembered.ended(row))
    for event in events:
        answers.add(event)
    return past


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_the_shares_are_those_of_the_labels(seed: int) -> None:
    completions, events = history(seed)
    joined = join(completions, events, JOIN_SECONDS).joined
    labels = [
        (row.completion.user, row.label.outcome in ("accepted", "partially_accepted"))
        for row in joined
        if row.label and not (row.completion.exploring or row.completion.pinned or row.completion.opted_out)
    ]
    past = counted(completions, events)
    of_project = [accepted for _, accepted in labels]
    if len(labels) < LEAST:
        assert past.shares("p", "a") == (None, None)
        return
    share = sum(of_project) / len(of_project)
    for user in "ab":
        own = [accepted for name, accepted in labels if name == user]
        expected = (sum(own) + PRIOR * share) / (len(own) + PRIOR)
        assert past.shares("p", user) == (pytest.approx(expected), pytest.approx(share)), seed


async def test_repeated_events_count_once_on_every_route(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=NO_AUDIT) as house:
        for number in range(12):
            prompt = f"<|fim_prefix|>x{number} = <|fim_suffix|>\n<|fim_middle|>"
            id = (await house.complete(prompt=prompt)).json()["id"]
            accepted = number < 6
            data = {"completionId": f"k{number}", "accepted": accepted, "prompt": prompt, "completion": TEXT}
            url, body = (
                ("/v1/feedback", {"completion_id": id, "outcome": "accepted" if accepted else "rejected"}),
                ("/v1/events", {"completion_id": id, "type": "select" if accepted else "dismiss"}),
                ("/v1/continue/events", continue_event(data)),
                ("/api/training/submit", data),
            )[number % 4]
            for _ in range(3 if accepted else 1):
                assert (await house.send_feedback(url, body)).status_code == 200
        _, row = await served(house, SURE)
        assert row.project_acceptance == 0.5 and row.user_acceptance == 0.5


async def test_a_later_verdict_replaces_the_earlier_and_unjudged_is_no_rejection(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=NO_AUDIT) as house:
        for _ in range(12):
            id = (await house.complete()).json()["id"]
            for body in ({"outcome": "rejected"}, {"outcome": "accepted"}, {"outcome": "rejected"}):
                await house.send_feedback("/v1/feedback", {"completion_id": id, **body})
            other = (await house.complete()).json()["id"]
            for reason in ("typed_through", "replaced", "cancelled"):
                body = {"completion_id": other, "outcome": "rejected", "reason": reason}
                assert (await house.send_feedback("/v1/feedback", body)).status_code == 200
        _, row = await served(house, SURE)
        assert row.project_acceptance == 1.0


async def test_events_of_other_users_do_not_count(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=NO_AUDIT) as house:
        ids = [(await house.complete()).json()["id"] for _ in range(12)]
        for number, id in enumerate(ids):
            await house.send_feedback("/v1/feedback", {"completion_id": id, "outcome": "accepted" if number else "thumbs_down"})
            await house.send_feedback("/v1/feedback", {"completion_id": id, "outcome": "rejected"}, {"X-User-ID": "eve"})
        _, row = await served(house, SURE)
        assert row.project_acceptance == pytest.approx(11 / 12)


PROMPT = "<|fim_prefix|>import os\n\n\ndef f(x):\n    <|fim_suffix|>\n\nprint(1)\n<|fim_middle|>"


async def test_an_event_with_other_line_ends_is_about_its_completion(house: House) -> None:
    house.engines[0].reply = house.tokenizer.encode("a = 1\nb = 2").ids
    for number in range(12):
        prompt = PROMPT.replace("f(x)", f"f{number}(x)")
        await house.complete(prompt=prompt.replace("\n", "\r\n"))
        for id, accepted in ((f"a{number}", False), (f"b{number}", True)):
            data = {"completionId": id, "accepted": accepted, "prompt": prompt, "completion": "a = 1\nb = 2"}
            await house.send_feedback("/v1/continue/events", continue_event(data), {"X-User-ID": "", "X-Project-ID": ""})
    user = house.rows("completions")[0].user
    assert house.recorder.received.of(user)["continue"].matched == 24
    assert house.recorder.acceptance.shares("p1", user) == (1.0, 1.0)


def test_of_one_completion_the_latest_impressions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.recording.answers.MOST", 10)
    remembered, past, row = Served(), PastAcceptance(), completion("c", text="foo(bar)")
    answers = Answers(remembered, past, JOIN_SECONDS)
    remembered.add(Caller(row.project, row.user, "t", row.client, row.opted_out), row.id, row.prefix, row.suffix, row.time)
    answers.ended(remembered.ended(row))
    for number in range(100):  # Tabby names each view of a completion
        named = {"client_id": f"view-{number}", "completion_id": "c", "prefix": "", "suffix": ""}
        answers.add(feedback(f"f{number}", outcome="accepted", **named))
    assert len(answers._completions["c"].impressions) == 10
    assert answers.of("c") == "accepted"
