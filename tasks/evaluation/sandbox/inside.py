"""The inner half of the sandbox: `python -I inside.py STATUS_FD < spec.json` builds the sandbox and runs one command in it.

Needs the standard library alone and is never imported. Three processes: this one leaves the machine's namespaces; its child is
process 1 of the new ones, builds the file system, and its end kills all others; its child drops all rights and becomes the
command. The file system is empty except for read-only folders and /work, a size-limited file system in memory.
"""

import base64
import ctypes
import json
import os
import resource
import signal
import stat
import struct
import sys
from typing import Any

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
RDONLY, NOSUID, NODEV = 1, 2, 4
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
MOUNT_SETATTR, CLONE3 = 442, 435
MACHINES = {
    "x86_64": {"audit": 0xC000003E, "clone": 56, "unshare": 272, "pivot_root": 155},
    "aarch64": {"audit": 0xC00000B7, "clone": 220, "unshare": 97, "pivot_root": 41},
}
"""Numbers of system calls by machine, and the machine's own (AUDIT_ARCH in linux/audit.h)."""
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of a filter of system calls (linux/filter.h)."""
NUMBER, ARCH, FIRST_ARGUMENT = 0, 4, 16
"""Offsets of the fields that a filter reads (struct seccomp_data in linux/seccomp.h)."""
KILL, REFUSE, MISSING, ALLOW = 0x80000000, 0x00050001, 0x00050026, 0x7FFF0000
"""Return values of a filter: REFUSE is EPERM and MISSING is ENOSYS, so that the C library uses clone instead of clone3."""
X32 = 0x40000000
"""System calls from here on are those of another interface of x86_64."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
FIRST_UID = 1_000_000
"""User ids from here on belong to nobody; one for each sandbox, so that each has its own limit of processes."""
EVERY_UID = 2**32 - 1
"""User ids of a machine."""
OWN_PROCESSES = 2
"""Processes of the sandbox itself that count against the limit of processes, unless root made it."""
LIBC = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> None:
    """Call a function of the C library. Raises OSError: the call failed."""
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount a file system."""
    call("mount", source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode())


def set_attributes(path: str, flags: int, *, recursive: bool = True) -> None:
    """Set attributes of the mount at a path, and of those below it (Linux 5.12)."""
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    at = AT_RECURSIVE if recursive else 0
    call("syscall", MOUNT_SETATTR, AT_FDCWD, path.encode(), at, ctypes.byref(attributes), ctypes.sizeof(attributes))


def is_root() -> bool:
    """Return whether this process is root and may become any user. Root of a container without root's rights may not: there only
    few users exist."""
    with open("/proc/self/uid_map") as file:
        return os.geteuid() == 0 and int(file.readline().split()[2]) >= EVERY_UID


def leave_namespaces(root: bool) -> None:
    """Enter new namespaces, including a user namespace unless this process is root."""
    uid, gid = os.getuid(), os.getgid()
    call("unshare", NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET | (0 if root else NEWUSER))
    if not root:
        for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def build(root: str, spec: dict[str, Any]) -> None:
    """Make the file system at the folder `root`, and make it the only one."""
    os.umask(0o022)  # a flow's is 077, and the command, another user, goes through these folders
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,mode=755")
    for path in spec["readable"]:
        inner = root + path
        os.makedirs(os.path.dirname(inner), exist_ok=True)
        if os.path.islink(path):
            if not os.path.lexists(inner):  # else a folder before holds it
                os.symlink(os.readlink(path), inner)
        elif os.path.isdir(path):
            os.makedirs(inner, exist_ok=True)
            mount(path, inner, None, MS_BIND | MS_REC)
            set_attributes(inner, RDONLY | NOSUID | NODEV)
        elif not os.path.exists(inner):
            add_file(path, inner)
    os.mkdir(f"{root}/dev")
    for device in DEVICES:
        open(root + device, "w").close()
        mount(device, root + device, None, MS_BIND)
    with open(f"{root}/stdin", "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(spec["stdin"])
    os.mkdir(f"{root}/work")
    mount("tmpfs", f"{root}/work", "tmpfs", MS_NOSUID | MS_NODEV, f"size={spec['disk']},nr_inodes={spec['files']},mode=1777")
    for name, body in spec["contents"].items():
        with open(f"{root}/work/{name}", "wb", opener=lambda path, flags: os.open(path, flags, 0o755)) as binary:
            binary.write(base64.b64decode(body))
    os.chdir(root)
    call("syscall", MACHINES[os.uname().machine]["pivot_root"], b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")
    set_attributes("/", RDONLY, recursive=False)


def add_file(path: str, inner: str) -> None:
    """Make one file readable, also one that only its owner can read: pyvenv.cfg is such a file after a private umask."""
    if os.getuid() == 0 and not os.stat(path).st_mode & stat.S_IROTH:  # root's command runs as another user
        with open(path, "rb") as source, open(inner, "wb") as target:
            target.write(source.read())
        return
    open(inner, "w").close()
    mount(path, inner, None, MS_BIND)
    set_attributes(inner, RDONLY | NOSUID | NODEV, recursive=False)


def forbid_namespaces() -> None:
    """Forbid new namespaces to this process and its children: in a user namespace they could mount memory without a limit."""
    machine = MACHINES[os.uname().machine]
    program = [
        *((LOAD, 0, 0, ARCH), (EQUAL, 1, 0, machine["audit"]), (RETURN, 0, 0, KILL)),
        *((LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, REFUSE)),
        *((EQUAL, 0, 1, machine["unshare"]), (RETURN, 0, 0, REFUSE)),
        *((EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, MISSING)),
        *((EQUAL, 0, 3, machine["clone"]), (LOAD, 0, 0, FIRST_ARGUMENT), (ANY_BIT, 0, 1, NEWUSER), (RETURN, 0, 0, REFUSE)),
        (RETURN, 0, 0, ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    body = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(body)))
    call("prctl", PR_SET_SECCOMP, 2, header, 0, 0)


def become(spec: dict[str, Any], root: bool, uid: int) -> None:
    """Drop all rights, set the limits and become the command."""
    os.setsid()
    os.chdir("/work")
    os.dup2(os.open("/stdin", os.O_RDONLY), 0)
    limits = {
        resource.RLIMIT_AS: spec["memory"],
        resource.RLIMIT_CPU: spec["cpu_seconds"],
        resource.RLIMIT_FSIZE: spec["output"],
        resource.RLIMIT_NPROC: spec["processes"] + (0 if root else OWN_PROCESSES),
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    if root:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    forbid_namespaces()
    os.execve(spec["command"][0], spec["command"], spec["environment"])


def supervise(spec: dict[str, Any], root: bool, uid: int, status: int) -> None:
    """Build the sandbox, run the command in it, and write how it ended to `status`."""
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    build(spec["root"], spec)
    os.write(status, b"ready\n")
    child = os.fork()
    if child == 0:
        try:
            become(spec, root, uid)
        except OSError as error:  # the pipe closes as the command starts, which cannot write to it
            os.write(status, f"unstarted {spec['command'][0]}: {error}\n".encode())
        finally:
            os._exit(127)
    _, ended = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(ended)
    os.write(status, f"ended {code}\n".encode())


def main() -> None:
    """Run the command of the specification on standard input."""
    status = int(sys.argv[1])
    os.set_inheritable(status, False)
    spec, root = json.load(sys.stdin), is_root()
    uid = FIRST_UID + os.getpid()
    try:
        leave_namespaces(root)
        if (child := os.fork()) == 0:
            supervise(spec, root, uid, status)
            os._exit(0)
    except (OSError, KeyError, AttributeError) as error:
        os.write(status, f"refused {error}\n".encode())
        os._exit(1)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
