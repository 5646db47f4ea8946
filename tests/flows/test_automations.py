"""Prefect's automations: made once, changed and removed by the setting, and a failed cycle reaches the webhook."""

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from prefect.automations import Automation
from prefect.client.orchestration import get_client

from flows.cycle import cycle
from infra.settings import Settings
from infra.settings.schema import Orchestration
from infra.stack import automations, control
from infra.stack.parts import UNUSED_SERVICES, parts, unused_services
from infra.stack.supervision import Supervisor
from tests.flows.conftest import World

pytestmark = [pytest.mark.stack, pytest.mark.timing(reason="Prefect's server answers late on a busy machine")]


class Webhook(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted."""

    posted: list[dict] = []  # noqa: RUF012 (each test makes its own class)

    def do_POST(self) -> None:
        """Answer a request."""
        self.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def webhook(prefect: None) -> Iterator[tuple[list[dict], Settings]]:
    """What a webhook has received, and settings that name it; afterwards no automation is left."""
    handler = type("Handler", (Webhook,), {"posted": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.server_port}/hook"
        yield cast(Any, handler).posted, Settings(orchestration=Orchestration(webhook=url))
        automations.apply(Settings())
        listening.shutdown()
        thread.join()


def existing() -> list[str]:
    with get_client(sync_client=True) as client:
        found = client.request("POST", "/automations/filter", json={}).json()
    return sorted(each["name"] for each in found)


def test_automations_are_made_once_and_removed_with_the_setting(webhook: tuple[list[dict], Settings]) -> None:
    _, settings = webhook
    names = [automations.PREFIX + name for name in automations.NAMES]
    assert automations.apply(settings) == names
    first = cast(Any, Automation.read(name=names[0])).id
    assert automations.apply(settings) == names
    assert existing() == sorted(names)
    assert cast(Any, Automation.read(name=names[0])).id == first
    assert automations.apply(Settings()) == []
    assert existing() == []


def test_a_failed_cycle_is_posted_with_its_reason(world: World, webhook: tuple[list[dict], Settings]) -> None:
    posted, settings = webhook
    automations.apply(settings)
    time.sleep(3)  # the server reads its automations every few seconds
    world.registry.aliases.clear()
    state = cycle(return_state=True)
    assert state.is_failed()
    deadline = time.monotonic() + 30
    while not posted and time.monotonic() < deadline:
        time.sleep(0.1)
    assert posted and posted[0]["text"].startswith("tabloop: cycle failed: Failed: ") and "champion" in posted[0]["text"]


def test_a_start_of_the_stack_makes_automations_only_with_a_webhook(tmp_path: Path) -> None:
    def steps(settings: Settings) -> set[str]:
        started = {"worker": parts(settings)["worker"]}
        return set(control._plan(settings, Supervisor(tmp_path), started, 1.0, threading.Event()))

    with_webhook = Settings(orchestration=Orchestration(webhook="http://127.0.0.1:1/"))
    assert steps(with_webhook) - steps(Settings()) == {"automations"}


def test_the_local_server_evaluates_automations_only_with_a_webhook() -> None:
    assert unused_services(Settings()) == UNUSED_SERVICES
    with_webhook = Settings(orchestration=Orchestration(webhook="http://127.0.0.1:1/"))
    assert set(UNUSED_SERVICES) - set(unused_services(with_webhook)) == {"TRIGGERS"}
