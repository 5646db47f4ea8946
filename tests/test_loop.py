"""The loop by the steps of production: developers type, a cycle trains, its candidate is served, promoted and rolled back."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping

import httpx
import pytest

from evals import developers
from evals.bench.rigs.servers import ACCOUNTS, DATABASES, Server
from evals.demo import history
from evals.demo.orchestration import FlowRun, Orchestration
from infra import settings as settings_
from infra.records import Completion, Feedback, Manifest, Sample
from infra.registry.client import Registry, RegistryError
from infra.settings import DEMO, ROOT, Settings, load
from infra.storage import cycles
from infra.storage.scope import scope_of
from infra.storage.store import ObjectStore
from tests import documented, production
from tests.production import Production
from tests.stack import open_to_others

pytestmark = [pytest.mark.stack, pytest.mark.timing(reason="Prefect's server answers late on a busy machine")]
LABELS = 80


@pytest.fixture
def servers(moto: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    """Production's servers with empty databases."""
    with production.running(tmp_path_factory.mktemp("production"), moto) as servers:
        yield servers


def test_the_walked_steps_are_those_of_the_page() -> None:
    page = (ROOT / "infra/docs/operations.md").read_text()
    assert set(production.COMMANDS) <= documented.commands_of(page)
    assert ACCOUNTS.format("postgresql://USER:PASSWORD@HOST/mlflow_accounts") in page


@pytest.mark.timeout(1500)
async def test_a_candidate_is_trained_served_promoted_and_rolled_back(servers: Production) -> None:
    first = servers.start("engine-0", production.ENGINES[0])
    _verify_bootstrap(servers)
    _verify_databases(servers)
    await run_the_loop(servers, first, {"engine-1": production.ENGINES[1]})


async def run_the_loop(servers: Production, first: Server, second: Mapping[str, str]) -> str:
    """Start the processes, train a candidate of what developers type, serve it, promote it, and roll it back; return its version.

    Args:
        first: the engine that starts.
        second: the command of the second engine by its name; empty if one engine serves both slots.
    """
    settings = servers.settings
    async with Orchestration(settings.orchestration) as prefect:
        for deployment in ("cycle", "experiment"):
            await prefect.pause(deployment, True)
        first.wait()  # its caches save the others a quarter of their work
        named = {**second, "serving": production.SERVING, "worker": production.worker_of(settings)}
        for process in [servers.start(*one) for one in ({"evaluation": production.ENGINES[2]} | named).items()]:
            process.wait()
    return await learn_promote_and_roll_back(settings, developers.simulation_token(settings))


async def learn_promote_and_roll_back(settings: Settings, token: str, project: str = "") -> str:
    """Train a candidate of what developers with a token type, serve it, promote it, and roll it back; return its version.

    Args:
        token: may name users and see versions.
        project: the project that the token names, which has a champion of its own; empty: the common loop.
    """
    of_project = {"project": project} if project else {}
    async with Orchestration(settings.orchestration) as prefect:
        store = scope_of(settings, project).view(ObjectStore.connect(settings.store))
        registry = Registry.connect(settings.registry).of(project)
        tally = await run_developers(settings, token)
        assert tally.total.judged > 0
        assert tally.total.errors == 0
        assert tally.total.lost_events == 0

        await asyncio.sleep(settings.collect.settle_seconds + settings.serving.ship_seconds + 2)
        flow_run = await run_flow(prefect, "cycle", of_project)
        state = history.read_state(store, registry)
        cycle = cycles.name(1, project)
        assert state.outcomes[cycle]["result"] == "registered", flow_run

        version = state.outcomes[cycle]["version"]
        manifest = Manifest.model_validate(store.get_json(f"cycles/{cycle}/manifest.json"))
        assert sum(manifest.buckets.values()) == manifest.requests
        samples = store.get_rows(manifest.samples.key, Sample)
        requests = [sample for sample in samples if sample.outcome != "standing"]
        assert len(requests) == manifest.buckets["trained"] >= settings.collect.min_samples
        _verify_samples_against_completions(store, requests)
        training = store.get_json(f"cycles/{manifest.cycle}/training.json")
        assert training["logprob_difference_max"] < 1e-3

        assert open_to_others(settings_.path(settings.train.folder)) == [], "the cycle's samples, checkpoints and logs"

        row = next(row for row in history.cycle_rows(store, state) if row.cycle == cycle)
        assert row.verdict == "running"
        assert row.samples == len(requests)

        await wait_for(lambda: _is_served(settings, token, version), "who may pin a version gets the challenger's completions")
        experiment = state.aliases.experiment
        assert experiment
        assert experiment.challenger == version

        await run_flow(prefect, "promote", {"version": version, **of_project})
        await wait_for(
            lambda: default_version(settings, token) == version, "everyone gets the new champion's completions, without a restart"
        )
        assert registry.aliases().experiment is None
        assert registry.aliases().previous_champion == "1"

        await run_flow(prefect, "rollback", of_project)
        await wait_for(lambda: default_version(settings, token) == "1", "everyone gets the old champion's completions again")
        return version


def _verify_bootstrap(servers: Production) -> None:
    first, second = (servers.run(production.BOOTSTRAP).splitlines() for _ in range(2))
    orchestration, model = servers.settings.orchestration, servers.settings.registry.model
    for line, expected in zip(
        first,
        (
            f"{servers.settings.store.bucket}: made",
            f"version 1 of {model}: registered and made champion",
            f"{orchestration.work_pool} (type process): made",
            ": deployed",
        ),
        strict=True,
    ):
        assert line.endswith(expected)
    assert len(second) == len(first) and all("unchanged" in line for line in second)


def _verify_databases(servers: Production) -> None:
    """Check that Prefect and MLflow have their tables in PostgreSQL, and that MLflow's reader cannot write."""
    tables = {
        name: servers.database.query(name, "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'")
        for name in DATABASES
    }
    assert all(int(count) > 2 for count in tables.values()), f"tables are elsewhere: {tables}"
    names = servers.database.query(DATABASES[-1], "SELECT username FROM users ORDER BY id").split()
    assert names == [production.ADMINISTRATOR, production.FLOWS, production.READER]
    reader = Registry.connect(load(DEMO, servers.of_reader).registry)
    assert reader.aliases().champion == "1"
    with pytest.raises(RegistryError, match=r"403.*may not do this"):
        reader.set_alias("challenger", "1")


def _verify_samples_against_completions(store: ObjectStore, samples: list[Sample]) -> None:
    completions = {c.id: c for key in store.keys("events/completions/") for c in store.get_rows(key, Completion)}
    events = [f for key in store.keys("events/feedback/") for f in store.get_rows(key, Feedback)]
    assert events
    for sample in samples:
        completion = completions[sample.completion_id]
        assert completion.token_ids[: len(sample.token_ids)] == sample.token_ids
        assert completion.logprobs[: len(sample.logprobs)] == pytest.approx(sample.logprobs)
        assert completion.user not in {f"user-{i}" for i in range(200)}, "user ids are stored as keyed hashes"


async def run_developers(settings: Settings, token: str) -> developers.Tally:
    stop = asyncio.Event()

    def stop_when_labelled(tally: developers.Tally) -> None:
        if tally.total.answered >= 2 * LABELS:
            stop.set()

    run = developers.RunSettings(
        address=developers.Address(
            api_base=f"http://127.0.0.1:{settings.serving.port}/v1",
            feedback_url=f"http://127.0.0.1:{settings.serving.feedback_port}/v1/continue/events",
            token=token,
        ),
        users=20,
        seconds=300,
        concurrency=4,
        speed=200,
    )
    return await developers.run(run, developers.code_from(), stop=stop, progress=stop_when_labelled)


async def run_flow(prefect: Orchestration, deployment: str, parameters: dict[str, str] | None = None) -> FlowRun:
    run = await prefect.start(deployment, parameters)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        flow_run = await prefect.flow_run(run)
        if flow_run.message == "Deployment concurrency limit reached.":  # a run that was scheduled before the pause
            await asyncio.sleep(1)
            run = await prefect.start(deployment, parameters)
        elif flow_run.ended:
            assert flow_run.state not in ("Failed", "Crashed", "Cancelled"), flow_run
            return flow_run
        await asyncio.sleep(0.3)
    raise AssertionError(f"{deployment} did not end: {flow_run}")


async def wait_for(condition: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + 120
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"not within two minutes: {description}"
        await asyncio.sleep(0.2)


def _complete(settings: Settings, headers: dict[str, str], token: str) -> httpx.Response:
    return httpx.post(
        f"http://127.0.0.1:{settings.serving.port}/v1/completions",
        json={"model": settings.model.name, "prompt": "import os\n\ndef main(", "max_tokens": 4},
        headers={"Authorization": f"Bearer {token}", "X-User-ID": "someone", **headers},
        timeout=60,
    )


def _is_served(settings: Settings, token: str, version: str) -> bool:
    response = _complete(settings, {"X-Tabloop-Version": version}, token)
    return response.status_code == 200 and response.headers["x-tabloop-version"] == version


def default_version(settings: Settings, token: str) -> str:
    """Return the version that serves a request with a token; empty while none does."""
    return _complete(settings, {}, token).headers.get("x-tabloop-version", "")
