"""A flow with the training step of the cycle only; test_stopped.py deploys it."""

from prefect import flow

from infra import settings as settings_
from infra.storage import cycles
from tasks.steps import clients
from tasks.steps import cycle as steps


@flow(name="training", persist_result=False)
def training(cycle: str) -> None:
    """Train on the samples of a sealed cycle."""
    settings = settings_.load()
    steps.train(settings, cycles.manifest_of(clients.store_of(settings), cycle))
