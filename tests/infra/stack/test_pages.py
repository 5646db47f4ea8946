"""A web page that a developer opens gets nothing from any port of the running stack: by hand-made requests, and in a browser."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from infra import settings as settings_
from infra.registry.client import Registry
from infra.stack import prefect_api
from infra.stack.addresses import login_links
from infra.storage.store import ObjectStore
from tests.infra import attacks, browser
from tests.infra.attacks import PLANTED, Attack
from tests.stack import Stack, open_to_others

pytestmark = pytest.mark.stack
FOREIGN = ("http://evil.example", "http://127.0.0.1:3000", "https://localhost", "null")
HOSTS = ("rebound.example", "rebound.example:{port}", "127.0.0.1.evil.example:{port}", "evil.example@127.0.0.1:{port}")
PUBLIC = {("completions", "/ready"), ("feedback", "/health"), ("feedback", "/ready")}
"""What a supervisor may ask without a credential; the answers show only whether the server works."""
EMPTY = ("engine-0", "/health"), ("engine-1", "/health"), ("engine-2", "/health")
"""As PUBLIC, with an empty answer."""


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the planted command would make."""
    return tmp_path_factory.mktemp("marker") / PLANTED


@pytest.fixture(scope="module")
def targets(stack: Stack, marker: Path) -> Iterator[list[Attack]]:
    """The requests; afterwards, none of them has left anything behind."""
    with prefect_api.connect(stack.settings) as prefect:
        found = prefect.post("deployments/filter", json={}).raise_for_status().json()
        deployment = next(each["id"] for each in found if each["name"] == "rollback")
        yield attacks.attacks(stack.settings, deployment, marker)
        planted = {"flow_runs": {"name": {"any_": [PLANTED]}}}
        assert prefect.post("flow_runs/filter", json=planted).raise_for_status().json() == []
    assert not marker.exists()
    store = ObjectStore.connect(stack.settings.store)
    assert not store.exists(f"events/{PLANTED}") and not list(store.keys("requests/"))
    model = Registry.connect(stack.settings.registry)._model() or {}
    assert PLANTED not in {alias["alias"] for alias in model["aliases"]}
    token = stack.settings.serving.engine_token
    assert token
    for url in stack.settings.serving.engines:
        health = httpx.get(f"{url}/health", headers={"Authorization": f"Bearer {token.get_secret_value()}"}).json()
        assert health["version"] != PLANTED


def test_every_port_of_the_stack_is_attacked(targets: list[Attack], stack: Stack) -> None:
    settings = stack.settings
    urls = [settings.store.endpoint, settings.registry.uri, settings.orchestration.api, *settings.serving.engines]
    urls.append(settings.evaluate.engine_url)
    ports = {int(str(url).removesuffix("/api").rpartition(":")[2]) for url in urls}
    assert {target.port for target in targets} == ports | {settings.serving.port, settings.serving.feedback_port}


def test_a_page_of_another_origin_reads_and_changes_nothing(targets: list[Attack]) -> None:
    for target in targets:
        for origin in FOREIGN:
            for method in {target.method, "OPTIONS"}:
                asked = {"Access-Control-Request-Method": target.method} if method == "OPTIONS" else {}
                status, headers, _ = attacks.send(target, {"Origin": origin, **asked}, method)
                assert not [name for name in headers if name.startswith("access-control")], (target, origin, headers)
                assert target.method == "GET" or status >= 400, (target, origin, method)


def test_a_page_whose_name_points_at_this_machine_reads_nothing(targets: list[Attack]) -> None:
    for target in targets:
        for host in HOSTS:
            status, _, body = attacks.send(target, {"Host": host.format(port=target.port)})
            assert status in (400, 403), (target, host, body)


def test_without_a_credential_no_port_shows_anything(targets: list[Attack]) -> None:
    for target in targets:
        status, _, body = attacks.send(target, {})
        if (target.part, target.path) in EMPTY:
            assert body == "{}", target
        elif (target.part, target.path) not in PUBLIC:
            assert status in (400, 401, 403), (target, status, body)


def test_a_page_in_a_browser_that_is_logged_in_everywhere_gets_nothing(
    stack: Stack, targets: list[Attack], tmp_path: Path
) -> None:
    program = browser.required()
    with attacks.serving(attacks.open_door()) as port:
        control = Attack("open door", port, "POST", "/", "{}")
        results = attacks.play(program, [control, *targets], login_links(stack.settings), tmp_path / "profile")
    seen = {(result["part"], result["way"]): result["text"] for result in results if 200 <= result["status"] < 400}
    assert {way for part, way in seen if part == "open door"} == {"read", "json", "rebound"}, "the attacks work"
    assert {key: text for key, text in seen.items() if key[0] != "open door"} == {}
    tried = {(result["part"], result["way"]) for result in results}
    assert {part for part, way in tried if way == "rebound"} == {part for part, way in tried if way == "read"}


@pytest.mark.parametrize(
    "variables", [{"command": "touch FILE"}, {"env": {"PYTHONSTARTUP": "FILE"}}, {"working_dir": "/"}], ids=str
)
def test_a_run_takes_no_command_even_from_a_client_of_prefect(
    stack: Stack, targets: list[Attack], variables: dict[str, object]
) -> None:
    path = next(target.path for target in targets if target.path.endswith("create_flow_run"))
    with prefect_api.connect(stack.settings) as prefect:
        answer = prefect.post(path.removeprefix("/api"), json={"name": PLANTED, "job_variables": variables})
        assert answer.status_code == 422 and "not allowed" in answer.text


def test_what_the_stack_writes_is_for_its_owner_alone(stack: Stack) -> None:
    for root in (stack.state, *map(settings_.path, (stack.settings.serving.spool, stack.settings.serving.state))):
        assert open_to_others(root) == []
