"""Prepare empty servers: `tabloop bootstrap`.

On the servers that the settings name, it makes what is missing: the bucket; the base model as version 1 and champion; Prefect's
work pool; the deployments of prefect.yaml. Each step prints what it did; a second call changes nothing. It needs no local stack.
"""

import os
from collections.abc import Callable, Iterator, Sequence

import httpx

from infra.registry.client import RegistryError
from infra.settings import Settings, SettingsError
from infra.stack import orchestration, pools, prefect_api, seed
from infra.stack.parts import client_environment
from infra.stack.prefect_api import DeployError
from infra.stack.processes import MARK
from infra.storage.store import ConditionalPutsIgnored, Refused, Unreachable

COMMAND = "tabloop bootstrap"
USERS_ERRORS = (SettingsError, seed.NoBaseModel, RegistryError, DeployError, ConditionalPutsIgnored, Refused, Unreachable)
Step = tuple[str, Callable[[Settings], str]]


def bucket(settings: Settings) -> str:
    """Make the bucket if it is missing."""
    made = seed.bucket(settings)
    return f"{settings.store.bucket}: {'made' if made else 'unchanged'}"


def base_model(settings: Settings, brought: str = "") -> str:
    """Register the base model, from model.base or where it is brought from, and make it champion, if there is no champion."""
    version, made = seed.base_model(settings, brought)
    change = "registered and made champion" if made else "unchanged, it is champion"
    return f"version {version} of {settings.registry.model}: {change}"


def work_pool(settings: Settings) -> str:
    """Make the work pool, or give it the settings' job template."""
    change = pools.ensure(settings)
    return f"{settings.orchestration.work_pool} (type {settings.orchestration.work_pool_type}): {change}"


def deployments(settings: Settings) -> str:
    """Deploy prefect.yaml if the server has not all of this release's deployments in the work pool."""
    if not (names := orchestration.outdated(settings)):
        return f"{', '.join(one['name'] for one in orchestration.declared())}: unchanged"
    variables = client_environment(settings, dict(os.environ))
    del variables[MARK]  # no part of the local stack: `tabloop down` leaves it alone
    orchestration.deploy(settings, variables, COMMAND)
    return f"{', '.join(names)}: deployed"


def steps(brought: str = "") -> tuple[Step, ...]:
    """Return the steps in their order, with the base model from a directory or "s3://BUCKET/PREFIX"; empty: from model.base."""
    return (
        ("bucket", bucket),
        ("base model", lambda settings: base_model(settings, brought)),
        ("work pool", work_pool),
        ("deployments", deployments),
    )


STEPS = steps()


def run(settings: Settings, steps: Sequence[Step] = STEPS) -> Iterator[str]:
    """Do each step and yield a line that says what it did.

    Raises:
        DeployError: Prefect's server does not answer, or refuses the credential; other errors of USERS_ERRORS pass through.
    """
    for name, step in steps:
        try:
            yield f"{name:<12} {step(settings)}"
        except httpx.HTTPError as error:
            raise prefect_api.explained(settings, error) from error
