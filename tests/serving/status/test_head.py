"""The head of the status page: who serves and how well, what runs, and what somebody has to look after."""

import re
import time

import pytest

from infra.records import Change, CycleOutcome, CycleProgress, Decision, LoopRun, Move, Stage
from infra.records.few import Few
from infra.storage import cycle_progress, few, loop_runs, moves
from serving.status.head import engines
from tests.serving.fakes import ADMIN, House, experiment
from tests.serving.helpers import ADMINISTRATOR
from tests.serving.status.shown import add_cycles, manifest, run_watched_test, verdict
from tests.serving.status.test_routes import _put, basic_auth


async def lines(house: House) -> dict[str, tuple[str, bool]]:
    """Return the text of each line of the head, and whether all is well."""
    house.clock += 10
    page = (await house.client.get(house.urls[0] + "/", headers=basic_auth(ADMIN))).text
    found = re.findall(r"<div( class=\"bad\")?><dt>(.*?)</dt><dd>(.*?)</dd>", page)
    assert found, page[:2000]
    return {name: (text, not bad) for bad, name, text in found}


async def serve(house: House, champion: str) -> None:
    for version in ("1", "2"):
        house.add_version(version)
    house.registry.tags = {"1": {}, "2": {"cycle": "cycle-000009"}}
    house.registry.aliases = {"champion": champion}
    await house.follow()


def add_promotion(house: House, now: float, by: str = "gate") -> None:
    """Version 2 won its test against version 1, the base, and became champion two hours ago."""
    test = "cycle-000009-version-2"
    _put(house, "cycles/cycle-000009/manifest.json", manifest("cycle-000009"))
    outcome = CycleOutcome(cycle="cycle-000009", result="registered", reason="", version="2", experiment=test)
    _put(house, "cycles/cycle-000009/outcome.json", outcome)
    won = verdict(1400).model_copy(update={"verdict": "promote", "estimate": 0.02, "low": 0.005, "high": 0.035})
    record = experiment().model_copy(update={"id": test})
    if by == "gate":
        _put(house, f"decisions/{test}.json", Decision(experiment=record, verdict=won, decided=now - 7200, by="gate"))
    change = Change(version="2", before="challenger", after="champion")
    _put(house, moves.key(1), Move(number=1, kind="promote", changes=(change,), by=by, reason="better", time=now - 7200))


async def test_the_champion_its_acceptance_and_its_gain_stand_first(house: House) -> None:
    now = time.time()
    await serve(house, "2")
    add_promotion(house, now)
    add_cycles(house, now - 60)
    found = await lines(house)
    assert found["champion"][0].startswith("version 2, since ") and "2 h ago: promote, by gate" in found["champion"][0]
    assert found["acceptance now"][0].startswith("24.0 % [22.0, 26.0] of 900 requests, window of cycle-000003, ")
    assert found["gain over the base"][0] == "+2.00 [+0.50, +3.50] points, its test"
    assert found["A/B test"] == ("none runs", True)


async def test_what_all_champions_since_the_anchor_had_is_not_the_newest_ones_acceptance(house: House) -> None:
    now = time.time()
    await serve(house, "2")
    add_promotion(house, now)
    add_cycles(house, now - 60)
    stage = Stage(name="anchor", share=0.8, started=now - 50)
    beside = experiment().model_copy(update={"id": "anchor-1", "stages": (stage,)})
    house.registry.decision = Decision(experiment=beside, verdict=verdict(1400), decided=now, by="gate")
    assert "of 900 requests, window of cycle-000003" in (await lines(house))["acceptance now"][0]


async def test_a_gain_that_no_test_measured_is_not_claimed(house: House) -> None:
    now = time.time()
    await serve(house, "2")
    add_promotion(house, now, by="ada")
    add_cycles(house, now - 60)
    assert (await lines(house))["gain over the base"][0] == "not measured by tests alone"


async def test_the_running_test_has_its_planned_end(house: House) -> None:
    await run_watched_test(house, time.time())
    found = await lines(house)
    assert found["A/B test"][0].startswith("version 2 against 1: 1400 of 2000 requests an arm; planned end ")
    assert found["A/B test"][0].endswith("by requests, in 51 min")
    assert found["acceptance now"][0].startswith("24.0 % [21.0, 27.0] of 1400 requests, A/B test, ")


async def test_a_test_whose_challenger_is_down_runs_on_the_page_too(house: House) -> None:
    """The gate goes on, and counts what the challenger does not answer as its failures."""
    await run_watched_test(house, time.time())
    assert house.arms.challenger is not None
    house.engines[house.arms.challenger].up = False
    await house.follow()
    text, well = (await lines(house))["A/B test"]
    assert text.startswith("version 2 against 1: 1400 of 2000 requests an arm") and text.endswith("; no slot serves version 2")
    assert not well


async def test_a_watch_that_does_not_run_stands_first_within_a_minute(house: House) -> None:
    now = time.time()
    await serve(house, "1")
    run = LoopRun(
        flow="experiment",
        began=now - 25,
        ended=now - 20,
        state="Undecided",
        schedules={"cycle": False, "experiment": True},
        prefect_seconds=0.05,
    )
    loop_runs.write(house.store, run)
    found = await lines(house)
    assert found["watch"][1] and "Undecided" in found["watch"][0] and "cycle" in found["schedules"][0]
    assert found["prefect"][1] and found["prefect"][0].startswith("answered in 0.05 s, ")
    house.store.objects[loop_runs.key("experiment")] = run.model_copy(update={"ended": now - 61}).model_dump_json().encode()
    found = await lines(house)
    assert not found["watch"][1] and list(found)[:2] == ["watch", "prefect"]
    prefect, well = found["prefect"]
    assert re.fullmatch("has started no watch for [0-9]+ s: `tabloop status` asks it", prefect) and not well
    metrics = (await house.client.get(house.urls[0] + "/metrics", headers=ADMINISTRATOR)).text
    for sign in ("watch", "cycle", "prefect"):
        assert f'tabloop_loop_ok{{project="",sign="{sign}"}} {float(found[sign][1])}' in metrics, "as the page says"


async def test_a_running_cycle_has_its_stage_with_the_trainers_steps(house: House) -> None:
    now = time.time()
    await serve(house, "1")
    loop_runs.write(house.store, LoopRun(flow="cycle", began=now - 100, run="r"))
    stage = CycleProgress(run="r", stage="train", started=now - 60, seen=now, done=139, of=556)
    house.store.put_json(cycle_progress.KEY, stage)
    assert "train, 139 of 556, 3 min left" in (await lines(house))["cycle"][0]
    done = LoopRun(flow="cycle", began=now - 100, ended=now - 5, run="r", state="TooFewNewSamples", message="3 of 9 are new")
    house.store.objects[loop_runs.key("cycle")] = done.model_dump_json().encode()
    cycle, well = (await lines(house))["cycle"]
    assert "TooFewNewSamples: 3 of 9 are new" in cycle and "train" not in cycle and well


@pytest.mark.parametrize(("up", "well"), [((True, True), True), ((True, False), True), ((False, True), False)])
def test_the_engine_of_the_champion_must_be_up(up: tuple[bool, bool], well: bool) -> None:
    roles = ("champion", "challenger")
    states = [f"version {slot + 1}" if up[slot] else "down" for slot in (0, 1)]
    slots = [
        {"slot": slot, "role": roles[slot], "version": str(slot + 1), "state": states[slot], "up": up[slot]} for slot in (0, 1)
    ]
    sign = engines(slots)
    assert sign.ok is well and sign.text.startswith(f"{sum(up)} of 2 up: slot 0: champion, version 1")
    assert sign.text.count("version 1") == sign.text.count("version 2") == 1


@pytest.mark.parametrize(("possible", "when"), [(1_900_000_000.0, "possible on 2030-03-17"), (None, "never")])
async def test_what_the_traffic_is_too_little_for_stands_with_the_date_and_what_to_change(
    house: House, possible: float | None, when: str
) -> None:
    await serve(house, "1")
    assert "traffic" not in await lines(house)
    change = "Set collect.min_samples"
    found = Few(what="cycle", time=time.time(), reason="700 samples of 2,048", possible=possible, change=change)
    few.write(house.store, found)
    text, well = (await lines(house))["traffic"]
    assert text == f"too little for a cycle: 700 samples of 2,048: {when} at this rate. {change}"
    assert well is (possible is not None)


async def test_a_cycle_that_began_since_was_not_too_little(house: House) -> None:
    now = time.time()
    await serve(house, "2")
    found = Few(what="cycle", time=now - 60, reason="700 samples of 2,048", possible=None, change="")
    few.write(house.store, found)
    assert not (await lines(house))["traffic"][1]
    _put(house, "cycles/cycle-000009/manifest.json", manifest("cycle-000009").model_copy(update={"until": now}))
    assert "traffic" not in await lines(house)
