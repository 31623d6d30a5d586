"""Which files of the package a stage is made of, so that Snakemake reruns just what an edit concerns."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent

# What these hold cannot reach a result except through a rule's settings: the command line passes settings
# on, the configuration turns a file into settings, errors are sentences, and a trial accepts or refuses.
NOT_TRACKED = frozenset(
    f"attnscale{module}" for module in ("", ".attention.trial", ".cli", ".config", ".errors", ".progress")
)
NOT_TRACKED_FOLDER = "attnscale.config."


def module_files(*modules: str) -> list[Path]:
    """Files of modules and of everything of this package that they import, directly or not.

    Imports are read from the source text, so nothing is executed. A module inside a sub-package brings
    that sub-package's `__init__` along, as Python does.

    Args:
        modules: dotted names such as `attnscale.train`.

    Returns:
        Absolute paths in alphabetical order.
    """
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module in found or module in NOT_TRACKED or module.startswith(NOT_TRACKED_FOLDER):
            continue
        path = _file_of(module)
        if path is None:  # `from package import name` where the name is no module
            continue
        found[module] = path
        waiting += [module.rpartition(".")[0]] if "." in module else []
        waiting += _imports(path)
    return sorted(found.values())


def _file_of(module: str) -> Path | None:
    parts = module.split(".")[1:]
    for path in (PACKAGE.joinpath(*parts).with_suffix(".py"), PACKAGE.joinpath(*parts, "__init__.py")):
        if path.is_file():
            return path
    return None


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("attnscale."))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "attnscale":
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
