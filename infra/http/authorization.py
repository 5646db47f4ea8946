"""The Authorization headers of tabloop's clients of MLflow and Prefect."""

import base64

from infra.settings.schema import Orchestration, Registry


def basic(credential: str) -> str:
    """Return the header's value for a credential "USER:PASSWORD" (RFC 7617)."""
    return "Basic " + base64.b64encode(credential.encode()).decode()


def of_registry(settings: Registry) -> dict[str, str]:
    """Return the headers of a request to MLflow, from the token or else the password; empty without both."""
    if settings.token:
        return {"Authorization": f"Bearer {settings.token.get_secret_value()}"}
    if settings.password:
        return {"Authorization": basic(f"{settings.username}:{settings.password.get_secret_value()}")}
    return {}


def of_prefect(settings: Orchestration) -> dict[str, str]:
    """Return the headers of a request to Prefect's API; none without a credential."""
    return {"Authorization": basic(settings.auth_string.get_secret_value())} if settings.auth_string else {}


def mlflow_variables(settings: Registry) -> dict[str, str]:
    """Return the environment variables from which MLflow's own client takes its credentials."""
    if settings.token:
        return {"MLFLOW_TRACKING_TOKEN": settings.token.get_secret_value()}
    if settings.password:
        return {
            "MLFLOW_TRACKING_USERNAME": settings.username,
            "MLFLOW_TRACKING_PASSWORD": settings.password.get_secret_value(),
        }
    return {}
