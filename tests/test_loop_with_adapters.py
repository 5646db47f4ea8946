"""The loop by the steps of production, as in test_loop.py, with versions that are adapters, and one engine for both slots.

A project with a champion of its own then learns in the same engine, beside the common loop.
"""

import hashlib
import json
from collections.abc import Iterator

import pytest

from evals import developers
from infra.records import Completion
from infra.registry.client import Registry
from infra.registry.lineage import PROJECT_TAG
from infra.settings import Settings
from infra.storage.store import ObjectStore
from tests import production
from tests.production import Production
from tests.stack import free_ports
from tests.test_loop import default_version, learn_promote_and_roll_back, run_the_loop

pytestmark = [
    pytest.mark.stack,
    pytest.mark.long(reason="it takes the loop's minutes twice more, and its parts have tests of their own"),
    pytest.mark.timing(reason="Prefect's server answers late on a busy machine"),
]
WEB = "token-of-the-project-web"
OF_WEB = {
    **{"sha256": hashlib.sha256(WEB.encode()).hexdigest(), "projects": ["web"], "requests_per_minute": 60_000},
    "roles": ["complete", "feedback", "users", "versions"],
}
ADAPTERS = {
    "TABLOOP_SERVING__ADAPTERS": "6",
    "TABLOOP_SERVING__PROJECTS": json.dumps({"web": {"own_champion": True}}),
    "TABLOOP_SERVING__TOKENS": json.dumps({"web": OF_WEB}),
    "TABLOOP_TRAIN__ADAPTER_RANK": "8",
    "TABLOOP_TRAIN__FROZEN_LAYERS": "0",
    "TABLOOP_TRAIN__STORED_MANTISSA": "23",
}


@pytest.fixture
def servers(moto: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    """Production's servers, whose slots are one engine."""
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    folder, engines = tmp_path_factory.mktemp("production"), json.dumps([url, url])
    with production.running(folder, moto, ADAPTERS | {"TABLOOP_SERVING__ENGINES": engines}) as servers:
        yield servers


def check_is_adapter(settings: Settings, version: str) -> None:
    """Check that a version is an adapter of the base model, and that no whole weights are stored."""
    found = Registry.connect(settings.registry).version(version)
    assert found.tags["base"] == "1"
    stored = ObjectStore.connect(settings.store).keys(f"checkpoints/{found.source.rpartition('/')[2]}/")
    files = {key.rpartition("/")[2] for key in stored}
    assert "adapter_model.safetensors" in files and "model.safetensors" not in files


@pytest.mark.timeout(2400)
async def test_two_loops_train_promote_and_roll_back_adapters_in_one_engine(servers: Production) -> None:
    first = servers.start("engine-0", production.ENGINES[0])
    servers.run(production.BOOTSTRAP)
    settings = servers.settings
    common = await run_the_loop(servers, first, {})
    check_is_adapter(settings, common)

    assert default_version(settings, WEB) == "1", "the common champion, before any version of the project"
    own = await learn_promote_and_roll_back(settings, WEB, "web")
    check_is_adapter(settings, own)
    registry, store = Registry.connect(settings.registry), ObjectStore.connect(settings.store)
    assert registry.version(own).tags[PROJECT_TAG] == "web" and PROJECT_TAG not in registry.version(common).tags
    rows = [row for key in store.keys("events/completions/") for row in store.get_rows(key, Completion)]
    served = {project: {row.policy_version for row in rows if row.project == project} for project in ("web", "default")}
    assert own in served["web"] and common not in served["web"], "its people meet no version of the common tests"
    assert common in served["default"] and own not in served["default"]
    assert default_version(settings, developers.simulation_token(settings)) == "1"
