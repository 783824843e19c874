"""Names of a package that load on first use, as PEP 562 allows: importing a room brings in none of its libraries.

Decides what an unknown name raises and that a name is looked up once. Knows no package.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package.

    Args:
        package: its `__name__`.
        where: public name -> module of the package, relative to it, such as "readers.base".

    Returns:
        A function name -> value, which raises AttributeError for a name that is not in `where`.
    """

    def load(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{where[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
