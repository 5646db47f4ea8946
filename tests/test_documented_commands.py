"""Every command of the READMEs and the docs is run as it is written, or named here with what it needs."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from evals.demo.orchestration import Orchestration
from infra.settings import ROOT
from tests.documented import Command, commands
from tests.stack import Stack

ALONE = (
    r"make",
    r"python -m infra\.identity .*",
    r"python -m serving\.access .*",
    r"python -m [\w.]+ --help",
)
"""Commands that need no server."""
WITH_THE_STACK = (
    r"make status",
    r"make try",
    r"python -m infra\.stack status",
    r"python -m tasks\.offline .+",
    r"python -m tasks\.labels\.explain .*",
    r"prefect --no-prompt deploy --all",
    r"prefect deployment run .*",
)
"""Commands that talk to the servers of `make up`."""
NOT_HERE = {
    r"(GPU=1 )?make setup|make requirements": "installs or resolves packages; `make test` on a clean clone begins with it",
    r"make test.*|(KILLS=\d+ )?pytest .*": "is this run of the tests, or a part of it",
    r"make (up|down)|python -m infra\.stack (up|down|restart) .*|.*make up": "tests/infra/test_stack.py starts and stops parts",
    r"make down && rm -rf var": "removes the data of the local stack",
    r"make demo.*|make base.*|make bench.*|make check": "takes minutes; tests/evals and the trainer's tests run the parts",
    r"make docs": "builds pages, which needs packages that only it installs",
    r"python -m evals\.(bench|demo|evaluation|developers)( .*)?": "takes minutes; tests/evals runs the parts",
    r"(TABLOOP_\S+ )?python -m tasks\.([\w.]*bench_\w+|groups|trainer\.\w+)( .*)?": "takes minutes; tests/tasks runs the parts",
    r"python -m (serving|serving\.engine)( .*)?": "serves until it is stopped; `make up` starts it",
    r"python -m flows\.\w+": "trains; tests/flows runs the flows",
    r"python -m (tasks\.offline)": "wants a file, which the full form names",
    r"prefect deploy --all": "asks questions at a terminal; `prefect --no-prompt deploy --all` is run",
    r"prefect (server|worker) start.*": "serves until it is stopped; `make up` starts it",
    r"torchrun .*": "wants a job's file; tests/tasks/trainer runs it",
    r"(\.venv/bin/)?python -m dask .*": "serves until it is stopped; tests/flows/test_dask.py starts it",
    r"(VLLM_\S+ )?vllm serve.*": "wants a model's directory; tests/serving/slots/test_external_vllm.py starts it",
    r"mlflow server .*": "wants PostgreSQL and a bucket of AWS",
}
"""Commands that are not run, with the reason."""
PLACEHOLDERS = {"NAME": "ada", "HASH": "0" * 32, r"\bID\b": "cmpl-0", r"\bFILE\b": "autocomplete.jsonl"}
EXIT_CODES: Mapping[str, tuple[int, ...]] = {"python -m tasks.labels.explain ID": (1,)}
"""Other codes than 0: no cycle has seen this request."""

EVERY = commands()


def matches(command: Command, patterns: tuple[str, ...]) -> bool:
    return any(re.fullmatch(pattern, command.text) for pattern in patterns)


def run(command: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Run a command in the repository's root, its placeholders filled in, with the virtual environment first on the PATH."""
    filled = command
    for placeholder, value in PLACEHOLDERS.items():
        filled = re.sub(placeholder, value, filled)
    filled = filled.replace("autocomplete.jsonl", str(folder / "autocomplete.jsonl"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, **environment, "PATH": path, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(filled, shell=True, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode in EXIT_CODES.get(command, (0,)), f"{filled}\n{ended.stdout}\n{ended.stderr}"


def test_every_command_is_run_or_says_why_not() -> None:
    patterns = (*ALONE, *WITH_THE_STACK, *NOT_HERE)
    assert [f"{command.page}: {command.text}" for command in EVERY if not matches(command, patterns)] == []


def test_the_readmes_name_commands() -> None:
    texts = {command.text for command in EVERY if command.page == "README.md"}
    assert {"make demo", "make test", "prefect deployment run promote/promote --param version=3"} <= texts


@pytest.mark.parametrize("text", sorted({command.text for command in EVERY if matches(command, ALONE)}))
def test_a_command_that_needs_no_server(text: str, tmp_path: Path) -> None:
    run(text, tmp_path, {"TABLOOP_SERVING__USER_SECRET": "of the tests"})


@pytest.mark.stack
@pytest.mark.timeout(300)
async def test_commands_that_talk_to_the_stack(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "autocomplete.jsonl").write_text("")
    api = stack.settings.orchestration.api
    async with Orchestration(api) as prefect:
        for deployment in ("cycle", "experiment"):
            await prefect.pause(deployment, True)
        for text in sorted({command.text for command in EVERY if matches(command, WITH_THE_STACK)}):
            run(text, tmp_path, {"PREFECT_API_URL": api})
        for deployment in ("cycle", "experiment"):
            await prefect.pause(deployment, False)
