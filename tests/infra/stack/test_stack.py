"""The local stack: secrets, clear errors, and parts that restart. The whole stack starts once per session (conftest)."""

import fcntl
import json
import os
import signal
import socket
import stat
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from infra import cli
from infra import settings as settings_
from infra.settings import DEMO, PRODUCTION, load
from infra.settings.serving import own_engines
from infra.stack import addresses, control, flow_runs, orchestration, pools, prefect_api, processes, secrets, started, try_it
from infra.stack.parts import clients, environment, parts
from infra.stack.seed import NoBaseModel
from infra.stack.supervision import State, Supervisor
from tests import stack as stack_
from tests.stack import Stack
from tests.tasks.made import NOW, MemoryStore, feedback


def test_secrets_are_generated_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    file = secrets.ensure(tmp_path)
    text = file.read_text()
    assert secrets.ensure(tmp_path).read_text() == text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {name: set(made) for name, made in tomllib.loads(text).items()} == {s: set(n) for s, n in secrets.GENERATED.items()}


def test_of_two_first_starts_at_once_one_alone_generates_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    with (tmp_path / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(control.StackError, match="another `tabloop up` or `tabloop restart` is starting parts of the stack"):
            control.up()
    assert [file.name for file in tmp_path.iterdir()] == ["up.lock"]


def test_a_part_restarts_once_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second stopped the part that the first was starting, and both ended with an error of supervisord."""
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    monkeypatch.setattr(Supervisor, "running", lambda _: True)
    with (tmp_path / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(control.StackError, match="or `tabloop restart` is starting parts of the stack"):
            control.restart("serving")


def test_secrets_of_an_earlier_release_are_kept_and_completed(tmp_path: Path) -> None:
    file = tmp_path / "secrets.toml"
    file.write_text('[store]\naccess_key = "kept"\n')
    made = tomllib.loads(secrets.ensure(tmp_path).read_text())
    assert made["store"]["access_key"] == "kept" and made["store"]["secret_key"] and made["registry"]["password"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_each_credential_is_handed_only_to_the_parts_that_need_it(tmp_path: Path) -> None:
    secrets.ensure(tmp_path)
    settings = load(DEMO, {"TABLOOP_STACK__STATE": str(tmp_path)})
    every = tomllib.loads((tmp_path / "secrets.toml").read_text())
    values = {f"{section}.{name}": value for section, entries in every.items() for name, value in entries.items()}
    shared = " ".join(environment(settings, {}).values())
    assert not [name for name, value in values.items() if value in shared]
    held = {
        part.name: {n for n, value in values.items() if value in " ".join(part.credentials.values())}
        for part in parts(settings).values()
    }
    keys = {"store.access_key", "store.secret_key"}
    assert held == {
        "s3": keys,
        "mlflow": keys | {"registry.password"},
        "postgresql": set(),
        "prefect": {"orchestration.auth_string"},
        "worker": {"registry.password", "orchestration.auth_string"},
        **{name: set() for name in ("engine-0", "engine-1", "evaluation", "serving")},  # they read the file
    }


def test_a_shell_gets_the_credentials_of_prefect_and_mlflow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets.ensure(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
        assert cli.main(["env"]) == 0
        names = [line.split("=")[0] for line in capsys.readouterr().out.splitlines()]
        assert names == [f"export {name}" for name in clients(load())] and len(names) == 7
        print(addresses.described(load()))
        made = [
            value for entries in tomllib.loads((tmp_path / "secrets.toml").read_text()).values() for value in entries.values()
        ]
        printed = capsys.readouterr().out
        assert printed.count("/?login#") == 3 and not [value for value in made if value in printed]


def test_every_cache_profile_and_database_is_below_the_state_directory(tmp_path: Path) -> None:
    secrets.ensure(tmp_path)
    settings = load(DEMO, {"TABLOOP_STACK__STATE": str(tmp_path)})
    variables = environment(settings, {"HOME": "/home/someone", "PATH": "/bin", "PREFECT_HOME": "/home/someone/.prefect"})
    assert not [name for name, value in variables.items() if "/home/someone" in value]
    assert variables["PREFECT_HOME"].startswith(str(tmp_path)) and variables["HOME"].startswith(str(tmp_path))


def test_a_socket_of_another_user_is_not_supervisord(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(supervisor.socket))
        listener.listen()
        monkeypatch.setattr("infra.stack.supervision.os.getuid", lambda: os.stat(tmp_path).st_uid + 1)
        assert supervisor.states() == {} and not supervisor.running(), "nothing is asked of it"


def test_no_secret_is_on_a_command_line(tmp_path: Path) -> None:
    secrets.ensure(tmp_path)
    settings = load(DEMO, {"TABLOOP_STACK__STATE": str(tmp_path)})
    command_lines = " ".join(word for part in parts(settings).values() for word in part.command)
    values = [value for section in tomllib.loads((tmp_path / "secrets.toml").read_text()).values() for value in section.values()]
    assert len(values) == 10 and not [value for value in values if value in command_lines]


def test_an_unresponsive_prefect_is_an_error_with_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(DEMO, {"TABLOOP_STACK__STATE": str(tmp_path)})
    monkeypatch.setattr(orchestration, "READY_SECONDS", 0.01)
    with pytest.raises(prefect_api.DeployError, match=r"(?s)did not end within 0.01 s; .*next: `tabloop up` again"):
        orchestration.deploy(settings, environment(settings, dict(os.environ)))


def test_only_parts_with_a_loopback_address_run_on_this_machine() -> None:
    assert list(parts(load(DEMO, {}))) == [
        *("s3", "mlflow", "postgresql", "prefect", "worker", "engine-0", "engine-1", "evaluation", "serving"),
    ]
    assert not {"s3", "mlflow", "prefect", "worker"} & set(parts(load(PRODUCTION, {})))


def test_a_server_that_already_runs_is_not_started() -> None:
    external = {"kind": "external", "url": "http://127.0.0.1:8000/v1", "model": "m"}
    local_parts = parts(load(DEMO, {"TABLOOP_SERVING__ENGINES": json.dumps(["http://127.0.0.1:18100", external])}))
    assert "engine-0" in local_parts and "engine-1" not in local_parts


def test_the_error_for_a_missing_base_model_names_the_command_that_creates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stack_.environment_of(tmp_path):
        monkeypatch.setenv("TABLOOP_MODEL__BASE", str(tmp_path / "none"))
        with pytest.raises(NoBaseModel, match="tabloop base"):
            control.up(["s3"])


def test_the_error_for_an_unknown_part_lists_the_parts(tmp_path: Path) -> None:
    with stack_.environment_of(tmp_path), pytest.raises(control.StackError, match="no such part; the parts are s3, mlflow"):
        control.up(["s4"])


def test_the_error_for_a_port_in_use_names_the_part_the_process_and_the_setting(tmp_path: Path) -> None:
    with stack_.environment_of(tmp_path), socket.socket() as listener:
        port = int((load().store.endpoint or "").rsplit(":")[-1])
        listener.bind(("127.0.0.1", port))
        listener.listen()
        with pytest.raises(
            control.StackError, match=rf"s3: port {port} is taken by process {os.getpid()} .*store\.endpoint.*tabloop up"
        ):
            control.up(["s3"])


def test_a_port_of_two_parts_and_one_kept_for_root_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine on the app's port would count as ready by the app's answer, and start again for ever."""
    with stack_.environment_of(tmp_path), monkeypatch.context() as patch:
        port = own_engines(load().serving.engines[0])[0].rsplit(":")[-1]
        patch.setenv("TABLOOP_SERVING__PORT", port)
        with pytest.raises(control.StackError, match=rf"serving: port {port} is that of engine-0; .*serving\.port"):
            control.up()
        patch.setenv("TABLOOP_SERVING__PORT", "80")
        patch.setattr("socket.socket.bind", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
        with pytest.raises(control.StackError, match=r"serving: port 80 is kept for root; .*above 1023"):
            control.up(["serving"])


def test_the_error_for_a_part_that_ends_names_its_log_and_no_process_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stack_.environment_of(tmp_path):
        monkeypatch.setenv("TABLOOP_STORE__ACCESS_KEY", "two,keys")  # the server ends at once
        monkeypatch.setenv("TABLOOP_STORE__SECRET_KEY", "a secret")
        lines: list[str] = []
        state = settings_.path(load().stack.state)
        with pytest.raises(control.StackError, match=r"(?s)s3: it ended.*logs/s3\.log.*next: "):
            control.up(["s3"], lines.append)
        assert "stopping the parts that were started" in lines
        assert processes.of_stack(state) == []


def test_a_long_state_path_gives_a_socket_path_of_allowed_length(tmp_path: Path) -> None:
    assert len(str(Supervisor(tmp_path / ("x" * 120)).socket)) < 108


def test_down_ends_processes_whose_supervisor_was_killed(tmp_path: Path) -> None:
    with stack_.running(tmp_path, "s3") as stack:
        supervisor = int((stack.state / "supervisord.pid").read_text())
        os.kill(supervisor, signal.SIGKILL)
        _until(lambda: not Supervisor(stack.state).running(), 10)
        assert processes.of_stack(stack.state) != []
        lines: list[str] = []
        control.down(lines.append)
        assert "leftover" in lines[0] and processes.of_stack(stack.state) == []


@pytest.mark.timing(reason="the parts of a whole stack start and answer within seconds")
def test_down_beside_another_down_waits_for_it_and_is_no_error(tmp_path: Path) -> None:
    with stack_.running(tmp_path, "s3") as stack, ThreadPoolExecutor(2) as pool:
        said: list[list[str]] = [[], []]
        with control.stopping(stack.state, said[0].append):  # so that both begin while the stack runs
            downs = [pool.submit(control.down, lines.append) for lines in said]
            _until(lambda: all(said), 60)
            assert all("another command is stopping the stack" in lines[0] for lines in said)
            assert Supervisor(stack.state).running(), "nothing is killed meanwhile"
        for down in downs:
            down.result(60)
        assert all("stack: down" in lines[-1] for lines in said) and processes.of_stack(stack.state) == []


def test_a_supervisor_that_ends_while_its_parts_are_stopped_is_no_error(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    states = {"s3": State("s3", "RUNNING", 1, 0.0)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Supervisor, "states", lambda self: dict([states.popitem()]) if states else {})
        supervisor.stop_together(["s3"])  # its socket is gone
    supervisor.shut_down()


@pytest.mark.stack
@pytest.mark.timing(reason="the parts of a whole stack start and answer within seconds")
def test_a_slot_is_freed_where_its_run_is_dead_or_none_holds_it(orchestrated: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_runs, "BUSY_POLL_SECONDS", 0.1)
    # This test's work pool has no worker.
    orchestration_settings = orchestrated.settings.orchestration.model_copy(update={"work_pool": "without-a-worker"})
    settings = orchestrated.settings.model_copy(update={"orchestration": orchestration_settings})
    pools.ensure(settings)
    with prefect_api.connect(settings) as api:

        def post(path: str, body: dict[str, Any]) -> Any:
            return api.post(path, json=body).raise_for_status().json()

        flow = post("/flows/", {"name": "made-up"})["id"]
        deployment_body = {
            "name": "made-up",
            "flow_id": flow,
            "work_pool_name": settings.orchestration.work_pool,
            "concurrency_limit": 1,
            "concurrency_options": {"collision_strategy": "CANCEL_NEW"},
        }
        deployment = post("/deployments/", deployment_body)["id"]

        def begin_run() -> tuple[str, str]:
            run = post(f"/deployments/{deployment}/create_flow_run", {})["id"]
            status = post(f"/flow_runs/{run}/set_state", {"state": {"type": "PENDING"}})["status"]
            if status == "ACCEPT":
                post(f"/flow_runs/{run}/set_state", {"state": {"type": "RUNNING"}})
            return run, status

        first, status = begin_run()
        assert status == "ACCEPT" and begin_run()[1] == "REJECT"
        assert not flow_runs.freed(api, "made-up") and first in flow_runs.holders(api, "made-up")[0]
        assert orchestration.end_dead_runs(settings) == 1
        assert api.get(f"/flow_runs/{first}").json()["state"]["type"] == "CRASHED"
        assert begin_run()[1] == "ACCEPT"
        orchestration.end_dead_runs(settings)
        lost = {"names": [f"deployment:{deployment}"], "slots": 1, "mode": "concurrency"}
        post("/v2/concurrency_limits/increment", lost)
        assert begin_run()[1] == "REJECT" and flow_runs.freed(api, "made-up")
        assert begin_run()[1] == "ACCEPT"
        orchestration.end_dead_runs(settings)
        for path in (f"/deployments/{deployment}", f"/flows/{flow}", f"/work_pools/{settings.orchestration.work_pool}"):
            api.delete(path).raise_for_status()


@pytest.fixture(scope="module")
def pids_before_second_up(stack: Stack) -> dict[str, int]:
    """The parts' process ids before a second `up --paused`."""
    previous_pids = _pids()
    orchestration.set_schedules(stack.settings, paused=False)
    control.up(say=lambda _: None, paused=True)
    return previous_pids


@pytest.mark.stack
def test_a_second_up_restarts_no_part(pids_before_second_up: dict[str, int]) -> None:
    assert _pids() == pids_before_second_up


@pytest.mark.stack
def test_up_can_leave_the_schedules_paused(stack: Stack, pids_before_second_up: dict[str, int]) -> None:
    with prefect_api.connect(stack.settings) as api:
        deployments = [d for d in api.post("/deployments/filter", json={}).json() if d["schedules"]]
        assert {d["name"] for d in deployments} == {"cycle", "experiment", "retention", "compaction"}
        assert all(d["paused"] for d in deployments)
        orchestration.set_schedules(stack.settings, paused=False)
        assert not any(d["paused"] for d in api.post("/deployments/filter", json={}).json())
        orchestration.set_schedules(stack.settings, paused=True)


@pytest.mark.stack
def test_up_with_changed_settings_is_refused_while_the_stack_runs(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLOOP_SERVING__SAMPLING__TEMPERATURE", "0.5")
    with pytest.raises(
        started.OtherSettings, match=r"serving.sampling.temperature: 0.1 -> 0.5 \(restart: serving\)\n.*tabloop restart"
    ):
        control.up()


@pytest.mark.stack
@pytest.mark.timing(reason="the parts of a whole stack start and answer within seconds")
def test_try_it_passes_every_check(stack: Stack) -> None:
    lines: list[str] = []
    assert try_it.run(stack.settings, lines.append) == 0, "\n".join(lines)
    assert sum(line.startswith("  ok") for line in lines) == 4


@pytest.mark.stack
def test_try_it_explains_a_refused_token(stack: Stack) -> None:
    serving = stack.settings.serving.model_copy(update={"token": SecretStr("another")})
    lines: list[str] = []
    assert try_it.run(stack.settings.model_copy(update={"serving": serving}), lines.append) == 1
    assert "the token was refused" in lines[-1] and "tabloop up" in lines[-1]


KILLED_PARTS = ("s3", "mlflow", "postgresql", "prefect", "worker", "engine-1", "serving")


@pytest.fixture(scope="module")
def pids_before_kill(stack: Stack) -> Iterator[dict[str, int]]:
    """The process ids of parts before all of them are killed at once; the teardown waits until they are ready again."""
    previous_pids = _pids()
    for name in KILLED_PARTS:
        os.kill(previous_pids[name], signal.SIGKILL)
    yield previous_pids
    for name in KILLED_PARTS:
        _until(partial(_is_restarted, name, previous_pids), control.READY_SECONDS)


@pytest.mark.stack
@pytest.mark.parametrize("name", KILLED_PARTS)
@pytest.mark.timing(reason="the parts of a whole stack start and answer within seconds")
def test_a_killed_part_is_restarted(stack: Stack, pids_before_kill: dict[str, int], name: str) -> None:
    _until(partial(_is_restarted, name, pids_before_kill), control.READY_SECONDS)


def test_try_it_explains_that_nothing_listens(tmp_path: Path) -> None:
    with stack_.environment_of(tmp_path):
        lines: list[str] = []
        assert try_it.run(load(), lines.append) == 1
        assert "nothing listens" in lines[-1] and "tabloop up" in lines[-1]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ('data: {"error": {"message": "the engine ended"}}\n\ndata: [DONE]\n\n', "the engine ended"),
        ('data: {"choices": []}\n\n', "another program uses the port"),
        ("data: <html>\n\n", "another program uses the port"),
        ("<!doctype html>", "another program uses the port"),
    ],
)
def test_try_it_explains_a_stream_that_fails(events: str, said: str) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=events))
    with httpx.Client(transport=transport) as client, pytest.raises(try_it.StepFailed, match=said):
        try_it.complete(client, "http://app", "m", lambda line: None)


@pytest.mark.parametrize("opened", [-0.5, 0.5], ids=("before midnight", "after midnight"))
def test_try_it_finds_an_event_whose_day_has_ended(opened: float) -> None:
    midnight, store = NOW - NOW % 86_400, MemoryStore()
    before, name = datetime.fromtimestamp(midnight + opened, UTC), "20270115T000000.000000-0"
    shipped = f"events/feedback/date={before:%Y-%m-%d}/hour={before:%H}/{name}.parquet"
    store.put_rows(shipped, [feedback(client_id="try")])
    read = set[str]()
    assert try_it.find_event(store, "another", midnight - 60, midnight + 2, read) == "" and read == {shipped}
    assert try_it.find_event(store, "try", midnight - 60, midnight + 2, set()) == shipped
    assert try_it.find_event(store, "try", midnight - 60, midnight + 2, read) == "", "an object is read once"


def _pids() -> dict[str, int]:
    return {row.part: row.pid for row in control.status()}


def _is_restarted(name: str, previous_pids: dict[str, int]) -> bool:
    """Return whether a part is ready with another process than before."""
    row = next(row for row in control.status() if row.part == name)
    return row.ready and row.pid != previous_pids[name]


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.3)
