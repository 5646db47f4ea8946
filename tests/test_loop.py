"""The whole loop on the real stack: developers type, a cycle trains, the candidate is served, promoted, rolled back."""

import asyncio
import time
from collections.abc import Callable

import httpx
import pytest
from pydantic import SecretStr

from evals import developers
from evals.demo import history
from evals.demo.orchestration import FlowRun, Orchestration
from infra.records import Completion, Feedback, Manifest, Sample
from infra.registry import Registry
from infra.settings import Settings
from infra.store import ObjectStore
from tests.stack import Stack

pytestmark = pytest.mark.stack
LABELS = 80


@pytest.mark.timeout(1500)
async def test_a_candidate_goes_from_labels_to_serving_and_back(stack: Stack) -> None:
    settings = stack.settings
    store, registry = ObjectStore.connect(settings.store), Registry.connect(settings.registry)
    async with Orchestration(settings.orchestration) as prefect:
        for deployment in ("cycle", "experiment"):
            await prefect.pause(deployment, True)
        async with asyncio.timeout(300):
            while await prefect.busy_deployments():  # a scheduled cycle would train on the labels of other tests first
                await asyncio.sleep(1)
        tally = await _type(settings)
        assert tally.total.judged > 0
        assert tally.total.errors == 0
        assert tally.total.lost_events == 0

        await asyncio.sleep(settings.collect.settle_seconds + settings.serving.ship_seconds + 2)
        ended = await _finish(prefect, "cycle")
        world = history.read_state(store, registry)
        assert list(world.outcomes.values())[-1]["result"] == "registered", ended

        manifest = Manifest.model_validate(store.get_json(f"cycles/{next(iter(world.outcomes))}/manifest.json"))
        assert sum(manifest.buckets.values()) == manifest.requests
        samples = store.get_rows(manifest.samples.key, Sample)
        assert len(samples) == manifest.buckets["trained"] >= settings.collect.min_samples
        _trained_on_what_was_served(store, samples)
        training = store.get_json(f"cycles/{manifest.cycle}/training.json")
        assert training["logprob_difference_max"] < 1e-3

        row = history.cycle_rows(store, world)[-1]
        assert row.verdict == "running"
        assert row.samples == len(samples)

        await _until(lambda: _served(settings, "2"), "the challenger is served to an administrator who asks for it")
        experiment = world.aliases.experiment
        assert experiment
        assert experiment.challenger == "2"

        await _finish(prefect, "promote", {"version": "2"})
        await _until(lambda: _default(settings) == "2", "the new champion is served to everyone, without a restart")
        assert registry.aliases().experiment is None
        assert registry.aliases().previous_champion == "1"

        await _finish(prefect, "rollback")
        await _until(lambda: _default(settings) == "1", "the old champion is served again")


def _trained_on_what_was_served(store: ObjectStore, samples: list[Sample]) -> None:
    served = {c.id: c for key in store.keys("events/completions/") for c in store.get_rows(key, Completion)}
    told = [f for key in store.keys("events/feedback/") for f in store.get_rows(key, Feedback)]
    assert told
    for sample in samples:
        completion = served[sample.completion_id]
        assert completion.token_ids[: len(sample.token_ids)] == sample.token_ids
        assert completion.logprobs[: len(sample.logprobs)] == pytest.approx(sample.logprobs)
        assert completion.user not in {f"user-{i}" for i in range(200)}, "user ids are stored as keyed hashes"


async def _type(settings: Settings) -> developers.Tally:
    stop = asyncio.Event()

    def enough(tally: developers.Tally) -> None:
        if tally.total.answered >= 2 * LABELS:
            stop.set()

    assert settings.serving.token
    run = developers.RunSettings(
        address=developers.Address(
            api_base=f"http://127.0.0.1:{settings.serving.port}/v1",
            feedback_url=f"http://127.0.0.1:{settings.serving.feedback_port}/v1/continue/events",
            token=settings.serving.token.get_secret_value(),
        ),
        users=20,
        seconds=300,
        concurrency=4,
    )
    return await developers.run(run, developers.code_from(), stop=stop, progress=enough)


async def _finish(prefect: Orchestration, deployment: str, parameters: dict[str, str] | None = None) -> FlowRun:
    run = await prefect.start(deployment, parameters)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        found = await prefect.flow_run(run)
        if found.ended:
            assert found.state not in ("Failed", "Crashed", "Cancelled"), found
            return found
        await asyncio.sleep(1)
    raise AssertionError(f"{deployment} did not end: {found}")


async def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline, f"not within two minutes: {what}"
        await asyncio.sleep(1)


def _complete(settings: Settings, headers: dict[str, str], secret: SecretStr | None) -> httpx.Response:
    assert secret
    return httpx.post(
        f"http://127.0.0.1:{settings.serving.port}/v1/completions",
        json={"model": settings.model.name, "prompt": "import os\n\ndef main(", "max_tokens": 4},
        headers={"Authorization": f"Bearer {secret.get_secret_value()}", "X-User-ID": "someone", **headers},
        timeout=60,
    )


def _served(settings: Settings, version: str) -> bool:
    answer = _complete(settings, {"X-Tabloop-Version": version}, settings.serving.admin_token or settings.serving.token)
    return answer.status_code == 200 and answer.headers["x-tabloop-version"] == version


def _default(settings: Settings) -> str:
    return _complete(settings, {}, settings.serving.token).headers.get("x-tabloop-version", "")
