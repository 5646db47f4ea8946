"""What `tabloop status` says about each loop."""

import time

import pytest

from infra import settings as settings_
from infra.records import LoopRun
from infra.settings import Settings
from infra.stack import health
from infra.storage import loop_runs
from infra.storage.scope import scope_of
from infra.storage.store import ObjectStore
from tests.stack import free_ports
from tests.tasks.made import MemoryStore


def of_projects() -> Settings:
    """Return the settings of a stack whose projects web and docs have champions of their own, and whose Prefect is down."""
    own = {"projects": {name: {"own_champion": True} for name in ("web", "docs")}, "adapters": 8}
    loaded = settings_.load(settings_.TEAM, {})
    serving = loaded.serving.model_validate(loaded.serving.model_dump() | own)
    orchestration = loaded.orchestration.model_copy(update={"api": f"http://127.0.0.1:{free_ports(1)[0]}/api"})
    return loaded.model_copy(update={"serving": serving, "orchestration": orchestration})


def test_each_project_with_a_champion_of_its_own_has_its_watch_and_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, now, store = of_projects(), time.time(), MemoryStore()
    monkeypatch.setattr(ObjectStore, "connect", lambda _: store)
    schedules = {"experiment": True, "cycle": True}
    for project, state in (("", "Undecided"), ("web", "Failed")):
        run = LoopRun(flow="experiment", began=now - 6, schedules=schedules).end(now - 4, state, f"of {project or 'all'}")
        loop_runs.write(scope_of(settings, project).view(store), run)
    found = health.signs(settings, now)
    assert list(found) == ["", "docs", "web"]
    assert [sign.name for sign in found[""]] == ["prefect", "watch", "cycle", "schedules", "spool"]
    watches = {project: next(sign for sign in of_loop if sign.name == "watch") for project, of_loop in found.items()}
    assert (watches[""].ok, watches["web"].ok, watches["docs"].ok) == (True, False, False)
    assert "Failed: of web" in watches["web"].text and watches["docs"].text.startswith("never ran")
    assert [sign.name for sign in found["web"]] == list(loop_runs.OF_EACH_LOOP)
    assert not found[""][0].ok and "no answer" in found[""][0].text


def test_a_store_that_does_not_answer_is_a_sign_of_the_common_loop() -> None:
    settings = of_projects()
    away = settings.store.model_copy(update={"endpoint": f"http://127.0.0.1:{free_ports(1)[0]}"})
    found = health.signs(settings.model_copy(update={"store": away}), time.time())
    assert list(found) == [""] and found[""][-1].name == "store" and not found[""][-1].ok
