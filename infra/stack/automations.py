"""Prefect's automations, which post a message to orchestration.webhook.

`tabloop automations` makes them, and so does `tabloop up` where the setting names a webhook. A second call changes the existing
ones; without the setting, it removes them. Prefect's client reads its server and credential from the environment.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from prefect.automations import Automation
from prefect.blocks.webhook import Webhook
from prefect.events.actions import CallWebhook
from prefect.events.schemas.automations import EventTrigger, Posture

from infra.settings import Settings

BLOCK = "tabloop"
"""Name of the block that holds the webhook's URL."""
PREFIX = "tabloop: "
SILENT = timedelta(minutes=15)
"""Longest time without a finished run of the watch."""
REMIND = timedelta(hours=6)
"""Time between two messages that a test waits."""
FLOW: dict[str, Any] = {"match": {"prefect.resource.id": "prefect.flow-run.*"}}
RUN = '": " ~ event.resource["prefect.state-name"] ~ ": " ~ (event.resource["prefect.state-message"] or "")'
"""Jinja's expression of a run's state; an event of Prefect 3 has both labels."""
NAMES = ("cycle failed", "rollback", "rollback by the watch", "experiment waits", "experiment stuck")
LOOKED = ("Shadow", "Ramp", "Advanced", "Undecided", "Paused", "Stuck", "Watching", "WatchOver", "BesideAnchor")
ENDED = ("Promoted", "Rejected", "RolledBack", "Broken", "NoExperiment")
"""Names of the states of a run of the watch (flows/experiment.py)."""


def automations(block: UUID) -> Iterator[Automation]:
    """Yield the automations that call a webhook's block."""
    failed, rollback, by_watch, waits, stuck = NAMES
    ended = {"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}
    yield _automation(failed, block, RUN, trigger=_of("cycle", ended))
    yield _automation(rollback, block, RUN, trigger=_of("rollback", {"prefect.flow-run.RolledBack"}))
    yield _automation(by_watch, block, RUN, trigger=_of("experiment", {"prefect.flow-run.RolledBack"}))
    still = {"prefect.flow-run.Stuck", "prefect.flow-run.Paused"}  # of every run meanwhile: posted once in REMIND
    yield _automation(waits, block, RUN, trigger=_of("experiment", still, threshold=1, within=REMIND))
    finished = {f"prefect.flow-run.{name}" for name in (*LOOKED, *ENDED)}
    minutes = f'": no run of the watch has finished for {SILENT.total_seconds() / 60:.0f} minutes"'
    yield _automation(
        stuck, block, minutes, trigger=_of("experiment", finished, posture=Posture.Proactive, threshold=1, within=SILENT)
    )


def apply(settings: Settings) -> list[str]:
    """Make the automations, or remove them where no webhook is set; return the names of those that exist afterwards."""
    webhook = settings.orchestration.webhook
    existing = dict(_existing())
    if webhook is None:
        for automation in existing.values():
            automation.delete()
        return []
    block = Webhook(url=webhook, headers={"Content-Type": "application/json"})
    identifier = cast(UUID, block.save(BLOCK, overwrite=True))  # a coroutine only in an event loop
    wanted = list(automations(identifier))
    for automation in wanted:
        if same := existing.get(automation.name):
            automation.id = same.id
            automation.update()
        else:
            automation.create()
    return [automation.name for automation in wanted]


def _existing() -> Iterator[tuple[str, Automation]]:
    for name in NAMES:
        with suppress(ValueError):  # Prefect's error for a name that it does not know
            yield PREFIX + name, cast(Automation, Automation.read(name=PREFIX + name))


def _of(flow: str, events: set[str], **trigger: Any) -> EventTrigger:
    """Return a trigger on events of a flow's runs."""
    related = {"prefect.resource.role": "flow", "prefect.resource.name": flow}
    return EventTrigger(**FLOW, match_related=related, expect=events, **trigger)


def _automation(name: str, block: UUID, text: str, trigger: EventTrigger) -> Automation:
    payload = '{"text": {{ ("' + PREFIX + name + '" ~ ' + text + ") | tojson }} }"
    action = CallWebhook(block_document_id=block, payload=payload)
    return Automation(name=PREFIX + name, trigger=trigger, actions=[action])
