"""The page for a person, and that what is served is written down."""

import base64
import re

from fastapi import FastAPI
from starlette.routing import Route

from infra.records import Decision, Rate, Verdict
from infra.settings import ROOT
from tests.serving.fakes import ADMIN, TOKEN, House, experiment

VERDICT = Verdict(
    verdict="undecided",
    reason="no difference is sure yet: <b>+0.01</b>",
    requests={"champion": 100, "challenger": 90},
    users={"champion": 10, "challenger": 9},
    acceptance={
        "champion": Rate(rate=0.1, low=0.05, high=0.15, n=100),
        "challenger": Rate(rate=0.2, low=0.12, high=0.28, n=90),
    },
)


def password(token: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"me:{token}".encode()).decode()}


async def test_a_browser_is_asked_for_an_administrators_token(house: House) -> None:
    for headers, status in (
        ({"Authorization": ""}, 401),
        (password("wrong"), 401),
        ({"Authorization": "Basic ???"}, 401),
        ({"Authorization": "Basic é".encode()}, 401),
        (password(TOKEN), 403),
        (password(ADMIN), 200),
    ):
        answer = await house.client.get(house.urls[0] + "/", headers=headers)
        assert (answer.status_code, "www-authenticate" in answer.headers) == (status, status == 401)


async def test_the_page_says_who_serves_how_it_goes_and_what_was_decided(house: House) -> None:
    for version in ("1", "2"):
        house.add_version(version)
    house.registry.aliases = {"champion": "1", "challenger": "2"}
    house.registry.experiment = experiment()
    house.registry.look = Decision(experiment=experiment(), verdict=VERDICT, decided=0.0, by="gate")
    house.registry.tags["1"] = {"verdict": "promote, by gate", "verdict.reason": "accepted more", "cycle": "cycle-000001"}
    await house.follow()
    for _ in range(3):
        await house.complete()
    await house.judge("/v1/feedback", {"completion_id": "c", "outcome": "thumbs_down"})
    page = (await house.client.get(house.urls[0] + "/", headers=password(ADMIN))).text
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    for expected in (
        "Champion: version 1 · challenger: version 2",
        "Version 2 against 1, 50 % of users",
        "20.0 % [12.0, 28.0]",
        "&lt;b&gt;+0.01",
        "thumbs down: 1",
        "promote, by gate accepted more",
        "100.0 %",
    ):
        assert expected in text, expected
    assert 'href="http://mlflow.test/#/models/m/versions/2"' in page


async def test_the_page_is_there_when_the_registry_is_not(house: House) -> None:
    house.registry.away = True
    answer = await house.client.get(house.urls[0] + "/", headers=password(ADMIN))
    assert answer.status_code == 200 and "away" in answer.text and "version 0" in answer.text


async def test_every_route_is_in_the_readme(house: House) -> None:
    readme = (ROOT / "serving" / "README.md").read_text()
    for app in house.apps:
        assert isinstance(app, FastAPI)
        paths = {route.path for route in app.routes if isinstance(route, Route) and route.include_in_schema}
        assert paths and not [path for path in paths if f"`{path}`" not in readme and f" {path}`" not in readme]
