"""The chart's hooks on the stand-in cluster: what is wrong ends the installation in its own words, before any pod starts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.node import Cluster
from tests.cluster.running import Shell, running
from tests.infra.chart import helm
from tests.stack import free_ports

pytestmark = pytest.mark.stack

INSTALL = f"helm upgrade --install tabloop {helm.CHART} --namespace tabloop --values {helm.CHART}/values-team.yaml --timeout 60s"
REQUIRED = " ".join(f"--set {value}" for value in helm.REQUIRED)
KEYS = ("TABLOOP_SERVING__USER_SECRET", "TABLOOP_EVALUATE__ENGINE_TOKEN")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    cluster = Cluster(tmp_path / "cluster", gpus=5)
    with running(cluster, free_ports(1)[0]):
        shell = Shell(tmp_path, cluster)
        for command in ("create namespace tabloop", "label namespace tabloop pod-security.kubernetes.io/enforce=restricted"):
            assert shell.run(f"kubectl {command}").code == 0
        yield shell


def started(shell: Shell) -> set[str]:
    return set(shell.cluster.objects["statefulsets"]) | set(shell.cluster.objects["deployments"])


def test_a_setting_that_is_refused_ends_the_installation_with_its_name(shell: Shell) -> None:
    literals = " ".join(f"--from-literal={key}=a" for key in KEYS)
    assert shell.run(f"kubectl --namespace tabloop create secret generic tabloop {literals}").code == 0
    ended = shell.run(f"{INSTALL} {REQUIRED} --set settings.collect.min_samples=-1")
    assert ended.code == 1 and "Job/tabloop/tabloop-settings not ready. status: Failed" in ended.error
    said = shell.run("kubectl --namespace tabloop logs job/tabloop-settings").out
    assert "collect.min_samples = -1: Input should be greater than" in said
    assert not started(shell) and "tabloop-bootstrap" not in shell.cluster.objects["jobs"]


def test_a_key_that_the_secret_lacks_is_named_while_the_command_waits(shell: Shell) -> None:
    assert shell.run(f"kubectl --namespace tabloop create secret generic tabloop --from-literal={KEYS[0]}=a").code == 0
    ended = shell.run(f"{INSTALL.replace('60s', '5s')} {REQUIRED}")
    assert ended.code == 1 and "Job/tabloop/tabloop-settings not ready" in ended.error
    said = shell.run("kubectl --namespace tabloop describe pod").out
    assert f"couldn't find key {KEYS[1]} in Secret tabloop/tabloop" in said.partition("Events:")[2]
    assert not started(shell)


def test_the_workers_account_makes_jobs_and_reads_no_secret(shell: Shell) -> None:
    rendered = f"helm template tabloop {helm.CHART} --namespace tabloop {REQUIRED} --show-only templates/accounts.yaml"
    assert shell.run(f"{rendered} | kubectl --namespace tabloop apply --filename -").code == 0
    as_worker = "kubectl --namespace tabloop --as system:serviceaccount:tabloop:tabloop-worker"
    assert shell.run(f"{as_worker} get jobs,services,pods,events").code == 0
    for command in ("get secrets", "get configmaps", "delete statefulset tabloop-app", "create secret generic a"):
        refused = shell.run(f"{as_worker} {command}")
        assert refused.code == 1 and 'is forbidden: User "system:serviceaccount:tabloop:tabloop-worker" cannot' in refused.error
