"""All attentions that can be compared: one file per variant, one decorator to register it.

To add one, put a file beside this one (or anywhere, and name it as `module` in the configuration) that
holds a frozen dataclass decorated with `@register("its_name")`; see `base.Attention` for what it may
override and CONTRIBUTING.md for a worked example.
"""

import dataclasses
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from attnscale.attention.base import Attention, Context
from attnscale.attention.trial import initial_values, told, try_out
from attnscale.errors import UserError

__all__ = [
    "Attention", "Context", "initial_values", "load_module", "make_variant", "register", "registered", "source_file",
    "try_out",
]  # fmt: skip

_Variant = TypeVar("_Variant", bound=type[Attention])

_USER_MODULE = "attnscale_user_"
_REGISTRY: dict[str, type[Attention]] = {}


def register(name: str) -> Callable[[_Variant], _Variant]:
    """Class decorator: make a frozen dataclass known under `name`.

    Args:
        name: the word that the configuration uses; lower case, digits and underscores.

    Raises:
        UserError: the name is taken by another class.
    """

    def decorate(variant: _Variant) -> _Variant:
        if not isinstance(name, str) or not name.isidentifier():
            raise UserError(f"@register({name!r}) needs a name of letters, digits and underscores")
        if not (isinstance(variant, type) and issubclass(variant, Attention)):
            raise UserError(f'@register("{name}") stands before something that is no subclass of Attention')
        if "__dataclass_params__" not in vars(variant):
            raise UserError(f"the attention {name} needs @dataclasses.dataclass(frozen=True) below @register")
        if not (variant.formula and variant.source and variant.__doc__):
            raise UserError(f"the attention {name} needs a docstring and its class attributes formula and source")
        known = _REGISTRY.get(name)
        if known is not None and _origin(known) != _origin(variant):
            raise UserError(
                f"the attention name {name} is registered twice, in {inspect.getsourcefile(known)} and "
                f"{inspect.getsourcefile(variant)}; rename one"
            )
        variant.name = name
        _REGISTRY[name] = variant
        return variant

    return decorate


def _origin(variant: type[Attention]) -> tuple[str | None, str]:
    return inspect.getsourcefile(variant), variant.__qualname__


def registered() -> Mapping[str, type[Attention]]:
    """All variants known so far, by name, in alphabetical order."""
    return {name: _REGISTRY[name] for name in sorted(_REGISTRY)}


def load_module(module: str) -> None:
    """Import a user's own file with variants.

    Args:
        module: path of a .py file.

    Raises:
        UserError: there is no such file, or it does not import.
    """
    path = Path(module)
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"module {module} is no Python file; give the path of a .py file")
    name = _USER_MODULE + hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"module {module} cannot be imported; check the file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    try:
        spec.loader.exec_module(loaded)
    except UserError:
        _forget(name)
        raise
    except (Exception, SystemExit) as error:
        _forget(name)
        raise UserError(f"module {module} does not import: {told(error)}") from error


def _forget(module: str) -> None:
    """Nothing stays of a module that failed half-way, neither itself nor the variants that it had registered."""
    del sys.modules[module]
    for name in [name for name, variant in _REGISTRY.items() if variant.__module__ == module]:
        del _REGISTRY[name]


def variant_class(name: str, module: str | None = None) -> type[Attention]:
    """The registered class of that name.

    Args:
        name: registered name.
        module: path of a user's file to import first, if the variant lives outside the package.

    Raises:
        UserError: unknown name; the nearest known one is named. Or it is known only from another's module.
    """
    if module is not None:
        load_module(module)
    if name not in _REGISTRY:
        near = difflib.get_close_matches(name, _REGISTRY, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(registered())}"
        raise UserError(f"unknown attention {name or '(empty)'}; {hint}")
    variant = _REGISTRY[name]
    if module is None and variant.__module__.startswith(_USER_MODULE):
        # Another arm has brought it into this process; the job of this arm will be a process of its own.
        raise UserError(f"the attention {name} is in a file of your own; name it as `module` in this arm too")
    return variant


def make_variant(name: str, parameters: Mapping[str, Any], module: str | None = None) -> Attention:
    """Build a variant from its configuration.

    Args:
        name: registered name.
        parameters: values for its dataclass fields; what is left out keeps its default.
        module: path of a user's file to import first, if the variant lives outside the package.

    Raises:
        UserError: unknown name or parameter, or the variant refuses a value.
    """
    variant = variant_class(name, module)
    fields = [field.name for field in dataclasses.fields(variant)]
    for key in parameters:
        if key not in fields:
            known = f"it has {', '.join(fields)}" if fields else "it has none"
            raise UserError(f"{name} has no parameter {key}; {known}")
    missing = [
        field.name
        for field in dataclasses.fields(variant)
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and field.name not in parameters
    ]
    if missing:
        raise UserError(f"{name} needs a value for {missing[0]}; give it beside the name")
    try:
        return variant(**parameters)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name} refuses its parameters: {told(error)}") from error


def source_file(name: str, module: str | None = None) -> Path:
    """The file that defines a variant: the one file, besides the core, that its training depends on."""
    source = inspect.getsourcefile(variant_class(name, module))
    assert source is not None  # a class made from a file always has one
    return Path(source)


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
