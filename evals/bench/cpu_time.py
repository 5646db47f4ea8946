"""CPU time of server processes."""

from collections.abc import Mapping

import psutil


class CpuTime:
    """A context manager that adds up the CPU seconds of the processes that listen on the given ports.

    `seconds` holds them by name; child processes, such as vLLM's engine core, count as `NAME_core`.
    """

    def __init__(self, ports: Mapping[str, int | None]) -> None:
        listening = {c.laddr.port: c.pid for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        self._processes: dict[str, list[psutil.Process]] = {}
        for name, port in ports.items():
            server = psutil.Process(listening[port])
            self._processes[name] = [server]
            if children := server.children(recursive=True):
                self._processes[f"{name}_core"] = children
        self.seconds = dict.fromkeys(self._processes, 0.0)

    def __enter__(self) -> None:
        self._before = self._now()

    def __exit__(self, *error: object) -> None:
        for name, now in self._now().items():
            self.seconds[name] += now - self._before[name]

    def _now(self) -> dict[str, float]:
        return {name: sum(sum(p.cpu_times()[:2]) for p in processes) for name, processes in self._processes.items()}
