"""The shape of the code: imports go downwards, as docs/architecture.md says, files and functions stay small, nothing is swallowed."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tandem"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 450, 80

# Where a process ends, answers another one, or calls a library that must not end it: all else that catches everything must raise again.
PROCESS_EDGES = {
    "cli/edge.py",
    "engine/fork_ranks.py",
    "rewards/graders.py",
    "rewards/worker.py",
    "run/controller.py",
    "track/trackers/group.py",
}


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def nodes(file: Path, *kinds: type[ast.AST]) -> list[ast.AST]:
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)]


def allowed_imports() -> dict[str, set[str]]:
    """Room -> the rooms it may import, read from the table of docs/architecture.md, whose rooms stand top to bottom."""
    rows = re.findall(r"^\| `(\w+)/` \|.*\| ([^|]*) \|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    rooms = [room for room, _ in rows]
    below = {room: set(rooms[i + 1 :]) for i, room in enumerate(rooms)}
    return {room: below[room] if "everything below" in may else set(re.findall(r"\w+", may)) & set(rooms) for room, may in rows}


def imported_rooms(file: Path) -> set[str]:
    """Rooms of ours that a file imports anywhere in it, also inside functions."""
    modules = {alias.name for node in nodes(file, ast.Import) for alias in node.names}
    for node in nodes(file, ast.ImportFrom):
        assert node.level == 0, f"{name_of(file)}:{node.lineno}: relative import"
        modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {module.split(".")[1] for module in modules if module.startswith("tandem.")}


def test_every_room_is_in_the_table():
    rooms = {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")}
    assert rooms == set(allowed_imports())


def test_the_table_itself_has_no_circle():
    list(TopologicalSorter(allowed_imports()).static_order())  # raises CycleError


@pytest.mark.parametrize("room", sorted(folder.parent.name for folder in PACKAGE.glob("*/__init__.py")))
def test_imports_go_downwards_only(room):
    allowed = allowed_imports()
    legal = allowed[room] | {room}
    wrong = {name_of(file): bad for file in (PACKAGE / room).rglob("*.py") if (bad := imported_rooms(file) & set(allowed) - legal)}
    assert not wrong, f"{room} may import {sorted(allowed[room])}"


def test_no_files_or_functions_grow_out_of_sight():
    long = [name_of(file) for file in FILES if len(file.read_text().splitlines()) > MAX_FILE_LINES]
    for file in FILES:
        for function in nodes(file, ast.FunctionDef, ast.AsyncFunctionDef):
            if function.end_lineno - function.lineno >= MAX_FUNCTION_LINES:
                long.append(f"{name_of(file)}:{function.lineno} {function.name}")
    assert not long


def test_nothing_is_printed():
    """The terminal belongs to rich, the rest goes to the log."""
    assert not [f"{name_of(f)}:{n.lineno}" for f in FILES for n in nodes(f, ast.Call) if getattr(n.func, "id", None) == "print"]


def test_what_catches_everything_raises_again_except_at_the_edge_of_a_process():
    swallowing = {}
    for file in FILES:
        for handler in nodes(file, ast.ExceptHandler):
            broad = handler.type is None or re.search(r"\b(Base)?Exception\b", ast.unparse(handler.type))
            if broad and not any(isinstance(node, ast.Raise) for node in ast.walk(handler)):
                swallowing.setdefault(name_of(file), []).append(handler.lineno)
    assert swallowing.keys() <= PROCESS_EDGES, swallowing
    assert swallowing.keys() == PROCESS_EDGES, "an edge that no longer catches everything: take it off the list"
