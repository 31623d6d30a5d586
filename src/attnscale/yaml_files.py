"""Reading YAML strictly: what PyYAML merges in silence or tells in its own words becomes a sentence."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from attnscale.errors import UserError
from attnscale.findings import short


class _Refused(yaml.MarkedYAMLError):
    """A finding of our own, with its place."""


_UNUSED = ("set", "binary", "omap", "pairs")
_LOOKS = {"bool": "truth value"}


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses a key which stands twice in one map; PyYAML would keep the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Checked here and not where maps are built: by then `<<` has put the keys of other maps into this one.
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            name = (key.tag, key.value)
            if name in lines:
                problem = f"the key {short(key.value)} stands twice, first in line {lines[name]}; remove or rename one"
                raise _Refused(problem=problem, problem_mark=key.start_mark)
            lines[name] = key.start_mark.line + 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if kind in _UNUSED:
            # A set would be read in another order every time, the others as what no key of ours is.
            raise _Refused(
                problem=f"!!{kind} has no use here; write a plain list or text", problem_mark=node.start_mark
            )
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            # 2026-13-45 is resolved as a date and then is none; after !!int or !!bool may stand anything.
            shown, looks = short(str(node.value)), _LOOKS.get(kind, "date or number")
            problem = f"{shown} looks like a {looks} and is none; put it in quotes"
            raise _Refused(problem=problem, problem_mark=node.start_mark) from None


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Args:
        path: a UTF-8 file of one document.

    Returns:
        Maps, lists and scalars.

    Raises:
        UserError: the file is missing, is no regular file, is not UTF-8 or no YAML, or a key stands twice in one map.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        # Reading a pipe would wait for ever if nobody writes into it.
        raise UserError(f"{path} is a pipe or device; give a regular file")
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; the named runs are in config/") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        place = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = " ".join(str(error.problem).split())
        if isinstance(error, _Refused):
            raise UserError(f"{path}{place}: {problem}") from None
        raise UserError(f"{path}{place}: this is no valid YAML ({problem}); mend that line") from None
    except yaml.YAMLError:
        raise UserError(f"{path} holds a control character, which YAML does not allow; remove it") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply; check its brackets") from None


def resolved_yaml(config: BaseModel) -> str:
    """A configuration as YAML with every default spelled out, keys in the order of the documentation."""
    data = config.model_dump(mode="json")
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)
