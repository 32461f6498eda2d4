"""The descendants of a process: JVMs and their Python workers."""

from contextlib import suppress

import psutil


def family_of(process: psutil.Process) -> list[tuple[str, psutil.Process]]:
    """Return the descendants of *process* that still run, with their names."""
    found = []
    for member in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found.append((member.name(), member))
    return found


def executors_of(driver: psutil.Process) -> list[psutil.Process]:
    """Return the executors of a local cluster: the JVMs below the driver's JVM."""
    jvms = [member for name, member in family_of(driver) if name == "java"]
    found = []
    for jvm in jvms:
        with suppress(psutil.NoSuchProcess):
            if any(parent in jvms for parent in jvm.parents()):
                found.append(jvm)
    return found


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the Python descendants of *process*."""
    with suppress(psutil.NoSuchProcess):
        return [member for name, member in family_of(process) if "python" in name]
    return []


class Tasks:
    """The running tasks of a cluster: workers that used the CPU since the last look."""

    def __init__(self, driver: psutil.Process) -> None:
        self._driver = driver
        self._spent: dict[int, float] = {}

    def busy(self) -> list[tuple[psutil.Process, psutil.Process]]:
        """Return executors with a busy worker; the first call finds none."""
        found = []
        for executor in executors_of(self._driver):
            for worker in workers_of(executor):
                with suppress(psutil.NoSuchProcess):
                    times = worker.cpu_times()
                    spent = times.user + times.system
                    if spent > self._spent.get(worker.pid, spent):
                        found.append((executor, worker))
                    self._spent[worker.pid] = spent
        return found
