"""Control the local stack: python -m infra.stack up [PART...] | down | status | restart PART | env"""

import argparse
import shlex
import sys
from urllib.parse import urlsplit

from pydantic import SecretStr

from infra import settings as settings_
from infra.http import login
from infra.registry.client import RegistryError
from infra.settings import Settings, SettingsError
from infra.stack import control
from infra.stack.parts import clients
from infra.stack.prefect_api import DeployError
from infra.stack.seed import NoBaseModel

USERS_ERRORS = (control.StackError, SettingsError, NoBaseModel, DeployError, RegistryError)


def main(arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", help="start every stopped part and wait until all are ready")
    start.add_argument("parts", nargs="*", help="parts to start; none: all")
    start.add_argument("--paused", action="store_true", help="leave the schedules of the deployments paused")
    commands.add_parser("down", help="stop every part")
    commands.add_parser("status", help="show every part's state; exits 3 if one is not ready")
    commands.add_parser("restart", help="stop and start one part").add_argument("part")
    commands.add_parser("env", help='print variables for a shell: eval "$(python -m infra.stack env)"')
    options = parser.parse_args(arguments)
    try:
        if options.command == "up":
            print_addresses(control.up(options.parts, paused=options.paused))
        elif options.command == "down":
            control.down()
        elif options.command == "restart":
            control.restart(options.part)
        elif options.command == "env":
            print_environment(settings_.load())
        else:
            return status()
    except USERS_ERRORS as error:
        print(f"\nstack: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstack: interrupted", file=sys.stderr)
        return 130
    return 0


def status() -> int:
    """Print every part's state; return 3 if one is not ready, else 0."""
    rows = control.status()
    print(f"{'part':<10} {'state':<9} {'ready':<6} {'pid':>7} {'up':>8}  address / log")
    for row in rows:
        ready = "yes" if row.ready else "no"
        print(f"{row.part:<10} {row.state:<9} {ready:<6} {row.pid or '-':>7} {row.seconds:>7.0f}s  {row.address}  {row.log}")
    if all(row.ready for row in rows):
        print_addresses(settings_.load())
        return 0
    not_ready = [row for row in rows if not row.ready]
    if len(not_ready) == len(rows):
        print("\nstack: down; `make up` starts it")
    else:
        print(f"\nstack: not ready: {', '.join(row.part for row in not_ready)}; read the log, then `make up`")
    return 3


def print_environment(settings: Settings) -> None:
    """Print lines for a shell that set the addresses and credentials of Prefect and MLflow."""
    for name, value in clients(settings).items():
        print(f"export {name}={shlex.quote(value)}")


def print_addresses(settings: Settings) -> None:
    """Print the addresses of the stack's services, with login links where a browser needs one."""
    secrets = settings_.path(settings.stack.state) / settings_.SECRETS_NAME
    serving = settings.serving
    links = login_links(settings)
    print(
        f"\n  completions  http://{serving.host}:{serving.port}/v1\n"
        f"  feedback     http://{serving.host}:{serving.feedback_port}\n"
        f"  Prefect      {links['prefect']}\n"
        f"  MLflow       {links['mlflow']}\n"
        f"  S3           {settings_.masked(settings.store.endpoint or 'AWS')}  (bucket {settings.store.bucket})\n"
        f"  status page  {links['serving']}\n"
        f"  Each link logs one browser in, once, within ten minutes; `make status` prints new ones.\n"
        f'  For a shell: eval "$(python -m infra.stack env)"; all credentials are in {secrets}: '
        "serving.token for editors, serving.admin_token for administrators"
    )


def login_links(settings: Settings) -> dict[str, str]:
    """Return the address of each page, by part: of a server on this machine, a link that logs a browser in."""
    serving, registry, orchestration = settings.serving, settings.registry, settings.orchestration
    password = _text(registry.password)
    host = "127.0.0.1" if serving.host == "0.0.0.0" else serving.host
    return {
        "prefect": _link(orchestration.api.removesuffix("/api"), _text(orchestration.auth_string)),
        "mlflow": _link(registry.uri, password and f"{registry.username}:{password}"),
        "serving": _link(f"http://{host}:{serving.port}/", _text(serving.admin_token)),
    }


def _text(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""


def _link(address: str, credential: str) -> str:
    """Return a login link of a server on this machine, else its plain address."""
    here = urlsplit(address).hostname in settings_.LOOPBACK
    return login.link(address, credential) if here and credential else settings_.masked(address)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
