"""An opt-out of a request reaches all its later events, by whichever identifier."""

import resource
from pathlib import Path
from typing import Any

import pytest

from serving.recording.opt_outs import OptOuts
from tests.serving.fakes import House
from tests.tasks.made import feedback

PROMPT = "def secret_of_sheila(x):\n    value = compute_something(x)\n    "
OPT_OUT = {"X-Tabloop-Opt-Out": "1"}
NATIVE, CONTINUE = "/v1/feedback", "/v1/continue/events"


def event(**data: Any) -> dict[str, Any]:
    return {"name": "autocomplete", "data": {"completionId": "editor-id-of-a-completion", "accepted": True, **data}}


async def opted_out(house: House) -> str:
    """Request a completion with the header; return its id."""
    answer = await house.complete(headers=OPT_OUT, prompt=PROMPT, suffix="\nprint(1)\n")
    return answer.json()["id"]


def no_text(house: House) -> bool:
    spooled = "".join(file.read_text() for file in (house.directory / "spool").rglob("*.jsonl"))
    return "sheila" not in spooled and "compute" not in spooled and bool(spooled)


async def test_by_the_completion_id(house: House) -> None:
    await house.send_feedback(NATIVE, {"completion_id": await opted_out(house), "outcome": "accepted", "shown": "compute()"})
    assert no_text(house)


@pytest.mark.parametrize("typed", ["", "ret"])
async def test_by_the_place_also_where_the_developer_typed_on(house: House, typed: str) -> None:
    await opted_out(house)
    prompt = f"<|fim_prefix|>{PROMPT}{typed}<|fim_suffix|>\nprint(1)\n<|fim_middle|>"
    await house.send_feedback(CONTINUE, event(prompt=prompt, completion="compute()"))
    assert no_text(house)


async def test_by_the_place_in_other_line_ends(house: House) -> None:
    await house.complete(headers=OPT_OUT, prompt=PROMPT.replace("\n", "\r\n"), suffix="\r\nprint(1)\r\n")
    await house.send_feedback(CONTINUE, event(prefix=PROMPT, suffix="\nprint(1)\n", completion="compute()"))
    assert no_text(house)


async def test_by_the_editors_id_of_an_earlier_event(house: House) -> None:
    await opted_out(house)
    await house.send_feedback(CONTINUE, event(prefix=PROMPT, suffix="\nprint(1)\n", completion="compute()", accepted=False))
    await house.send_feedback(CONTINUE, event(prefix="sheila = compute(", suffix=")", completion="compute()"))
    assert no_text(house)


async def test_by_an_event_with_the_header_of_its_own(house: House) -> None:
    await house.send_feedback(CONTINUE, event(prefix="sheila", suffix="", completion="compute()"), headers=OPT_OUT)
    await house.send_feedback(CONTINUE, event(prefix="sheila", suffix="", completion="compute()"))
    assert no_text(house)


async def test_also_if_the_event_names_no_user(house: House) -> None:
    await opted_out(house)
    headers = {"X-User-ID": "somebody-else"}
    await house.send_feedback(CONTINUE, event(prefix=PROMPT, suffix="\nprint(1)\n", completion="compute()"), headers=headers)
    assert no_text(house)


async def test_the_events_of_other_requests_keep_their_text(house: House) -> None:
    await opted_out(house)
    elsewhere = [("other = 1\n", "\nprint(1)\n"), (PROMPT, "\nother\n"), (PROMPT[:-4], "\nprint(1)\n")]
    for number, (prefix, suffix) in enumerate(elsewhere):
        sent = event(completionId=f"another-completion-{number}", prefix=prefix, suffix=suffix, completion="shown()")
        await house.send_feedback(CONTINUE, sent)
    assert [row.shown for row in house.rows("feedback")] == ["shown()"] * 3


def test_a_place_with_little_text_counts_for_its_user_alone(tmp_path: Path) -> None:
    outs = OptOuts(b"key", tmp_path / "opted_out.jsonl")
    outs.add(("p", "u"), "cmpl-1", "", "")
    assert outs.hold(feedback(prefix="x", suffix="\n"), opted_out=False)
    assert not outs.hold(feedback(user="v", prefix="x", suffix="\n"), opted_out=False)


def test_a_place_reached_by_typing_leads_no_further(tmp_path: Path) -> None:
    outs = OptOuts(b"key", tmp_path / "opted_out.jsonl")
    outs.add(("p", "u"), "cmpl-1", "x = ", "\n")
    assert outs.hold(feedback("a", prefix="x = " + "y" * 400), opted_out=False)
    assert not outs.hold(feedback("b", prefix="x = " + "y" * 800), opted_out=False)


def test_a_restarted_app_remembers_and_the_file_holds_no_text(tmp_path: Path) -> None:
    file = tmp_path / "state" / "opted_out.jsonl"
    OptOuts(b"key", file).add(("p", "u"), "cmpl-0123456789abcdef", PROMPT, "\n")
    again = OptOuts(b"key", file)
    assert again.hold(feedback(completion_id="cmpl-0123456789abcdef"), opted_out=False)
    assert again.hold(feedback(prefix=PROMPT + "x", suffix="\n"), opted_out=False)
    assert not OptOuts(b"another key", file).hold(feedback(prefix=PROMPT + "x", suffix="\n"), opted_out=False)
    assert "sheila" not in file.read_text() and "cmpl" not in file.read_text() and file.stat().st_mode & 0o077 == 0


def test_of_many_requests_at_one_place_the_latest_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.recording.opt_outs.MOST", 10)
    outs = OptOuts(b"key", tmp_path / "opted_out.jsonl")
    prompts = [f"{PROMPT}{'x' * number}" for number in range(0, 60_000, 600)]  # nothing behind the cursor, as at a file's end
    for number, prompt in enumerate(prompts):
        outs.add(("p", "u"), f"cmpl-{number:020}", prompt, "")
    held = [outs.hold(feedback(prefix=prompt, suffix=""), opted_out=False) for prompt in prompts]
    assert held == [False] * 90 + [True] * 10


def test_a_broken_line_of_the_file_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "opted_out.jsonl"
    OptOuts(b"key", file).add(("p", "u"), "cmpl-0123456789abcdef", "x", "")
    file.write_text("{half\n" + file.read_text())
    assert OptOuts(b"key", file).hold(feedback(completion_id="cmpl-0123456789abcdef", prefix="q"), opted_out=False)


def test_a_disk_that_is_full_for_a_moment_costs_no_later_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "opted_out.jsonl"
    outs = OptOuts(b"key", file)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        outs.add(("p", "u"), "cmpl-of-a-full-disk-0123", PROMPT, "")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "opt-outs are forgotten at a restart" in caplog.text
    outs.add(("p", "u"), "cmpl-0123456789abcdef", PROMPT, "")
    assert OptOuts(b"key", file).hold(feedback(completion_id="cmpl-0123456789abcdef", prefix="q"), opted_out=False)


@pytest.mark.parametrize(
    ("value", "opted_out"), [("False", False), ("FALSE", False), ("no", False), ("off", False), ("1", True), ("True", True)]
)
async def test_no_is_no_opt_out(house: House, value: str, opted_out: bool) -> None:
    await house.complete(headers={"X-Tabloop-Opt-Out": value})
    assert house.rows("completions")[0].opted_out is opted_out
