"""Option groups: options shared by several commands, written once as dataclasses.

    @dataclass(frozen=True, kw_only=True)
    class Times:
        since: Annotated[str | None, typer.Option("--from")] = None

    @app.command("report")
    @grouped
    def report(*, out: Out, times: Times) -> None: ...

On the command line the fields take the place of the group: `report --out DIR --from WHEN`.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar

from braidmq.base.errors import ConfigError

T = TypeVar("T")


def either(argument: str, given: T | None, old: T | None) -> T | None:
    """Return the value of an argument that used to be an option, which still works.

    Raises:
        ConfigError: Both were given, and differ.
    """
    if given is not None and old is not None and given != old:
        raise ConfigError(argument, "was given twice, as an argument and as an option")
    return old if given is None else given


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return *command* with the fields of its groups as options, as typer expects them."""
    signature = inspect.signature(command)
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            options += inspect.signature(group).parameters.values()
        else:
            options.append(parameter)

    # typer reads the signature, so the wrapper shows one without groups and rebuilds them.
    @wraps(command)
    def run(**given: object) -> None:
        for name, group in groups.items():
            given[name] = group(**{one.name: given.pop(one.name) for one in fields(group)})
        command(**given)

    run.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined] # inspect looks for it there
    return run
