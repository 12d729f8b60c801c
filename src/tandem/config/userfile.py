"""A user's own Python file, FILE.py:NAME, and the modules beside it."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from blake3 import blake3


def split_name(name: str) -> tuple[Path, str]:
    """`folder/file.py:name` -> its two parts."""
    file, _, inside = name.rpartition(":")
    return Path(file).expanduser(), inside


class UserFolder:
    """The folder of a user's file. Inside `with folder.active():` its modules are found before all others but Python's own; outside they
    are out of everybody's way, so that two files may each have a helper of the same name."""

    def __init__(self, path: Path):
        self.path = path.resolve()
        here = [*self.path.glob("*.py"), *(init.parent for init in self.path.glob("*/__init__.py"))]
        self._names = {each.stem for each in here} - sys.stdlib_module_names - {"tandem"}
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Not for several threads at once."""
        others = self._taken_out()
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self.path))
        try:
            yield
        finally:
            self._modules = self._taken_out()
            sys.modules.update(others)
            sys.path.remove(str(self.path))

    def stay(self) -> None:
        """For a file that is the only one of its kind in this process: its modules stay, behind all others of the same names."""
        sys.path.append(str(self.path))
        sys.modules.update({name: module for name, module in self._modules.items() if name not in sys.modules})

    def _taken_out(self) -> dict[str, ModuleType]:
        """The modules that have the folder's names, out of `sys.modules`."""
        tops = [name for name in self._names if name in sys.modules]
        inner = [name for name in [*sys.modules] if name.partition(".")[0] in tops and "." in name] if tops else []
        return {name: sys.modules.pop(name) for name in [*tops, *inner]}


def load_from(name: str) -> tuple[Any, UserFolder]:
    """What FILE.py:NAME names, and the folder that must be active while it runs.

    Raises:
        Whatever the file raises; AttributeError when it has no such name.
    """
    path, inside = split_name(name)
    folder = UserFolder(path.parent)
    module_name = f"tandem_user_{path.stem}_{blake3(str(path.resolve()).encode()).hexdigest(4)}"  # of its own: it may be called json.py
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    with folder.active():
        spec.loader.exec_module(module)
    return getattr(module, inside), folder
