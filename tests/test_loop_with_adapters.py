"""The loop by the steps of production, as in test_loop.py, with versions that are adapters, and one engine for both slots."""

import json

import pytest

from infra.registry.client import Registry
from infra.storage.store import ObjectStore
from tests import production
from tests.stack import free_ports
from tests.test_loop import run_the_loop

pytestmark = [
    pytest.mark.stack,
    pytest.mark.long(reason="it takes the loop's minutes once more, and its parts have tests of their own"),
    pytest.mark.timing(reason="Prefect's server answers late on a busy machine"),
]
ADAPTERS = {
    "TABLOOP_STORE__BUCKET": "adapters",
    "TABLOOP_SERVING__ADAPTERS": "4",
    "TABLOOP_TRAIN__ADAPTER_RANK": "8",
    "TABLOOP_TRAIN__FROZEN_LAYERS": "0",
    "TABLOOP_TRAIN__STORED_MANTISSA": "23",
}


@pytest.mark.timeout(1500)
async def test_an_adapter_is_trained_served_promoted_and_rolled_back_in_one_engine(
    moto: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    folder, engines = tmp_path_factory.mktemp("production"), json.dumps([url, url])
    with production.running(folder, moto, ADAPTERS | {"TABLOOP_SERVING__ENGINES": engines}) as servers:
        first = servers.start("engine-0", production.ENGINES[0])
        servers.run(production.BOOTSTRAP)
        version = await run_the_loop(servers, first, {})
        settings = servers.settings
        found = Registry.connect(settings.registry).version(version)
        assert found.tags["base"] == "1"
        stored = ObjectStore.connect(settings.store).keys(f"checkpoints/{found.source.rpartition('/')[2]}/")
        files = {key.rpartition("/")[2] for key in stored}
        assert "adapter_model.safetensors" in files and "model.safetensors" not in files, "no whole weights are stored"
