"""Run every command of the READMEs and the docs as written, or state here why it is not run."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from evals.demo.orchestration import Orchestration
from evals.docs import site
from evals.docs.site import describe
from infra import cli
from infra.registry.client import Registry
from infra.settings import DEMO, ROOT, Settings, load
from infra.stack import orchestration
from infra.stack.parts import clients
from tests.documented import Command, commands, commands_of
from tests.shim import shim
from tests.stack import Stack

WITHOUT_SERVERS = (
    r"make( help)?",
    r"tabloop (\w+ )?--help",
    r"tabloop sets",
    r"tabloop memory --model infra/base_model .*",
    r"tabloop plan capacity --requests 10000/day.*",
    r"tabloop (hash|token) .*",
    r"tabloop settings show",
)
"""Commands that need no server."""
WITH_STACK = (
    r"make (status|try|promote|rollback)",
    r"tabloop (status|try|history|plan|bootstrap|automations|retention)",
    r"tabloop (requests --user NAME|settings diff)",
    r"tabloop explain (VERSION|ID)",
    r"tabloop (export|recompute) ID",
    r"tabloop promote (2|3( --dry-run)?)",
    r"tabloop rollback( 3)?",
    r"tabloop loop (pause|resume)",
    r"tabloop forget .*",
    r"tabloop exec prefect .*",
    r"curl --fail (?!-u ).*",
)
"""Commands that need the servers of `tabloop up`."""
FIRST, LAST = r".* --dry-run", r"tabloop exec prefect deployment run .*"
"""Commands run before and after the others: a version that is promoted is not promoted again; Prefect's command does not wait."""
NOT_RUN = {
    r"(GPU=1 )?make setup( PYTHON=.*| GPU=)?|make requirements": "installs or resolves packages, as `make test` does on a clone",
    r"make (test|coverage).*|(KILLS=\d+ )?pytest .*": "runs the tests themselves",
    r"make (up|down)|tabloop (up|down|restart)( --(settings|model) [\w.]+)?( [\w.]+)?": "tests/infra/stack starts and stops them",
    r"tabloop (logs PART|settings explain KEY|cycle --watch|version|--settings FILE COMMAND)": "tests/infra runs the parts",
    r"tabloop down && rm -rf var": "removes the data of the local stack",
    r"make audit": "asks an advisory database; tests/infra/test_requirements.py runs its parts",
    r"(make|tabloop) (demo|base|bench)( .*)?|make check": "takes minutes; tests/evals and the trainer's tests run the parts",
    r"make docs": "installs MkDocs; tests/evals/docs/test_docs.py builds the site where it is installed",
    r"tabloop reject.*": "needs a running A/B test; tests/tasks/experiments/test_pausing.py ends one",
    r"tabloop cycle": "trains; tests/flows runs the flow",
    r"tabloop invite( .*)?": "makes a token once; tests/serving/access/test_invite.py runs it against an app",
    r"tabloop learn( .*)?": "trains; tests/flows/test_own_code.py runs the flow",
    r"tabloop (compare|evaluate|developers) (?!--help$).+": "takes minutes; tests/evals and tests/tasks/evaluation run the parts",
    r"tabloop (--settings \S+ )?study .*": "takes minutes; tests/evals/studies runs the parts",
    r"tabloop screens( --out infra/docs/assets/screens)?": "needs a finished demo and a browser; see tests/evals/test_screens.py",
    r"tabloop (memory( --adapter-rank)?|export|forget|promote VERSION)": "needs arguments; a full form is run",
    r"tabloop (exec( COMMAND\.\.\.)?|NAME --help)": "needs arguments; a full form is run",
    r"tabloop (base fetch|bootstrap --base( FROM)?)": "needs a bucket; tests/infra/stack/test_base_model.py runs their parts",
    r"tabloop (plan|promote VERSION) --project web": "needs a project's own loop; tests/tasks/test_projects.py runs their parts",
    r"tabloop merge( .*)?": "needs an adapter; tests/tasks/trainer/model/test_adapter_files.py merges one",
    r"python -m tasks\.trainer\.(node|worker|pod)": "serves a flow until it ends; tests/tasks/trainer starts it",
    r"python -m (serving|serving\.engine(\.pair)?)( .*)?": "serves until it is stopped; `tabloop up` starts it",
    r"python -m flows\.\w+": "trains; tests/flows runs the flows",
    r"tabloop exec python -m infra\.stack\.worker POOL process NAME": "serves until it ends; tests/test_restored.py starts it",
    r"prefect worker start.*": "serves until it is stopped; `tabloop up` starts it",
    r"(\.venv/bin/)?python -m dask .*": "serves until it is stopped; tests/flows/test_dask.py starts it",
    r"(VLLM_\S+ )?vllm serve.*": "needs a model's directory; tests/serving/slots/test_external_vllm.py starts it",
    r"curl --fail -u admin .*": "needs MLflow's accounts; tests/test_loop.py makes two with it",
    r"mlflow server .*": "serves until it is stopped; tests/test_loop.py starts it on PostgreSQL",
}
"""Commands that are not run, with the reason."""
PATTERNS = (*WITHOUT_SERVERS, *WITH_STACK, *NOT_RUN)
PLACEHOLDERS = {"NAME": "ada", "HASH": "0" * 32, r"\bID\b": "cmpl-0", r"\bVERSION\b": "1", r"\bFILE\b": "tokens.json"}
EXIT_CODES: Mapping[str, tuple[int, ...]] = {
    "tabloop explain ID": (1,),
    "tabloop requests --user NAME": (1,),
    "tabloop plan": (0, 1),
    "tabloop recompute ID": (1,),
    "tabloop export ID": (1,),
}
"""Expected exit codes other than 0: no cycle has collected this request; nobody of this name has sent one; nobody has, to plan
from; no such test."""

COMMANDS = commands()


def matches(command: Command, patterns: tuple[str, ...]) -> bool:
    return any(re.fullmatch(pattern, command.text) for pattern in patterns)


def order(command: str) -> tuple[bool, bool, str]:
    """Return the sort key of a command that needs the servers."""
    return re.fullmatch(LAST, command) is not None, re.fullmatch(FIRST, command) is None, command


def run(command: str, folder: Path, environment: Mapping[str, str], values: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run a command in the repository's root, with values for its placeholders, and this checkout's `tabloop` on the PATH."""
    filled = command
    for placeholder, value in {**PLACEHOLDERS, **values}.items():
        filled = re.sub(placeholder, value, filled)
    filled = filled.replace("tokens.json", str(folder / "tokens.json"))
    path = os.pathsep.join((str(shim(folder / "bin")), str(Path(sys.executable).parent), os.environ["PATH"]))
    variables = {**os.environ, **environment, "PATH": path, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(filled, shell=True, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode in EXIT_CODES.get(command, (0,)), f"{filled}\n{result.stdout}\n{result.stderr}"


def addresses_and_token(settings: Settings) -> dict[str, str]:
    """Return this stack's addresses of the two ports in place of the default ones, and the token of editors."""
    serving = settings.serving
    assert serving.token
    ports = {r"127\.0\.0\.1:8081": serving.port, r"127\.0\.0\.1:8082": serving.feedback_port}
    return {default: f"127.0.0.1:{port}" for default, port in ports.items()} | {r"\bTOKEN\b": serving.token.get_secret_value()}


def new_versions(stack: Stack) -> dict[str, str]:
    """Register the base model twice, and return these versions in place of 2 and 3, and the champion for a rollback to it."""
    registry = Registry.connect(stack.settings.registry)
    source, champion = registry.version("1").source, registry.aliases().champion
    second, third = (registry.create_version(source, {"parent": "1", "cycle": ""}).version for _ in range(2))
    assert champion
    return {r"(?<=promote )2\b": second, r"((?<=promote )|(?<=version=))3\b": third, r"(?<=rollback )3\b": champion}


def test_every_command_is_run_or_has_a_reason_not_to() -> None:
    assert [f"{command.page}: {command.text}" for command in COMMANDS if not matches(command, PATTERNS)] == []


async def test_every_command_of_a_generated_page_is_one_of_these_or_the_beginning_of_one() -> None:
    pages = site.generated(ROOT, await describe(load(DEMO, {})), cli.app)
    generated = [Command(text, path) for path, page in pages.items() for text in commands_of(page)]
    named = [command for command in generated if not any(c.text.startswith(command.text) for c in COMMANDS)]
    assert [command for command in named if not matches(command, PATTERNS)] == []
    unused = [pattern for pattern in PATTERNS if not any(matches(c, (pattern,)) for c in (*COMMANDS, *generated))]
    assert unused == [], "patterns without a command"


def test_the_readme_contains_the_main_commands() -> None:
    texts = {command.text for command in COMMANDS if command.page == "README.md"}
    assert {"make demo", "make test", "make setup", "tabloop up", "tabloop try"} <= texts


@pytest.mark.parametrize("text", sorted({command.text for command in COMMANDS if matches(command, WITHOUT_SERVERS)}))
def test_a_command_without_servers_succeeds(text: str, tmp_path: Path) -> None:
    run(text, tmp_path, {"TABLOOP_SERVING__USER_SECRET": "of the tests"})


@pytest.mark.stack
@pytest.mark.timeout(1200)
@pytest.mark.timing(reason="Prefect's server answers late on a busy machine")
async def test_commands_with_the_stack_succeed(stack: Stack, tmp_path: Path) -> None:
    values = addresses_and_token(stack.settings) | new_versions(stack)
    async with Orchestration(stack.settings.orchestration) as prefect:
        for deployment in ("cycle", "experiment"):
            await prefect.pause(deployment, True)
        for text in sorted({command.text for command in COMMANDS if matches(command, WITH_STACK)}, key=order):
            run(text, tmp_path, clients(stack.settings), values)
    orchestration.set_schedules(stack.settings, paused=True)  # one of the commands deploys again
