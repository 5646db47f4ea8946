"""One name is one user, in whatever form clients, proxies and operators give it."""

import unicodedata
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infra.identity import MAX_CHARACTERS, header_text, user_hash, user_name
from infra.settings.schema import Serving
from serving.access import Access
from tests.serving.access.test_callers import sha256
from tests.serving.fakes import EDITOR, HEADERS, House
from tests.serving.helpers import INFILL

NAME = "José Ångström"
FORMS = {
    "utf8": NAME.encode(),
    "latin1": NAME.encode("latin-1"),
    "nfd": unicodedata.normalize("NFD", NAME).encode(),
    "percent": quote(NAME).encode(),
    "percent_lower": quote(NAME).replace("%C3", "%c3").encode(),
    "blanks": quote(f"  {NAME} ").encode(),
}
REFUSED = {
    "long": "x" * (MAX_CHARACTERS + 1),
    "nul": "a\0b",
    "newline": "a\nb",
    "escape": "a%0Ab",
    "c1": "a\x85b",
    "separator": "a\u2028b",
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_header_in_any_form_names_the_user_whom_the_command_prints(house: House, form: str) -> None:
    headers: dict[str, object] = {"X-User-ID": FORMS[form]}
    await house.complete(headers=headers)  # type: ignore[arg-type]  # httpx takes bytes too
    await house.complete("/infill", headers=headers, **INFILL)  # type: ignore[arg-type]
    body = {"completion_id": "c", "outcome": "accepted"}
    await house.send_feedback("/v1/feedback", body, headers)  # type: ignore[arg-type]
    await house.complete(headers={"X-User-ID": ""}, user=NAME)
    users = {row.user for row in house.rows("completions") + house.rows("feedback")}
    assert users == {user_hash(b"salt", NAME)}


@pytest.mark.parametrize("form", FORMS)
async def test_a_body_in_any_form_names_the_same_user(house: House, form: str) -> None:
    text = header_text(FORMS[form].decode("latin-1"))
    await house.complete(headers={"X-User-ID": "%20"}, user=text)
    await house.complete(headers={"X-User-ID": ""}, segments={"prefix": "x = "}, user=text)
    await house.complete("/infill", headers={"X-User-ID": ""}, user=text, **INFILL)
    assert {row.user for row in house.rows("completions")} == {user_hash(b"salt", NAME)}


async def test_a_tokens_own_user_is_the_same_person(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokens = {"laptop": {"sha256": sha256("laptop"), "user": unicodedata.normalize("NFD", NAME)}}
    async with House(tmp_path, tokenizer, settings={"tokens": tokens}) as house:
        for header in (b"", NAME.encode()):
            await house.complete(headers={"Authorization": "Bearer laptop", "X-User-ID": header})  # type: ignore[dict-item]
        assert {row.user for row in house.rows("completions")} == {user_hash(b"salt", NAME)}
        assert b"tabloop_ignored_users_total 0.0" in house.metrics_text()


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_name_that_cannot_be_one_is_refused_by_its_field(house: House, kind: str) -> None:
    answer = await house.complete(headers={"X-User-ID": ""}, user=REFUSED[kind])
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and message.startswith("user: expected a name of at most 256 characters"), message
    by_header = await house.complete(headers={"X-User-ID": quote(REFUSED[kind], safe="%")})
    assert by_header.status_code == 400 and by_header.json()["error"]["message"].startswith("X-User-ID: ")
    assert house.rows("completions") == []


@pytest.mark.parametrize("user", [17, True, ["ada"], {"id": "ada"}])
async def test_a_user_that_is_no_text_is_refused_where_it_counts(house: House, user: object) -> None:
    answer = await house.complete(headers={"X-User-ID": ""}, user=user)
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith("user: expected a string, got ")
    assert (await house.complete(headers={"Authorization": f"Bearer {EDITOR}", "X-User-ID": ""}, user=user)).status_code == 200


async def test_a_header_beside_a_proxys_own_names_nobody(house: House) -> None:
    """A proxy that adds a header to that of its client."""
    body = {"completion_id": "c", "outcome": "accepted"}
    for field, own, other in (("X-User-ID", "ada", "eve"), ("X-Project-ID", "p1", "p2")):
        for values, status in (((other, own), 400), ((own, other), 400), ((own, ""), 400), ((own, own), 200)):
            headers = [*((name, text) for name, text in HEADERS.items() if name != field), *((field, value) for value in values)]
            async with httpx.AsyncClient(headers=headers, verify=False) as client:
                for url, sent in ((f"{house.urls[0]}/v1/completions", {"prompt": "x"}), (f"{house.urls[1]}/v1/feedback", body)):
                    answer = await client.post(url, json=sent)
                    assert answer.status_code == status, (values, answer.text)
                    assert status == 200 or answer.json()["error"]["message"].startswith(f"{field}: expected one, got ")
    rows = house.rows("completions") + house.rows("feedback")
    assert {(row.user, row.project) for row in rows} == {(user_hash(b"salt", "ada"), "p1")}


async def test_an_opt_out_beside_its_opposite_counts(house: House) -> None:
    headers = [*HEADERS.items(), ("X-Tabloop-Opt-Out", "0"), ("X-Tabloop-Opt-Out", "1")]
    async with httpx.AsyncClient(headers=headers, verify=False) as client:
        assert (await client.post(f"{house.urls[0]}/v1/completions", json={"prompt": "x"})).status_code == 200
    assert [row.opted_out for row in house.rows("completions")] == [True]


async def test_blank_names_are_none(house: House) -> None:
    for header, user in (("", None), ("%20", ""), ("%09", "  "), ("", "\t")):
        await house.complete(headers={"X-User-ID": header}, user=user)
    assert {row.user for row in house.rows("completions")} == {user_hash(b"salt", "proxy")}


async def test_a_project_header_is_read_as_a_user_header_is(house: House) -> None:
    for form in ("Zürich".encode(), "Zürich".encode("latin-1"), unicodedata.normalize("NFD", "Zürich").encode()):
        assert (await house.complete(headers={"X-Project-ID": form})).status_code == 200  # type: ignore[dict-item]
    assert {row.project for row in house.rows("completions")} == {"Zürich"}
    answer = await house.complete(headers={"X-Project-ID": "a b"})
    assert answer.status_code == 400 and "X-Project-ID: expected 1 to 64 letters" in answer.text and "'a b'" in answer.text


def test_a_token_whose_user_is_no_name_stops_the_start() -> None:
    tokens = {"ada": {"sha256": sha256("a"), "user": "a\nb"}}
    with pytest.raises(SystemExit, match="token ada: user: expected a name"):
        Access(Serving(token=EDITOR, user_secret="salt", tokens=tokens))


@pytest.mark.parametrize("name", ["100%", "a%zz", "50%ff", "ada@acme.example", "o'Hara+x", "jürgen 💻"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert user_name(name) == unicodedata.normalize("NFC", name)


@given(st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=40))
def test_a_percent_encoded_name_is_the_name(name: str) -> None:
    if "%" not in name:
        assert user_name(quote(name)) == user_name(name) == user_name(header_text(name.encode().decode("latin-1")))
