"""The list of commands that --help prints, with whole sentences."""

from typing import Any, Final

from typer.core import TyperGroup

_WHOLE: Final = 1_000
"""Characters of a command's first sentence; none is as long. The library cuts at the width of
the terminal instead of wrapping."""


class CommandList(TyperGroup):
    """A group of commands; its --help wraps their descriptions instead of cutting them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - the library keeps their classes to itself
        """Write the names and the first sentences of the commands."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_WHOLE))
            for name, command in found
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
