"""What hangs: the loop's signs (infra/storage/loop_runs.py) as a command on this machine sees them, and Prefect's answer."""

import time

import httpx

from infra import settings as settings_
from infra.registry.client import NoAnswer
from infra.settings import Settings
from infra.stack import prefect_api
from infra.storage import loop_runs
from infra.storage.loop_runs import SLOW_SECONDS, Sign
from infra.storage.scope import scopes_of
from infra.storage.store import ObjectStore, Refused, Unreachable

PREFECT_SECONDS = 10.0
"""Longest wait for an answer of Prefect's server."""


def signs(settings: Settings, now: float) -> dict[str, list[Sign]]:
    """Return the signs of each loop, by project (empty: the common loop): Prefect, watch, cycle, schedules, spool.

    A project's loop has watch and cycle of its own. Servers that do not answer are signs too.
    """
    prefect, schedules = _prefect(settings)
    backlog = loop_runs.backlog(settings_.path(settings.serving.spool), now)
    try:
        store = ObjectStore.connect(settings.store)
        runs = {scope.project: loop_runs.read(scope.view(store)) for scope in scopes_of(settings)}
    except (Unreachable, Refused, NoAnswer) as error:
        return {"": [prefect, Sign("store", str(error).partition("\n")[0], False)]}
    common = runs.pop("")
    own = {project: loop_runs.signs(of_loop, now, schedules=schedules, common=common) for project, of_loop in runs.items()}
    return {
        "": [prefect, *loop_runs.signs(common, now, backlog, schedules)],
        **{project: [sign for sign in found if sign.name in loop_runs.OF_EACH_LOOP] for project, found in own.items()},
    }


def _prefect(settings: Settings) -> tuple[Sign, dict[str, bool] | None]:
    """Return how Prefect's server answers, and which schedules are on; None without an answer."""
    began = time.monotonic()
    try:
        with prefect_api.connect(settings) as http:
            found = http.post("deployments/filter", json={}, timeout=PREFECT_SECONDS).raise_for_status()
    except httpx.HTTPError as error:
        return Sign("prefect", f"no answer: {error or type(error).__name__}", False), None
    seconds = time.monotonic() - began
    on = {
        each["name"]: not each["paused"] and any(schedule["active"] for schedule in each["schedules"])
        for each in found.json()
        if each["schedules"]
    }
    return Sign("prefect", f"answers in {seconds:.2f} s", seconds < SLOW_SECONDS), on
