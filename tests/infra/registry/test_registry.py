"""The registry, on the stack's MLflow; each test has its own registered model."""

import httpx
import pytest
from pydantic import SecretStr

from infra.http import authorization
from infra.records import Decision, ExperimentRecord, Stage, Verdict
from infra.registry.client import (
    CHALLENGER,
    CHAMPION,
    DESCRIPTION,
    MOST_DESCRIPTION,
    MOST_TAG,
    PREVIOUS_TAG,
    Aliases,
    Registry,
    RegistryError,
)
from infra.settings.schema import Registry as RegistrySettings
from tests.stack import Stack

EXPERIMENT = ExperimentRecord(id="e1", champion="1", challenger="2", share=0.5, started=1.5)


@pytest.fixture
def registry(storage: Stack, request: pytest.FixtureRequest) -> Registry:
    registry = Registry.connect(storage.settings.registry.model_copy(update={"model": request.node.name}))
    registry.ensure_model()
    return registry


def test_a_new_model_has_no_aliases_and_no_versions(registry: Registry) -> None:
    registry.ensure_model()
    assert registry.aliases() == Aliases(None, None, None, None)
    assert registry.versions() == []


def test_versions_are_returned_oldest_first_with_source_and_tags(registry: Registry) -> None:
    versions = [registry.create_version(f"s3://b/checkpoints/{n}", {"parent": n, "cycle": ""}, "*why*") for n in ("a", "b")]
    assert [v.version for v in versions] == ["1", "2"]
    assert registry.versions() == versions == [registry.version("1"), registry.version("2")]
    assert versions[1].source == "s3://b/checkpoints/b" and versions[1].tags == {"parent": "b", "cycle": ""}


def test_versions_on_several_pages_are_in_order(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.registry.client.PAGE", 4)
    for number in range(11):
        registry.create_version(f"s3://b/{number}", {})
    assert [v.version for v in registry.versions()] == [str(number + 1) for number in range(11)]


def test_aliases_experiment_and_previous_version_are_read_together(registry: Registry) -> None:
    for name in ("a", "b"):
        registry.create_version(f"s3://b/{name}", {})
    registry.set_alias(CHAMPION, "1")
    registry.set_alias(CHALLENGER, "2")
    registry.set_experiment(EXPERIMENT)
    registry.set_tag(PREVIOUS_TAG, "1")
    assert registry.aliases() == Aliases("1", "2", EXPERIMENT, "1")
    registry.set_alias(CHAMPION, "2")
    registry.delete_alias(CHALLENGER)
    registry.delete_alias(CHALLENGER)
    registry.set_experiment(None)
    assert registry.aliases() == Aliases("2", None, None, "1")


def test_a_long_record_fits_into_a_tag(registry: Registry) -> None:
    """That of PostgreSQL's schema: the stack's SQLite takes any."""
    stages = [Stage(name="anchor", share=0.5, started=1.5 + n, reason=f"version {n} is champion {n * 7919}") for n in range(80)]
    long = EXPERIMENT.model_copy(update={"stages": tuple(stages)})
    assert len(long.model_dump_json()) > MOST_TAG
    registry.set_anchor(long)
    registry.set_look(Decision(experiment=long, verdict=Verdict(verdict="undecided", reason=""), decided=2.0, by="gate"))
    found = registry.last_look()
    assert registry.aliases().anchor == long and found and found.experiment == long
    tags = [tag["value"] for tag in (registry._model() or {})["tags"]]
    assert max(map(len, tags)) <= MOST_TAG


def test_the_model_says_what_it_is_and_keeps_what_people_wrote(registry: Registry) -> None:
    def described() -> str:
        return registry._call("GET", "registered-models/get", params={"name": registry.model})["registered_model"]["description"]

    assert described() == DESCRIPTION and len(DESCRIPTION) < MOST_DESCRIPTION
    registry._call("PATCH", "registered-models/update", json={"name": registry.model, "description": "Ours."})
    registry.ensure_model()
    assert described() == "Ours."


def test_a_versions_description_is_replaced_and_cut_to_what_mlflow_stores(registry: Registry) -> None:
    registry.create_version("s3://b/a", {}, "first")
    registry.describe_version("1", "x" * (MOST_DESCRIPTION + 1))
    found = registry._call("GET", "model-versions/get", params={"name": registry.model, "version": "1"})
    assert found["model_version"]["description"] == "x" * MOST_DESCRIPTION


def test_aliased_returns_the_versions_of_all_aliases(registry: Registry) -> None:
    assert registry.aliased() == frozenset()
    for name in ("a", "b", "c"):
        registry.create_version(f"s3://b/{name}", {})
    registry.set_alias(CHAMPION, "1")
    registry.set_alias("of-a-person", "3")
    assert registry.aliased() == {"1", "3"}


def test_a_version_tag_is_stored(registry: Registry) -> None:
    registry.create_version("s3://b/a", {})
    registry.set_version_tag("1", "judge", "0.5")
    assert registry.version("1").tags == {"judge": "0.5"}


def test_an_unknown_version_is_an_error_with_status_404(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="404"):
        registry.version("7")


def test_the_base_model_is_the_first_champion(storage: Stack) -> None:
    registry = Registry.connect(storage.settings.registry)
    champion = registry.aliases().champion
    assert champion == "1"
    base = registry.version(champion)
    assert base.source == f"s3://{storage.settings.store.bucket}/checkpoints/base" and base.tags["parent"] == ""


def test_the_error_for_an_unavailable_registry_names_the_next_step() -> None:
    with pytest.raises(RegistryError, match="tabloop status"):
        Registry.connect(RegistrySettings(uri="http://127.0.0.1:9")).aliases()


def test_a_wrong_password_says_which_settings(storage: Stack) -> None:
    wrong = storage.settings.registry.model_copy(update={"password": SecretStr("wrong")})
    with pytest.raises(RegistryError, match=r"HTTP 401: registry\.username and registry\.password, or registry\.token"):
        Registry.connect(wrong).aliases()


def test_a_registry_that_is_down_is_named_without_the_credentials_of_its_url() -> None:
    with pytest.raises(RegistryError) as error:
        Registry.connect(RegistrySettings(uri="http://user:s3cr3t@127.0.0.1:9")).aliases()
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, None),
        ({"password": "secret"}, "Basic dGFibG9vcDpzZWNyZXQ="),
        ({"password": "secret", "username": "ada"}, "Basic YWRhOnNlY3JldA=="),
        ({"password": "secret", "token": "t"}, "Bearer t"),
    ],
    ids=str,
)
def test_the_registrys_credential_is_sent_in_a_header(given: dict[str, str], sent: str | None) -> None:
    settings = RegistrySettings(**given)
    assert authorization.of_registry(settings).get("Authorization") == sent
    variables = authorization.mlflow_variables(settings)
    assert set(variables) == {None: set(), "Bearer t": {"MLFLOW_TRACKING_TOKEN"}}.get(
        sent, {"MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"}
    )


def test_the_error_for_an_unsuccessful_response_shows_it() -> None:
    http = httpx.Client(base_url="http://m", transport=httpx.MockTransport(lambda _: httpx.Response(500, text="broken")))
    with pytest.raises(RegistryError, match="HTTP 500 with 'broken': expected MLflow's JSON"):
        Registry(http, "m").aliases()
