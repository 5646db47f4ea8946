"""The commands up, down, status and restart: start the parts in order and wait until each is ready."""

import fcntl
import http.client
import importlib.util
import os
import socket
import threading
import time
import xmlrpc.client
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from infra import settings as settings_
from infra.settings import Settings
from infra.settings.in_force import Effect
from infra.settings.sources import StartedWith, environment_of_parts, started_with
from infra.stack import files, orchestration, pools, postgresql, processes, secrets, seed, started
from infra.stack.parts import BIN, Part, client_environment, environment, parts
from infra.stack.supervision import Supervisor, sweep, tail

READY_SECONDS = 600.0
"""Seconds to wait for a part to become ready; then the start fails."""

DATABASES = {"prefect": "postgresql"}
"""The database of a part, which starts with it."""
# Stopped after the others, one group after the other: serving ships its spool to the store while it stops.
STOPPED_LAST = (("s3", "mlflow", "prefect"), ("postgresql",))


class StackError(RuntimeError):
    """A part of the stack cannot start; the message names the part, its log and the next command."""


class NoSuchPart(StackError):
    """A name is not that of a part; the message names the parts."""


def say_now(line: str) -> None:
    """Print and flush, so that output to a file appears at once."""
    print(line, flush=True)


@dataclass
class Progress:
    """Reports each finished step with the seconds since the start."""

    say: Callable[[str], None] = say_now
    began: float = field(default_factory=time.monotonic)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Report a step and its duration when the block ends."""
        began = time.monotonic()
        yield
        now = time.monotonic()
        self.say(f"  {now - self.began:6.1f} s  {name:<12} ready (took {now - began:.1f} s)")


def up(only: Collection[str] = (), say: Callable[[str], None] = say_now, *, paused: bool = False) -> Settings:
    """Start the parts that do not run, wait until all are ready, and return the settings including secrets.

    `only` names the parts to start; empty: all. `paused` leaves the deployments' schedules paused.

    Raises:
        StackError: a part cannot start. The parts that this call started are stopped again.
    """
    with files.private():
        given, state = started_with(None, os.environ), settings_.path(settings_.load().stack.state)
        with _lock(state):
            return _up(given, state, only, say, paused=paused)


def _up(given: StartedWith, state: Path, only: Collection[str], say: Callable[[str], None], *, paused: bool) -> Settings:
    secrets.ensure(state)
    postgresql.ensure_password(state)
    settings = settings_.load()
    supervisor = Supervisor(state)
    all_parts = parts(settings)
    if unknown := set(only) - set(all_parts):
        raise NoSuchPart(f"{', '.join(sorted(unknown))}: no such part; the parts are {', '.join(all_parts)}")
    wanted = {*only, *(part for name, part in DATABASES.items() if name in only)}
    selected = {name: part for name, part in all_parts.items() if not only or name in wanted}
    was_up = supervisor.running()
    for line in started.check(state, settings) if was_up else ():
        say(line)
    _check_packages(settings, selected)
    _check_others(state)
    if not was_up and (ended := sweep(state)):
        say(f"ended {ended} process(es) left by a previous run")
    before = {name for name, s in supervisor.states().items() if s.state in ("RUNNING", "STARTING", "BACKOFF")}
    _check_ports([part for name, part in selected.items() if name not in before])
    variables = f" and {', '.join(given.variables)}" if given.variables else ""
    say(f"settings: {given.file}{variables}")
    say(f"stack: {', '.join(selected)}; logs in {state / 'logs'}")
    with started.remember(state, given):
        try:
            supervisor.start(all_parts.values(), _environment(settings))
            started.note(state, settings)
            _start_all(settings, supervisor, selected, Progress(say), paused=paused)
            _close_files(settings)
        except BaseException:
            say("stopping the parts that were started")
            if was_up:
                supervisor.stop_together(set(selected) - before)
            else:
                _stop(supervisor, say)
            raise
    return settings


def _environment(settings: Settings) -> dict[str, str]:
    """Return the environment of the parts, whose settings are those that are remembered: flows read them anew at each run."""
    return environment(settings, environment_of_parts(os.environ, settings.stack.state))


def down(say: Callable[[str], None] = say_now) -> None:
    """Stop every part, and end processes left by previous runs."""
    state = settings_.path(settings_.load().stack.state)
    began = time.monotonic()
    leftovers = _stop(Supervisor(state), say)
    started.stopped(state)
    ended = f"; ended {leftovers} leftover process(es)" if leftovers else ""
    say(f"stack: down in {time.monotonic() - began:.1f} s{ended}")


def restart(name: str, say: Callable[[str], None] = say_now) -> None:
    """Stop one part, start it again and wait until it is ready.

    Raises:
        StackError: there is no such part, or the stack does not run.
        OtherSettings: settings differ that other parts read.
    """
    given, settings = started_with(None, os.environ), settings_.load()
    state = settings_.path(settings.stack.state)
    supervisor, all_parts = Supervisor(state), parts(settings)
    if name not in all_parts:
        raise NoSuchPart(f"{name}: no such part; the parts are {', '.join(all_parts)}")
    if not supervisor.running():
        raise StackError("the stack does not run; start it with `tabloop up`")
    effect: Effect | None = "serving" if name == "serving" else None
    for line in started.check(state, settings, effect):
        say(line)
    with _lock(state):
        with started.remember(state, given):
            supervisor.stop_together([name])
            with Progress(say).step(name):
                _start(supervisor, all_parts[name], READY_SECONDS)
        started.note(state, settings)


@dataclass(frozen=True)
class Row:
    """A frozen line of the status table: one part."""

    part: str
    state: str
    ready: bool
    pid: int
    seconds: float
    address: str
    log: Path


def status() -> list[Row]:
    """Return the current state of every part."""
    settings = settings_.load()
    supervisor = Supervisor(settings_.path(settings.stack.state))
    states = supervisor.states()

    def row(part: Part) -> Row:
        state = states.get(part.name)
        ready = bool(state and state.pid and _is_ready(part, state.started))
        seconds = time.time() - state.started if state and state.pid else 0.0
        return Row(
            part.name,
            state.state.lower() if state else "stopped",
            ready,
            state.pid if state else 0,
            seconds,
            part.address,
            supervisor.log(part.name),
        )

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(row, parts(settings).values()))


def _start_all(
    settings: Settings, supervisor: Supervisor, selected: dict[str, Part], progress: Progress, *, paused: bool
) -> None:
    """Run each step of the plan in a thread that first waits for the steps it depends on."""
    seconds, failed = READY_SECONDS, threading.Event()
    plan = _plan(settings, supervisor, selected, seconds, failed)
    if paused and "deployments" in plan:
        plan["paused"] = ("deployments",), partial(orchestration.set_schedules, settings, paused=True)
    futures: dict[str, Future[None]] = {}

    def run(name: str, after: tuple[str, ...], work: Callable[[], object]) -> None:
        for other in after:
            if other in futures:
                futures[other].result()
        with progress.step(name):
            work()

    with ThreadPoolExecutor(len(plan)) as pool:
        for name, (after, work) in plan.items():
            futures[name] = pool.submit(run, name, after, work)
        try:
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
        finally:  # also on an interrupt, so that the other threads stop waiting
            failed.set()
    for future in done:
        future.result()


Plan = dict[str, tuple[tuple[str, ...], Callable[[], object]]]


def _plan(settings: Settings, supervisor: Supervisor, selected: dict[str, Part], seconds: float, failed: threading.Event) -> Plan:
    """Return the steps of a start by name, each with the steps it depends on and its work.

    Most of a start is imports, so independent steps overlap. The other engines start after the first, whose caches save them a
    quarter of the work.
    """
    after: dict[str, tuple[str, ...]] = {"prefect": ("postgresql",), "worker": ("work pool",), "serving": ("base model",)}
    after |= {"engine-1": ("engine-0",), "evaluation": ("engine-0", "engine-1")}
    plan: Plan = {
        name: (after.get(name, ()), partial(_start, supervisor, part, seconds, failed)) for name, part in selected.items()
    }
    if "s3" in selected or "serving" in selected:
        plan["bucket"] = ("s3",), lambda: seed.bucket(settings)
    if "worker" in selected:
        client = client_environment(settings, dict(os.environ))
        plan["work pool"] = ("prefect",), lambda: pools.ensure(settings)
        plan["deployments"] = ("work pool",), lambda: orchestration.deploy(settings, client)
        if settings.orchestration.webhook:
            plan["automations"] = ("deployments",), lambda: orchestration.automate(client)
    if "mlflow" in selected or "serving" in selected:
        plan["base model"] = ("bucket", "mlflow"), lambda: seed.base_model(settings)
    order = ("s3", "bucket", "mlflow", "base model", "postgresql", "prefect", "work pool", "worker", "deployments")
    return {name: plan[name] for name in (*order, *plan) if name in plan}


def _start(supervisor: Supervisor, part: Part, seconds: float, failed: threading.Event | None = None) -> None:
    """Start a part if it does not run, and wait until it is ready. Raises StackError if the part ends while starting, or is not
    ready in time."""
    if supervisor.states()[part.name].state not in ("RUNNING", "STARTING", "BACKOFF"):
        try:
            supervisor.start_part(part.name)
        except xmlrpc.client.Fault as fault:
            raise _start_error(supervisor, part, f"supervisord cannot start it: {fault.faultString}") from fault
    first, deadline = 0, time.monotonic() + seconds
    while not (failed and failed.is_set()):
        state = supervisor.states().get(part.name)
        if state is None:
            raise _start_error(supervisor, part, "supervisord has ended")
        first = first or state.pid
        if state.state in ("BACKOFF", "EXITED", "FATAL") or (first and state.pid != first):
            raise _start_error(supervisor, part, "it ended while starting")
        if state.pid and _is_ready(part, state.started):
            return
        if time.monotonic() > deadline:
            raise _start_error(supervisor, part, f"it was not ready within {seconds:.0f} s")
        time.sleep(0.2)
    raise StackError(f"{part.name}: start cancelled, since another part failed")


def _start_error(supervisor: Supervisor, part: Part, why: str) -> StackError:
    log = supervisor.log(part.name)
    return StackError(
        f"{part.name}: {why}\n  last lines of {log}:\n{tail(log)}\n"
        f"  next: read the log (less {log}), fix the error, then `tabloop up`"
    )


def _is_ready(part: Part, since: float) -> bool:
    try:
        return part.ready(since)
    except (OSError, http.client.HTTPException, KeyError, ValueError):
        return False


def _stop(supervisor: Supervisor, say: Callable[[str], None]) -> int:
    """Stop every part and supervisord; return the number of processes that were left."""
    with stopping(supervisor.directory, say):
        states = set(supervisor.states())
        if states:
            supervisor.stop_together(states.difference(*STOPPED_LAST))
            for group in STOPPED_LAST:
                supervisor.stop_together(group)
        supervisor.shut_down()
        return sweep(supervisor.directory)


def _close_files(settings: Settings) -> None:
    """Close what an earlier release, or a package that copies its own files with their permissions, left open to others."""
    state, serving = settings.stack.state, settings.serving
    for directory in (state, state.parent / "cache", serving.spool, serving.state, settings.train.folder):
        files.close_to_others(settings_.path(directory))


@contextmanager
def stopping(state: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Let one command at a time stop the stack: another one waits, since it would kill parts that are still stopping."""
    with files.private():
        state.mkdir(parents=True, exist_ok=True)
        lock = (state / "down.lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another command is stopping the stack; waiting until it ends")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _lock(state: Path) -> Iterator[None]:
    """Allow one start of parts at a time: two first ones would generate different secrets."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(
                f"another `tabloop up` or `tabloop restart` is starting parts of the stack in {state}; wait until it ends, then "
                "`tabloop status`"
            ) from None
        yield


def _check_others(state: Path) -> None:
    """Refuse to start beside another stack of this checkout, which has the same ports."""
    for other in started.others(state):
        if Supervisor(other).running():
            raise StackError(f"another stack runs, in {other}; stop it with `tabloop down`, then start this one")


def _check_packages(settings: Settings, selected: dict[str, Part]) -> None:
    for part in selected.values():
        missing = not (BIN / "rclone").exists() if part.name == "s3" else importlib.util.find_spec(part.module) is None
        if missing:
            raise StackError(f"{part.name}: package {part.module} is not installed; run `make setup`")
    seed.check_base(settings)


def _check_ports(to_start: list[Part]) -> None:
    of_parts: dict[int, str] = {}
    for part, port in [(each, port) for each in to_start for port in each.ports]:
        host, another = urlsplit(part.address).hostname or "", f"choose another port in the settings ({_setting(part)})"
        if other := of_parts.get(port):
            raise StackError(f"{part.name}: port {port} is that of {other}; {another}, then `tabloop up`")
        of_parts[port] = part.name
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except PermissionError:
                raise StackError(f"{part.name}: port {port} is kept for root; {another}, above 1023, then `tabloop up`") from None
            except OSError:
                raise StackError(
                    f"{part.name}: port {port} is taken by {processes.owner(port)}; end it, or {another}, then `tabloop up`"
                ) from None


def _setting(part: Part) -> str:
    names = {
        "s3": "store.endpoint",
        "mlflow": "registry.uri",
        "prefect": "orchestration.api",
        "serving": "serving.port, serving.feedback_port",
        "evaluation": "evaluate.engine_url",
    }
    return names.get(part.name, "serving.engines")
