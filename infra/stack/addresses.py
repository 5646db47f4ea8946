"""The addresses of the stack's services, as a person reads them."""

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from infra import settings as settings_
from infra.http import login
from infra.settings import Settings


def described(settings: Settings) -> str:
    """Return the addresses of the stack's services, with login links where a browser needs one."""
    secrets = settings_.path(settings.stack.state) / settings_.SECRETS_NAME
    serving = settings.serving
    links = login_links(settings)
    return (
        f"\n  completions  {serving.completions_url}/v1\n"
        f"  feedback     {serving.feedback_url}\n"
        f"  Prefect      {links['prefect']}\n"
        f"  MLflow       {links['mlflow']}\n"
        f"  S3           {settings_.masked(settings.store.endpoint or 'AWS')}  (bucket {settings.store.bucket})\n"
        f"  status page  {links['serving']}\n"
        f"  Each link logs one browser in, once, within ten minutes; `tabloop status` prints new ones.\n"
        f"  `tabloop exec COMMAND` runs Prefect's and MLflow's own commands; all credentials are in {secrets}: "
        "serving.token for editors, serving.admin_token for administrators"
    )


def login_links(settings: Settings, pages: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the address of each part's page: of a server on this machine, a link that logs a browser in.

    Args:
        pages: by part, the path of another page than the first.
    """
    serving, registry, orchestration = settings.serving, settings.registry, settings.orchestration
    password = settings_.revealed(registry.password)
    return {
        "prefect": _link(
            orchestration.api.removesuffix("/api"), settings_.revealed(orchestration.auth_string), pages.get("prefect", "")
        ),
        "mlflow": _link(registry.uri, password and f"{registry.username}:{password}", pages.get("mlflow", "")),
        "serving": _link(serving.completions_url, settings_.revealed(serving.admin_token), pages.get("serving", "")),
    }


def _link(address: str, credential: str, page: str) -> str:
    """Return a login link of a server on this machine, else its plain address."""
    here = urlsplit(address).hostname in settings_.LOOPBACK
    return (
        login.link(address, credential, page) if here and credential else f"{settings_.masked(address).rstrip('/')}{page or '/'}"
    )
