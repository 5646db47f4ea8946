"""The rendered chart on the API server of a cluster for tests: TABLOOP_KUBERNETES names a kubeconfig, which may make namespaces.

Every object is sent with a server-side dry run to a namespace that warns of what Pod Security `restricted` forbids, so that the
server's own checks, which no schema has, see it. Nothing is started, and the namespace goes at the end.
"""

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.infra.chart import helm

VARIABLE = "TABLOOP_KUBERNETES"
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no kubeconfig of a cluster for tests"),
]
OF_OPERATORS = ("ScaledObject", "PodMonitor", "PrometheusRule")
"""Kinds that a cluster without their operators does not know."""
Kubectl = Callable[..., helm.Ended]


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """Runs kubectl in a namespace of its own; `given` is its standard input."""
    config, namespace = Path(os.environ[VARIABLE]).absolute(), f"tabloop-test-{secrets.token_hex(3)}"
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path_factory.mktemp("home")), "KUBECONFIG": str(config)}

    def run(*arguments: str, given: str = "") -> helm.Ended:
        command = (str(helm.program().with_name("kubectl")), "--namespace", namespace, *arguments)
        ended = subprocess.run(command, env=variables, input=given, capture_output=True, text=True, timeout=120, check=False)
        return helm.Ended(ended.returncode, ended.stdout, ended.stderr)

    for arguments in (
        ("create", "namespace", namespace),
        ("label", "namespace", namespace, "pod-security.kubernetes.io/warn=restricted"),
    ):
        ended = run(*arguments)
        assert ended.code == 0, ended.error
    try:
        yield run
    finally:
        run("delete", "namespace", namespace, "--wait=false")


@pytest.mark.parametrize("size", helm.SIZES)
def test_the_server_takes_every_object_of_the_chart(kubectl: Kubectl, size: str) -> None:
    sets = [part for value in helm.REQUIRED for part in ("--set", value)]
    rendered = helm.run("template", "tabloop", str(helm.CHART), "--values", str(helm.CHART / f"values-{size}.yaml"), *sets)
    assert rendered.code == 0, rendered.error
    objects = [one for one in helm.documents(rendered.out) if one["kind"] not in OF_OPERATORS]
    ended = kubectl("apply", "--dry-run=server", "--filename", "-", given=yaml.safe_dump_all(objects))
    assert ended.code == 0 and "Warning" not in ended.error, ended.error
    assert ended.out.count("created (server dry run)") == len(objects)


def test_the_server_warns_of_a_pod_that_restricted_forbids(kubectl: Kubectl) -> None:
    ended = kubectl("create", "deployment", "a", "--image=a", "--dry-run=server")
    assert ended.code == 0 and 'Warning: would violate PodSecurity "restricted' in ended.error, ended.error
