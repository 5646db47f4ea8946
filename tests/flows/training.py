"""A flow with the training step of the cycle only; test_stopped.py deploys it."""

from prefect import flow

from infra.storage import cycles
from tasks.steps import context as contexts
from tasks.steps.train import train


@flow(name="training", persist_result=False)
def training(cycle: str) -> None:
    """Train on the samples of a sealed cycle."""
    context = contexts.load()
    train(context, cycles.manifest_of(context.store, cycle))
