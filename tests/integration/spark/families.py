"""The processes below another one: JVMs, and the Python workers that come and go with them."""

from contextlib import suppress

import psutil


def family_of(process: psutil.Process) -> list[tuple[str, psutil.Process]]:
    """Return the processes below *process*, with their names; those just gone are left out."""
    found = []
    for member in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found.append((member.name(), member))
    return found


def executors_of(driver: psutil.Process) -> list[psutil.Process]:
    """Return the executors of a cluster of processes: the JVMs below the driver's own one."""
    jvms = [member for name, member in family_of(driver) if name == "java"]
    found = []
    for jvm in jvms:
        with suppress(psutil.NoSuchProcess):
            if any(parent in jvms for parent in jvm.parents()):
                found.append(jvm)
    return found


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the Python processes below *process*."""
    with suppress(psutil.NoSuchProcess):
        return [member for name, member in family_of(process) if "python" in name]
    return []


class Tasks:
    """The tasks of a cluster, told by workers that have worked since the last look."""

    def __init__(self, driver: psutil.Process) -> None:
        self._driver = driver
        self._spent: dict[int, float] = {}

    def busy(self) -> list[tuple[psutil.Process, psutil.Process]]:
        """Return executors with workers that are in a task; at the first look none."""
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
