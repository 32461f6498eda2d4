"""YAML, for those who prefer it to TOML; imported only where a file is YAML."""

from collections.abc import Hashable
from pathlib import Path

import yaml

from braidmq.base.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """YAML without duplicate keys; the library would silently keep the last."""

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002 - the library's signature
    ) -> dict[Hashable, object]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(names) != len(set(names)):
            raise yaml.constructor.ConstructorError(problem_mark=node.start_mark)
        return super().construct_mapping(node, deep=deep)


def parse(path: Path, text: str) -> object:
    """Return the document in *text*; *path* is for the error.

    Raises:
        ConfigError: It is not YAML, or repeats a key.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - it is a SafeLoader
    except yaml.MarkedYAMLError as error:
        # The library's own text quotes the line, which may hold a secret.
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = f"{path} is not valid YAML, or repeats a key, at line {line}"
        raise ConfigError("config", problem) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError("config", f"{path} is not YAML") from None
