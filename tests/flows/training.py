"""A flow that is the cycle's training step by itself; test_stopped.py deploys it."""

from prefect import flow

from infra import cycles
from infra import settings as settings_
from tasks.steps import clients
from tasks.steps import cycle as steps


@flow(name="training", persist_result=False)
def training(cycle: str) -> None:
    """Train on what was sealed under a name."""
    settings = settings_.load()
    steps.train(settings, cycles.manifest_of(clients.store_of(settings), cycle))
