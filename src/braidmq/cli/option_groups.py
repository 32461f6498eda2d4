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
from typing import Any


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
