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
from evals.docs.app import describe
from infra.registry.client import Registry
from infra.settings import LOCAL, ROOT, Settings, load
from infra.stack import orchestration
from infra.stack.parts import clients
from tests.documented import Command, commands, commands_of
from tests.stack import Stack

WITHOUT_SERVERS = (
    r"make( help)?",
    r"python -m tasks\.evaluation\.heldout",
    r"python -m tasks.trainer.memory.fit --model infra/base_model .*",
    r"python -m infra\.identity .*",
    r"python -m serving\.access .*",
    r"python -m [\w.]+ --help",
)
"""Commands that need no server."""
WITH_STACK = (
    r"make status",
    r"make try",
    r"make promote( VERSION=3)?",
    r"make rollback",
    r"python -m infra\.stack status",
    r"python -m infra\.stack\.automations",
    r"python -m tasks\.offline .+",
    r"python -m tasks\.labels\.explain .*",
    r"python -m tasks\.experiments\.planning\.planner",
    r"python -m tasks\.experiments (history|explain VERSION|recompute ID|export ID)",
    r"prefect --no-prompt deploy --all",
    r"prefect deployment run (promote|rollback|forget|retention|compaction)/.*",
    r"curl --fail (?!-u ).*",
    r"python -m infra\.stack\.bootstrap",
)
"""Commands that need the servers of `make up`."""
NOT_RUN = {
    r"(GPU=1 )?make setup( PYTHON=.*)?|make requirements": "installs or resolves packages, as `make test` on a clean clone does",
    r"make (test|coverage).*|(KILLS=\d+ )?pytest .*": "runs the tests themselves",
    r"make (up|down)|python -m infra\.stack (up|down|restart) .*|.*make up": "tests/infra/stack starts and stops parts",
    r"make down && rm -rf var": "removes the data of the local stack",
    r"make audit": "asks an advisory database; tests/infra/test_requirements.py runs its parts",
    r"make demo.*|make base.*|make bench.*|make check": "takes minutes; tests/evals and the trainer's tests run the parts",
    r"make docs": "installs MkDocs; tests/evals/docs/test_docs.py builds the site where it is installed",
    r"make promote VERSION=3 DRY_RUN=1": "the version that is promoted before cannot be promoted again; tests/flows run dry runs",
    r"prefect deployment run cycle/cycle": "trains; tests/flows runs the flow",
    r"python -m evals\.(bench(\.[\w.]+)?|compare|demo|developers|base_model\.\w+|studies\.(?!judged)[\w.]+)( (?!--help$).*)?": (
        "takes minutes; tests/evals runs the parts"
    ),
    r"python -m evals\.demo\.screens": "needs a finished demo and a browser; tests/evals/test_screens.py takes pictures",
    r"python -m tasks\.evaluation\.checkpoint( .*)?": "takes minutes; tests/tasks/evaluation runs the parts",
    r"(TABLOOP_\S+ )?python -m tasks\.trainer\.\w+( .*)?": "takes minutes; tests/tasks runs the parts",
    r"(TABLOOP_\S+ )?python -m evals\.studies\.judged( .*)?": "takes minutes; tests/evals/studies/judged runs the parts",
    r"python -m (serving|serving\.engine)( .*)?": "serves until it is stopped; `make up` starts it",
    r"python -m flows\.\w+": "trains; tests/flows runs the flows",
    r"python -m (tasks\.offline)": "needs a file; the full form is run",
    r"prefect deploy --all": "asks questions at a terminal; `prefect --no-prompt deploy --all` is run",
    r"prefect (server|worker) start.*": "serves until it is stopped; `make up` starts it",
    r"torchrun .*": "needs a job's file; tests/tasks/trainer runs it",
    r"(\.venv/bin/)?python -m dask .*": "serves until it is stopped; tests/flows/test_dask.py starts it",
    r"(VLLM_\S+ )?vllm serve.*": "needs a model's directory; tests/serving/slots/test_external_vllm.py starts it",
    r"curl --fail -u admin .*": "needs MLflow's accounts; tests/test_loop.py makes two with it",
    r"mlflow server .*": "serves until it is stopped; tests/test_loop.py starts it on PostgreSQL",
}
"""Commands that are not run, with the reason."""
PLACEHOLDERS = {"NAME": "ada", "HASH": "0" * 32, r"\bID\b": "cmpl-0", r"\bVERSION\b(?!=)": "1", r"\bFILE\b": "autocomplete.jsonl"}
EXIT_CODES: Mapping[str, tuple[int, ...]] = {
    "python -m tasks.labels.explain ID": (1,),
    "python -m tasks.experiments.planning.planner": (0, 1),
    "python -m tasks.experiments recompute ID": (1,),
    "python -m tasks.experiments export ID": (1,),
}
"""Expected exit codes other than 0: no cycle has collected this request; nobody has sent requests to plan from; no such test."""

COMMANDS = commands()


def matches(command: Command, patterns: tuple[str, ...]) -> bool:
    return any(re.fullmatch(pattern, command.text) for pattern in patterns)


def run(command: str, folder: Path, environment: Mapping[str, str], values: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run a command in the repository's root, with values for its placeholders and the virtual environment first on the PATH."""
    filled = command
    for placeholder, value in {**PLACEHOLDERS, **values}.items():
        filled = re.sub(placeholder, value, filled)
    filled = filled.replace("autocomplete.jsonl", str(folder / "autocomplete.jsonl"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, **environment, "PATH": path, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(filled, shell=True, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode in EXIT_CODES.get(command, (0,)), f"{filled}\n{result.stdout}\n{result.stderr}"


def addresses_and_token(settings: Settings) -> dict[str, str]:
    """Return this stack's addresses of the two ports in place of the default ones, and the token of editors."""
    serving = settings.serving
    assert serving.token
    ports = {r"127\.0\.0\.1:8081": serving.port, r"127\.0\.0\.1:8082": serving.feedback_port}
    return {default: f"127.0.0.1:{port}" for default, port in ports.items()} | {r"\bTOKEN\b": serving.token.get_secret_value()}


def register_versions(stack: Stack, count: int) -> None:
    """Register the base model again until the registry has so many versions."""
    registry = Registry.connect(stack.settings.registry)
    for _ in range(count - len(registry.versions())):
        registry.create_version(registry.version("1").source, {"parent": "1", "cycle": ""})


def test_every_command_is_run_or_has_a_reason_not_to() -> None:
    patterns = (*WITHOUT_SERVERS, *WITH_STACK, *NOT_RUN)
    assert [f"{command.page}: {command.text}" for command in COMMANDS if not matches(command, patterns)] == []


async def test_every_command_of_a_generated_page_is_one_of_these_or_the_beginning_of_one() -> None:
    for path, text in site.generated(ROOT, await describe(load(LOCAL, {}))).items():
        named = [Command(each, path) for each in commands_of(text) if not any(c.text.startswith(each) for c in COMMANDS)]
        assert [command for command in named if not matches(command, (*WITHOUT_SERVERS, *WITH_STACK, *NOT_RUN))] == []


def test_the_readme_contains_the_main_commands() -> None:
    texts = {command.text for command in COMMANDS if command.page == "README.md"}
    assert {"make demo", "make test", "make setup"} <= texts


@pytest.mark.parametrize("text", sorted({command.text for command in COMMANDS if matches(command, WITHOUT_SERVERS)}))
def test_a_command_without_servers_succeeds(text: str, tmp_path: Path) -> None:
    run(text, tmp_path, {"TABLOOP_SERVING__USER_SECRET": "of the tests"})


@pytest.mark.stack
@pytest.mark.timeout(1200)
@pytest.mark.timing(reason="Prefect's server on SQLite answers late on a busy machine")
async def test_commands_with_the_stack_succeed(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "autocomplete.jsonl").write_text("")
    register_versions(stack, 3)
    async with Orchestration(stack.settings.orchestration) as prefect:
        for deployment in ("cycle", "experiment"):
            await prefect.pause(deployment, True)
        for text in sorted({command.text for command in COMMANDS if matches(command, WITH_STACK)}):
            run(text, tmp_path, clients(stack.settings), addresses_and_token(stack.settings))
    orchestration.set_schedules(stack.settings, paused=True)  # one of the commands deploys again
