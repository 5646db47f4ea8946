"""The arm and version that serve a user, and which completions count in an experiment."""

import time
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from infra.identity import user_hash
from infra.records import Arm, Stage
from infra.settings.schema import Sampling
from tests.serving.fakes import House, experiment
from tests.serving.helpers import ADMINISTRATOR, run_experiment

TERMS: dict[str, Any] = {
    "terms": {},
    "projects": {
        "open": {"experiments": True},
        "quiet": {"experiments": True, "logged": False},
        "slow": {"version": "1"},
        "gone": {"version": "7"},
    },
}


async def test_an_experiment_assigns_each_user_one_arm_and_is_recorded(house: House) -> None:
    await run_experiment(house)
    for user in range(40):
        for _ in range(2):
            await house.complete(headers={"X-User-ID": f"user{user}"})
    arms: dict[str, set[tuple[str, str, str]]] = {}
    for row in house.rows("completions"):
        arms.setdefault(row.user, set()).add((row.arm, row.policy_version, row.experiment))
    assert len(arms) == 40 and all(len(served) == 1 for served in arms.values())
    challengers = sum(served == {("challenger", "2", "e1")} for served in arms.values())
    assert 8 <= challengers <= 32
    assert sum(served == {("champion", "1", "e1")} for served in arms.values()) == 40 - challengers
    assert not any("user" in user for user in arms)


async def test_an_experiment_counts_only_while_both_arms_serve(house: House) -> None:
    await run_experiment(house)
    house.engines[house.number("challenger")].up = False
    await house.follow()
    for user in range(20):
        assert (await house.complete(headers={"X-User-ID": f"user{user}"})).status_code == 200
    assert {(r.arm, r.experiment, r.policy_version) for r in house.rows("completions")} == {("champion", "", "1")}


async def test_pins_need_an_administrator_and_count_in_no_experiment(house: House) -> None:
    await run_experiment(house)
    for pin, version in (
        ({"X-Tabloop-Arm": "challenger"}, "2"),
        ({"X-Tabloop-Arm": "champion"}, "1"),
        ({"X-Tabloop-Version": "2"}, "2"),
    ):
        assert (await house.complete(headers=pin)).status_code == 403
        response = await house.complete(headers={**pin, **ADMINISTRATOR})
        assert (response.status_code, response.headers["x-tabloop-version"]) == (200, version)
        row = house.rows("completions")[-1]
        assert (row.policy_version, row.pinned, row.experiment) == (version, True, "")
        assert row.arm == ("challenger" if version == "2" else "champion")
    unknown_version = await house.complete(headers={"X-Tabloop-Version": "9", **ADMINISTRATOR})
    assert unknown_version.status_code == 409 and "version 9" in unknown_version.json()["error"]["message"]
    assert (await house.complete(headers={"X-Tabloop-Arm": "loser", **ADMINISTRATOR})).status_code == 400


async def test_a_pinned_request_may_name_its_temperature_and_no_other(house: House) -> None:
    await run_experiment(house)
    warm = {"X-Tabloop-Version": "1", "X-Tabloop-Temperature": "0.35"}
    assert (await house.complete(headers=warm)).status_code == 403
    assert (await house.complete(headers={**warm, **ADMINISTRATOR})).status_code == 200
    row = house.rows("completions")[-1]
    assert (row.temperature, row.pinned, row.experiment) == (0.35, True, "")
    assert house.engines[house.number("champion")].requests[-1].temperature == 0.35
    for wrong in ("0", "2.1", "nan", "warm"):
        refused = await house.complete(headers={**warm, "X-Tabloop-Temperature": wrong, **ADMINISTRATOR})
        assert refused.status_code == 400 and f"at most 2, got '{wrong}'" in refused.json()["error"]["message"]
    for _ in range(2):  # also while no engine is up
        alone = await house.complete(headers={"X-Tabloop-Temperature": "0.5", **ADMINISTRATOR})
        assert alone.status_code == 400 and "expected X-Tabloop-Version or X-Tabloop-Arm" in alone.json()["error"]["message"]
        for slot in house.arms.slots:
            slot.verified = (None, None)


async def test_a_user_whom_the_settings_pin_names_no_temperature(tmp_path: Path, tokenizer: Tokenizer) -> None:
    settings = {"users": {user_hash(b"salt", "ada"): {"version": "0"}}}
    async with House(tmp_path, tokenizer, settings=settings) as house:
        assert (await house.complete()).status_code == 200 and house.rows("completions")[0].pinned
        assert (await house.complete(headers={"X-Tabloop-Temperature": "0.5"})).status_code == 400


async def test_each_arm_has_its_own_sampling_settings(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, challenger=Sampling(temperature=0.3, max_tokens=2)) as house:
        await run_experiment(house)
        cases: tuple[tuple[Arm, tuple[float, int]], ...] = (("champion", (0.8, 24)), ("challenger", (0.3, 2)))
        for arm, sampling in cases:
            await house.complete(headers={"X-Tabloop-Arm": arm, **ADMINISTRATOR})
            row = house.rows("completions")[-1]
            assert (row.arm, row.temperature, row.max_tokens) == (arm, *sampling)
            engine_request = house.engines[house.number(arm)].requests[-1]
            assert (engine_request.temperature, engine_request.max_tokens) == sampling


async def test_the_terms_of_each_project_are_applied(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings=TERMS) as house:
        await run_experiment(house)
        served: dict[str, set[tuple[str, str, bool, bool]]] = {}
        for project in ("open", "other", "quiet", "slow", "gone"):
            for user in range(12):
                response = await house.complete(headers={"X-Project-ID": project, "X-User-ID": f"user{user}"})
                assert response.json()["choices"][0]["text"]
        for row in house.rows("completions"):
            served.setdefault(row.project, set()).add((row.policy_version, row.experiment, row.pinned, row.opted_out))
            assert (row.prefix == "") == row.opted_out
        assert served == {
            "open": {("1", "e1", False, False), ("2", "e1", False, False)},
            "other": {("1", "", False, False)},
            "quiet": {("1", "e1", False, True), ("2", "e1", False, True)},
            "slow": {("1", "", True, False)},
            "gone": {("1", "", False, False)},
        }


async def test_logging_and_experiments_need_the_terms_of_project_and_user(tmp_path: Path, tokenizer: Tokenizer) -> None:
    users = {"pinned": {"version": "1"}, "silent": {"logged": False}, "calm": {"experiments": False}, "free": {}}
    settings = {**TERMS, "users": {user_hash(b"salt", name): terms for name, terms in users.items()}}
    async with House(tmp_path, tokenizer, settings=settings) as house:
        await run_experiment(house)
        for project in ("open", "quiet", "other"):
            for user in users:
                await house.complete(headers={"X-Project-ID": project, "X-User-ID": user})
        rows = iter(house.rows("completions"))
        served = {(p, u): next(rows) for p in ("open", "quiet", "other") for u in users}
        for (project, user), row in served.items():
            assert row.opted_out == (project == "quiet" or user == "silent"), (project, user)
            assert row.pinned == (user == "pinned"), (project, user)
            assert bool(row.experiment) == (project != "other" and user in ("silent", "free")), (project, user)
        body = {"completion_id": "c", "outcome": "accepted", "shown": "x"}
        await house.send_feedback("/v1/feedback", body, {"X-Project-ID": "open", "X-User-ID": "silent"})
        assert house.rows("feedback")[0].shown == ""


async def test_a_request_that_another_version_answers_names_the_experiment_that_assigned_it(house: House) -> None:
    await run_experiment(house)
    house.engines[house.number("challenger")].up = False  # and the follower has not noticed
    users = [f"user{number}" for number in range(12)]
    for user in users:
        assert (await house.complete(headers={"X-User-ID": user})).status_code == 200
    rows = house.rows("completions")
    fallbacks = [row for row in rows if not row.experiment]
    assert fallbacks and {(row.arm, row.policy_version) for row in fallbacks} == {("champion", "1")}
    assert rows[0].assigned == "e1" and {row.assigned for row in fallbacks} <= {"e1", ""}
    assert any(row.assigned == "e1" for row in fallbacks)


async def test_a_version_that_is_down_loses_the_requests_that_were_assigned_to_it(house: House) -> None:
    await run_experiment(house)
    assert (await house.complete(headers={"X-User-ID": "first"})).status_code == 200, "both arms have served"
    house.engines[house.number("challenger")].up = False
    await house.follow()
    for user in range(20):
        assert (await house.complete(headers={"X-User-ID": f"user{user}"})).status_code == 200
    rows = house.rows("completions")[1:]
    assert {row.policy_version for row in rows} == {"1"} and {row.assigned for row in rows} == {"e1"}
    assert {(row.assigned_arm, row.experiment) for row in rows} == {("champion", "e1"), ("challenger", "")}


async def test_a_stage_divides_users_by_its_share_from_its_start_on(house: House) -> None:
    await run_experiment(house)
    now, running = time.time(), experiment()
    stages = [Stage(name="ramp", share=0.0, started=1.0), Stage(name="test", share=1.0, started=now + 100)]
    house.registry.experiment = running.model_copy(update={"stages": tuple(stages)})
    await house.follow()
    assert {house.arms.route(f"user{i}", now)[0].arm for i in range(20)} == {"champion"}
    assert {house.arms.route(f"user{i}", now + 100)[0].arm for i in range(20)} == {"challenger"}


async def test_a_promoted_version_has_a_holdout_until_its_watch_ends(house: House) -> None:
    await run_experiment(house)
    now = time.time()
    watch = Stage(name="watch", share=0.5, started=now, ends=now + 100)
    house.registry.aliases, house.registry.experiment = {"champion": "2"}, None
    house.registry.watch = experiment().model_copy(update={"stages": (watch,)})
    for _ in range(2):  # an engine that lost the holdout gets it again
        await house.follow()
        routes = [house.arms.route(f"user{i}", now + 1)[0] for i in range(40)]
        assert {(r.version, r.arm, r.experiment) for r in routes} == {("2", "challenger", "e1"), ("1", "champion", "e1")}
        assert {r.sampled_as for r in routes} == {"champion"}, "as the champion is sampled, whatever the challenger was"
        after = [house.arms.route(f"user{i}", now + 100)[0] for i in range(40)]
        assert {(r.version, r.experiment) for r in after} == {("2", "")}
        house.engines[1 - house.number("champion")].version = "0"
        house.engines[1 - house.number("champion")].pid = 2
    assert house.engines[1 - house.number("champion")].swaps[-1] == "1"


async def test_the_anchor_serves_its_share_while_no_test_runs_and_a_test_takes_its_slot(house: House) -> None:
    await run_experiment(house)
    house.add_version("0")
    test, now = house.registry.experiment, time.time()
    stage = Stage(name="anchor", share=0.5, started=now - 1)
    house.registry.anchor = experiment().model_copy(
        update={"id": "anchor-1", "stages": (stage,), "champion": "0", "challenger": "1"}
    )
    house.registry.aliases, house.registry.experiment = {"champion": "1"}, None

    async def followed() -> set[tuple[str, str, str, str]]:
        for _ in range(2):
            await house.follow()
        routes = [house.arms.route(f"user{i}", now)[0] for i in range(40)]
        return {(route.version, route.arm, route.experiment, route.sampled_as) for route in routes}

    anchored = {("1", "challenger", "anchor-1", "champion"), ("0", "champion", "anchor-1", "champion")}
    assert await followed() == anchored
    house.registry.aliases, house.registry.experiment = {"champion": "1", "challenger": "2"}, test
    assert {(version, of) for version, _, of, _ in await followed()} == {("1", "e1"), ("2", "e1")}
    house.registry.aliases, house.registry.experiment = {"champion": "1"}, None
    assert await followed() == anchored, "the comparison goes on"
    house.registry.aliases = {"champion": "0"}
    assert {(version, of) for version, _, of, _ in await followed()} == {("0", "")}, "it is of another champion"
