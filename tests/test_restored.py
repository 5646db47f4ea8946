"""Back up, lose every server and disk, restore into empty ones, and finish the cycle that was open (operate/restore.md)."""

import asyncio
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from evals import developers
from evals.bench.rigs.postgresql import programs
from evals.bench.rigs.servers import DATABASES
from evals.demo import history
from evals.demo.orchestration import Orchestration
from infra.records import Completion, Feedback, Manifest
from infra.registry.client import Registry
from infra.settings import ROOT
from infra.storage import cycle_progress
from infra.storage.store import ObjectStore
from tests import documented, production
from tests.production import Production
from tests.test_loop import run_developers, run_flow, wait_for

pytestmark = [
    pytest.mark.stack,
    pytest.mark.long(reason="it starts production's servers twice, and the loop's test walks them in every run"),
    pytest.mark.timing(reason="Prefect's server answers late on a busy machine"),
]


def test_the_walked_commands_are_those_of_the_page() -> None:
    assert production.WORKER in documented.commands_of((ROOT / "infra/docs/operate/restore.md").read_text())


@pytest.mark.timeout(1800)
async def test_what_is_restored_is_what_was_acknowledged_and_the_open_cycle_ends(moto: str, tmp_path: Path) -> None:
    bucket = {"TABLOOP_STORE__BUCKET": tmp_path.name.replace("_", "-")}
    with production.running(tmp_path / "before", moto, bucket) as servers:
        await lose_the_worker_in_training(servers)
        store = ObjectStore.connect(servers.settings.store)
        events, manifest = events_of(store), newest(store)
        dumps = dump(servers, tmp_path)
        copy = {key: store.get(key) for key in store.keys("")}
    for key in copy:
        store.delete(key)
    assert not list(store.keys(""))

    began = time.monotonic()
    for key, body in copy.items():
        store.put(key, body)
    with production.running(tmp_path / "after", moto, bucket, dumps) as servers:
        said = servers.run(production.BOOTSTRAP).splitlines()
        assert len(said) == 4 and all("unchanged" in line for line in said), said
        servers.start("evaluation", production.ENGINES[2]).wait()
        servers.start("worker", production.worker_of(servers.settings)).wait()
        print(f"restored after {time.monotonic() - began:.0f} s: {len(copy)} objects, {len(events)} events")
        async with Orchestration(servers.settings.orchestration) as prefect:
            await run_flow(prefect, "cycle")
        registry = Registry.connect(servers.settings.registry)
        outcome = history.read_state(store, registry).outcomes[manifest.cycle]
        assert outcome["result"] == "registered"
        assert registry.version(outcome["version"]).tags["parent"] == "1" == registry.aliases().champion
    assert newest(store) == manifest, "the same samples, by their checksum"
    assert events_of(store) == events


async def lose_the_worker_in_training(servers: Production) -> None:
    """Collect what developers type, start a cycle, and kill its worker while it trains; stop the app, which ships its spool."""
    settings = servers.settings
    servers.start("engine-0", production.ENGINES[0]).wait()
    servers.run(production.BOOTSTRAP)
    named = {
        "engine-1": production.ENGINES[1],
        "serving": f"exec {production.SERVING}",
        "worker": production.worker_of(servers.settings),
    }
    started = {name: servers.start(name, command) for name, command in named.items()}
    for process in started.values():
        process.wait()
    async with Orchestration(settings.orchestration) as prefect:
        for deployment in ("cycle", "experiment"):
            await prefect.pause(deployment, True)
        tally = await run_developers(settings, developers.simulation_token(settings))
        assert tally.total.judged > 0 == tally.total.lost_events
        await asyncio.sleep(settings.collect.settle_seconds + settings.serving.ship_seconds + 2)
        await prefect.start("cycle")
        store = ObjectStore.connect(settings.store)

        def trains() -> bool:
            progress = cycle_progress.read(store)
            return progress is not None and progress.stage == "train"

        await wait_for(trains, "the cycle trains")
        started["worker"].kill()
    assert await asyncio.to_thread(started["serving"].stop) == 0


def dump(servers: Production, folder: Path) -> Mapping[str, Path]:
    """Dump each database to a file, as the page says."""
    files = {name: folder / f"{name}.dump" for name in DATABASES}
    for name, file in files.items():
        command = [str(programs() / "pg_dump"), "--format=custom", "--file", str(file), servers.database.url(name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(command[:3])}: {done.stderr}"
    return files


def events_of(store: ObjectStore) -> set[str]:
    """Return the ids of all events."""
    completions = {row.id for key in store.keys("events/completions/") for row in store.get_rows(key, Completion)}
    return completions | {row.id for key in store.keys("events/feedback/") for row in store.get_rows(key, Feedback)}


def newest(store: ObjectStore) -> Manifest:
    """Return the manifest of the only cycle."""
    (key,) = [key for key in store.keys("cycles/") if key.endswith("/manifest.json")]
    return Manifest.model_validate(store.get_json(key))
