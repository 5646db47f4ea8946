"""Exit codes, and the errors that a command shows in place of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DONE, NO, WRONG_USE, NOT_READY, INTERRUPTED, READER_GONE = 0, 1, 2, 3, 130, 141
"""Exit codes: what was asked is done; the answer is no, or a target is missed; wrong usage or settings; a server or part does not
answer, or work is left; the user interrupted the command; the program that reads the output has ended, as `head` does."""

CODES = {
    "evals.developers.transport.NotForDevelopers": WRONG_USE,
    "infra.settings.sources.SettingsError": WRONG_USE,
    "infra.stack.control.StackError": NO,
    "infra.stack.control.NoSuchPart": WRONG_USE,
    "infra.stack.started.OtherSettings": NO,
    "infra.stack.supervision.NoSupervisor": NO,
    "infra.stack.flow_runs.NotStarted": NO,
    "infra.stack.flow_runs.NotTaken": NOT_READY,
    "infra.stack.prefect_api.DeployError": NO,
    "infra.stack.prefect_api.NoAnswer": NOT_READY,
    "infra.stack.seed.NoBaseModel": WRONG_USE,
    "infra.registry.client.RegistryError": NO,
    "infra.registry.client.NoAnswer": NOT_READY,
    "infra.storage.events.read.Gone": NOT_READY,
    "infra.storage.store.ConditionalPutsIgnored": WRONG_USE,
    "infra.storage.store.Refused": WRONG_USE,
    "infra.storage.store.Unreachable": NOT_READY,
    "tasks.evaluation.models.base.NoWeights": WRONG_USE,
    "tasks.evaluation.positions.NoCode": WRONG_USE,
    "tasks.experiments.reports.explain.UnknownVersion": NO,
    "tasks.experiments.reports.export.NotExported": NO,
    "tasks.experiments.reports.history.UnknownTest": NO,
    "tasks.experiments.reports.recompute.NoDecision": NO,
    "tasks.experiments.planning.report.NothingToPlan": NO,
    "tasks.labels.read.InputChanged": NOT_READY,
}
"""Exit code by the full name of an error that the user can mend; its message names the next command. An error's own class comes
before those that it derives from. Names, since importing the classes would make every command slow."""
NEXT = {
    "infra.settings.sources.SettingsError": "next: correct it in the file or the environment",
    "httpx.ConnectError": "next: `tabloop status` shows the parts, `tabloop up` starts them",
    "httpx.TimeoutException": "next: `tabloop status` shows the parts and their logs",
    "httpx.HTTPStatusError": "next: start the stack with these settings; benchmarks and simulated developers read those of "
    "`tabloop up --settings demo`",
}
"""The next command after an error whose message does not name it."""

OWN_FOLDER = "expected a folder that this user may write: run the command as its owner, or name another one in the settings"
ROOM = "`df -h` shows the disks: make room, then the same command again"
OTHER_OUTPUT = "name another file behind `>`, or make room (`df -h`), then the same command again"
OF_THE_MACHINE = {
    **dict.fromkeys(("EACCES", "EPERM", "EROFS", "ENOTDIR", "EEXIST"), OWN_FOLDER),
    **dict.fromkeys(("ENOSPC", "EDQUOT"), ROOM),
    "EISDIR": "expected a file: name one in this directory, or another",
    "ENXIO": "expected a file: name another",
}
"""The next step by the code of an error of the operating system that the user can mend."""


class Failed(Exception):
    """A command failed in a way that the user can mend.

    Attributes:
        code: exit code of the command.
    """

    def __init__(self, message: str, code: int = NO) -> None:
        super().__init__(message)
        self.code = code


def expect_checkpoint(folder: Path) -> None:
    """Raise Failed for a directory that holds no checkpoint, before a command computes for minutes."""
    from infra.model.architectures import UnsupportedCheckpoint, read

    with expected(UnsupportedCheckpoint, code=WRONG_USE):
        read(folder)


@contextmanager
def expected(*kinds: type[Exception], code: int = NO) -> Iterator[None]:
    """Turn errors of these kinds, which the user can mend, into Failed; those that have a code of their own pass through."""
    try:
        yield
    except kinds as error:
        if code_of(error) is not None:
            raise
        raise Failed(str(error), code) from error


def code_of(error: Exception) -> int | None:
    """Return the exit code of an error that the user can mend; None for another one, which is a defect."""
    if isinstance(error, Failed):
        return error.code
    names = _names(error)
    if "httpx.TransportError" in names or _refused(error, names):
        return NOT_READY
    if _of_the_machine(error):
        return WRONG_USE
    return next((CODES[name] for name in names if name in CODES), None)


def message_of(error: Exception) -> str:
    """Return an error's message with the next command."""
    names = _names(error)
    text = str(error) or type(error).__name__
    if "httpx.TransportError" in names:
        request = getattr(error, "_request", None)
        text = f"no answer from {request.url}: {text}" if request else text
    elif _refused(error, names):
        request = getattr(error, "_request", None)
        text = f"{request.url if request else 'a server'} refuses the password of the settings that this command reads"
    elif "infra.settings.sources.SettingsError" in names:
        from infra import settings

        text = settings.in_line(text)
    if following := _of_the_machine(error):
        place = getattr(error, "filename", None)
        return f"{f'{place}: ' if place else ''}{getattr(error, 'strerror', text)}; {following}"
    following = next((NEXT[name] for name in names if name in NEXT), "")
    return f"{text}\n  {following}" if following and "\n" in text else f"{text}; {following}" if following else text


def _refused(error: Exception, names: list[str]) -> bool:
    """Return whether a server refused the credentials."""
    response = getattr(error, "response", None)
    return "httpx.HTTPStatusError" in names and response is not None and response.status_code in (401, 403)


def _of_the_machine(error: Exception) -> str:
    """Return the next step after an error of the operating system; empty after another one."""
    import errno

    return OF_THE_MACHINE.get(errno.errorcode.get(error.errno or 0, ""), "") if isinstance(error, OSError) else ""


def lost_output() -> OSError | None:
    """Return why the standard output cannot be written; None if it can be, or is closed."""
    import os
    import sys

    try:
        if sys.stdout is not None:
            sys.stdout.flush()
            os.write(sys.stdout.fileno(), b"")  # an unbuffered one keeps nothing that a flush could try again
    except OSError as error:
        return error if error.errno else None  # no file, as in a test
    return None


def discard_output() -> None:
    """Let what is still written to the standard output vanish, so that Python's end does not fail on it."""
    import os
    import sys

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _names(error: Exception) -> list[str]:
    """Return the full names of an error's class and its bases, the nearest first; httpx names its classes without a module."""
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
