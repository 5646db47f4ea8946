"""Tokens of the team's OpenID Connect issuer, with a real issuer on this machine and real keys."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from pydantic import ValidationError
from tokenizers import Tokenizer

from infra.identity import user_hash
from infra.settings.schema import OpenIDConnect
from serving.access import Denied
from serving.access.callers import WRONG_TOKEN
from serving.access.oidc import MAX_CHARACTERS, RETRY_SECONDS, Issuer, IssuerKeys
from tests.serving.apps import aiohttp_app
from tests.serving.fakes import House

RSA, OTHER_RSA = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
EC = ec.generate_private_key(ec.SECP256R1())


class Team:
    """An issuer."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"one": RSA}
        self.url = ""
        self.reads = 0
        self.away = False
        self.refused_agent = ""
        """Product in a User-Agent that a firewall before the issuer refuses; empty: none."""
        self.delay = 0.0
        self.copies = 1
        """Times that each key is listed."""
        self.named = ""
        """Issuer in the discovery document, if it is another."""

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.get("/.well-known/openid-configuration", self._discovery), web.get("/keys", self._keys)])
        return app

    async def _discovery(self, http: web.Request) -> web.Response:
        return web.json_response({"issuer": self.named or self.url, "jwks_uri": f"{self.url}/keys"})

    async def _keys(self, http: web.Request) -> web.Response:
        self.reads += 1
        await asyncio.sleep(self.delay)
        if self.refused_agent and self.refused_agent in http.headers.get("User-Agent", ""):
            return web.Response(status=403)
        if self.away:
            return web.Response(status=500)
        return web.json_response({"keys": [_jwk(name, key) for name, key in self.keys.items()] * self.copies})

    def token(self, key_id: str = "one", key: Any = None, algorithm: str = "RS256", **changes: Any) -> str:
        """Return a token; a change to None leaves the claim out."""
        now = int(time.time())
        claims = {"iss": self.url, "aud": "tabloop", "sub": "ada", "exp": now + 60, "iat": now} | changes
        kept = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(kept, key or self.keys[key_id], algorithm, headers={"kid": key_id} if key_id else None)

    def setting(self, **values: Any) -> OpenIDConnect:
        return OpenIDConnect(issuer=self.url, audience="tabloop", **values)


def _jwk(name: str, key: Any) -> Mapping[str, Any]:
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return json.loads(algorithm.to_jwk(key.public_key())) | {"use": "sig"} | ({"kid": name} if name else {})


@asynccontextmanager
async def running() -> AsyncIterator[Team]:
    team = Team()
    async with aiohttp_app(team.app()) as team.url:
        yield team


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    async with running() as issuer:
        yield issuer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_the_subject_is_the_user_on_both_ports(tmp_path: Path, tokenizer: Tokenizer, team: Team) -> None:
    async with House(tmp_path, tokenizer, settings={"oidc": team.setting()}) as house:
        bearer = {"Authorization": f"Bearer {team.token()}", "X-User-ID": "mallory"}
        assert (await house.complete(headers=bearer)).status_code == 200
        answer = await house.send_feedback("/v1/feedback", {"completion_id": "c", "outcome": "accepted"}, bearer)
        assert answer.status_code == 200
        users = {row.user for row in house.rows("completions") + house.rows("feedback")}
        assert users == {user_hash(b"salt", "ada")}
        assert b"tabloop_ignored_users_total 2.0" in house.metrics_text()
        assert (await house.client.get(house.urls[0] + "/admin/status", headers=bearer)).status_code == 403
        assert (await house.complete(headers=bearer)).headers.get("x-tabloop-version") is None


async def test_without_an_issuer_its_tokens_are_wrong(house: House) -> None:
    token = Team().token(iss="https://login.example")
    answer = await house.complete(headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (401, WRONG_TOKEN)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": 1}, "expired"),
        ({"exp": None}, "missing claim"),
        ({"nbf": 2**33}, "not valid yet"),
        ({"aud": "another"}, "wrong audience"),
        ({"aud": None}, "missing claim"),
        ({"iss": "https://evil.example"}, "wrong issuer"),
        ({"sub": None}, "missing claim"),
        ({"sub": ""}, "missing claim"),
        ({"key": OTHER_RSA}, "wrong signature"),
        ({"key_id": "two", "key": OTHER_RSA}, "unknown key"),
        ({"algorithm": "RS512"}, "wrong algorithm"),
        ({"algorithm": "HS256", "key": "a" * 40}, "wrong algorithm"),
        ({"algorithm": "ES256", "key": EC}, "wrong algorithm"),
        ({"algorithm": "none", "key": ""}, "wrong algorithm"),
        ({"pad": "x" * MAX_CHARACTERS}, "malformed"),
    ],
)
async def test_a_wrong_token_is_refused_with_the_kind_of_its_fault_alone(
    team: Team, changes: dict[str, Any], reason: str
) -> None:
    issuer = Issuer.of(team.setting(), time.monotonic)
    if changes.get("algorithm") == "none":
        token = ".".join([*jwt.encode({"sub": "ada"}, cast(Any, None), "none").split(".")[:2], "eA"])
    else:
        token = team.token(**changes)
    with pytest.raises(Denied) as denied:
        await issuer.verify(token)
    assert (denied.value.status, str(denied.value)) == (401, f"token of the issuer: {reason}")
    assert (await issuer.verify(team.token())).user == "ada"


@pytest.mark.parametrize("token", ["..", "a.b.c", "é.é.é", "e30.e30.e30", "bnVsbA.bnVsbA.bnVsbA", ".." + "=" * 99])
async def test_what_is_no_token_is_malformed(team: Team, token: str) -> None:
    with pytest.raises(Denied) as denied:
        await Issuer.of(team.setting(), time.monotonic).verify(token)
    assert denied.value.status == 401 and token not in str(denied.value)


@given(st.data())
def test_no_change_of_a_token_makes_another_user(data: st.DataObject) -> None:
    team = Team()
    team.url = "https://login.example"
    token = team.token()
    begin = data.draw(st.integers(0, len(token)))
    end = data.draw(st.integers(begin, min(begin + 5, len(token))))
    changed = token[:begin] + data.draw(st.text("ABCab019-_.=é\x00", max_size=5)) + token[end:]
    keys = {"one": jwt.PyJWK.from_dict(dict(_jwk("one", RSA)))}
    issuer = Issuer(team.setting(), IssuerKeys(lambda: keys, 300, time.monotonic), time.monotonic)
    try:
        user = asyncio.run(issuer.verify(changed)).user
    except Denied as denied:
        assert denied.status == 401 and str(denied).startswith("token of the issuer: ")
    else:
        assert user == "ada" and changed.split(".")[:2] == token.split(".")[:2]


async def test_another_algorithm_and_claim_can_be_pinned(team: Team) -> None:
    team.keys = {"curve": EC}
    issuer = Issuer.of(team.setting(algorithms=["ES256"], user_claim="email", projects=["web"]), time.monotonic)
    credential = await issuer.verify(team.token("curve", algorithm="ES256", email="ada@example.com"))
    assert (credential.user, credential.projects, credential.roles) == ("ada@example.com", ("web",), {"complete", "feedback"})


@pytest.mark.parametrize("published", ["", "one"])
async def test_the_only_key_need_not_be_named(team: Team, published: str) -> None:
    team.keys = {published: RSA}
    issuer = Issuer.of(team.setting(), Clock())
    assert (await issuer.verify(team.token("", RSA))).user == "ada"
    with pytest.raises(Denied, match="wrong signature"):
        await issuer.verify(team.token("", OTHER_RSA))


async def test_of_several_keys_a_token_names_its_own(team: Team, caplog: pytest.LogCaptureFixture) -> None:
    team.keys = {"one": RSA, "": OTHER_RSA}
    issuer = Issuer.of(team.setting(), Clock())
    assert (await issuer.verify(team.token("one"))).user == "ada"
    with pytest.raises(Denied, match="unknown key"):
        await issuer.verify(team.token(""))
    team.keys = {"": RSA}
    team.copies = 2
    with pytest.raises(Denied) as denied:
        await Issuer.of(team.setting(), Clock()).verify(team.token(""))
    assert denied.value.status == 503 and "2 signing keys without a key id" in caplog.text


async def test_keys_are_read_once_and_rotated(team: Team) -> None:
    clock = Clock()
    issuer = Issuer.of(team.setting(), clock)
    for _ in range(20):
        await issuer.verify(team.token())
    assert team.reads == 1
    team.keys["two"] = OTHER_RSA
    clock.now += RETRY_SECONDS
    assert (await issuer.verify(team.token("two"))).user == "ada", "a new key is read when a token names it"
    old = team.token("one")
    del team.keys["one"]
    clock.now += 300
    await issuer.verify(team.token("two"))  # starts a read
    while team.reads < 3:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    with pytest.raises(Denied, match="unknown key"):
        await issuer.verify(old)


async def test_invented_key_ids_cause_few_reads(team: Team) -> None:
    clock = Clock()
    issuer = Issuer.of(team.setting(), clock)
    forged = [issuer.verify(team.token(f"k{number}", OTHER_RSA)) for number in range(50)]
    denied = await asyncio.gather(*forged, return_exceptions=True)
    assert team.reads == 1 and {str(error) for error in denied} == {"token of the issuer: unknown key"}
    for number in range(5):
        with pytest.raises(Denied):
            await issuer.verify(team.token(f"later{number}", OTHER_RSA))
    assert team.reads == 1
    clock.now += RETRY_SECONDS
    with pytest.raises(Denied):
        await issuer.verify(team.token("k", OTHER_RSA))
    assert team.reads == 2


@pytest.mark.timing(reason="one request must end before a slow answer of 3 s")
async def test_a_slow_issuer_delays_no_other_request(tmp_path: Path, tokenizer: Tokenizer, team: Team) -> None:
    team.delay = 3.0
    async with House(tmp_path, tokenizer, settings={"oidc": team.setting()}) as house:
        waiting = asyncio.create_task(house.complete(headers={"Authorization": f"Bearer {team.token()}"}))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        assert (await house.complete()).status_code == 200
        assert time.monotonic() - began < 2 and not waiting.done()
        assert (await waiting).status_code == 200


async def test_an_outage_of_the_issuer_refuses_nobody_it_has_keys_for_and_then_all(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    issuer = Issuer.of(team.setting(), clock)
    await issuer.verify(team.token())
    team.away = True
    clock.now += 600
    assert (await issuer.verify(team.token())).user == "ada"
    clock.now += 400
    with pytest.raises(Denied) as denied:
        await issuer.verify(team.token())
    assert (denied.value.status, denied.value.retry_seconds) == (503, 10)
    assert "the keys of serving.oidc.issuer cannot be read" in caplog.text
    team.away = False
    clock.now += RETRY_SECONDS
    assert (await issuer.verify(team.token())).user == "ada"


async def test_an_issuer_that_is_away_is_an_error_of_the_server(tmp_path: Path, tokenizer: Tokenizer, team: Team) -> None:
    team.away = True
    async with House(tmp_path, tokenizer, settings={"oidc": team.setting()}) as house:
        answer = await house.complete(headers={"Authorization": f"Bearer {team.token()}"})
        assert (answer.status_code, answer.json()["error"]["type"], answer.headers["retry-after"]) == (503, "server_error", "10")


async def test_a_discovery_document_of_another_issuer_is_not_believed(team: Team, caplog: pytest.LogCaptureFixture) -> None:
    team.named = "https://evil.example"
    with pytest.raises(Denied) as denied:
        await Issuer.of(team.setting(), time.monotonic).verify(team.token())
    assert denied.value.status == 503 and "expected the issuer" in caplog.text


async def test_keys_behind_a_firewall_that_refuses_pythons_own_client_are_read(team: Team) -> None:
    team.refused_agent = "Python-urllib"
    assert (await Issuer.of(team.setting(), time.monotonic).verify(team.token())).user == "ada"


async def test_each_user_of_the_issuer_has_a_rate(team: Team) -> None:
    issuer = Issuer.of(team.setting(requests_per_minute=2), Clock())
    ada, bob = team.token(), team.token(sub="bob")
    for _ in range(2):
        (await issuer.verify(ada)).admit()
    with pytest.raises(Denied, match="too many requests"):
        (await issuer.verify(ada)).admit()
    (await issuer.verify(bob)).admit()


@pytest.mark.parametrize(
    "values",
    [
        {"issuer": "http://login.example"},
        {"issuer": "login.example"},
        {"algorithms": ["HS256"]},
        {"algorithms": ["none"]},
        {"roles": ["users"]},
        {"roles": ["admin"]},
        {"audience": ""},
    ],
)
def test_settings_that_would_believe_anybody_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OpenIDConnect(**{"issuer": "https://login.example", "audience": "tabloop"} | values)
