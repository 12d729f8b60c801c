"""Every error of Tandem, read from the source: what it says, why, and what to do about it. `‹name›` and `…` stand for what is filled in."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "tandem"
BLANK = "…"
ROOMS = {  # in the order in which a run meets them
    "cli": "Commands",
    "config": "Settings and recipes",
    "algorithms": "Algorithms",
    "devices": "Devices",
    "doctor": "Looking at the machine",
    "plan": "Before a run",
    "data": "Data",
    "rewards": "Rewards",
    "qwen3_5": "The model's folder",
    "sync": "Weights on their way",
    "engine": "Training ranks",
    "rollout": "Generators",
    "actors": "The cluster and its processes",
    "checkpoint": "Checkpoints and exports",
    "run": "A run",
    "rehearse": "Rehearsals",
    "track": "Records, trackers, traces",
    "report": "Reports",
}
_DEEPEST = 4  # functions between an error and where its text is written


@dataclass(frozen=True)
class Message:
    room: str
    what: str
    why: str
    fix: str


@dataclass(frozen=True)
class _Place:
    """A call and the function that it stands in."""

    file: Path
    call: ast.Call
    function: ast.FunctionDef | None


def messages() -> list[Message]:
    """By room, file and line; each once."""
    found: dict[tuple[str, str, str], Message] = {}
    kinds = _error_classes()
    for place in _places():
        if _called(place.call) in kinds and len(_arguments(place.call)) >= 2:
            for what, why, fix in _texts(place):
                room = place.file.relative_to(SOURCE).parts[0] if place.file.parent != SOURCE else "cli"
                found.setdefault((what, why, fix), Message(room, what, why, fix))
    order = list(ROOMS)
    return sorted(found.values(), key=lambda message: order.index(message.room))


def joined(those: list[Message]) -> list[Message]:
    """Messages that differ in their reason only, as one."""
    found: dict[tuple[str, str, str], Message] = {}
    for one in those:
        key = (one.room, one.what, one.fix)
        before = found.get(key)
        whys = [*before.why.split(" / "), one.why] if before else [one.why]
        found[key] = Message(one.room, one.what, " / ".join(dict.fromkeys(whys)), one.fix)
    return list(found.values())


def _texts(place: _Place) -> Iterator[tuple[str, str, str]]:
    """The three parts of an error, for each caller that fills one of them in."""
    parts = [_text(part, place) for part in _arguments(place.call)[:3]]
    parts += [""] * (3 - len(parts))
    function = place.function
    given = [node.id for node in _arguments(place.call)[:3] if isinstance(node, ast.Name)]
    if function and set(given) & set(_parameters(function)) and (callers := _callers(function.name)):
        for caller in callers:
            yield _filled(place, caller)
    else:
        yield (parts[0], parts[1], parts[2])


def _filled(place: _Place, caller: _Place) -> tuple[str, str, str]:
    assert place.function
    values = dict(zip(_parameters(place.function), caller.call.args)) | {word.arg: word.value for word in caller.call.keywords if word.arg}
    texts = []
    for node in _arguments(place.call)[:3]:
        given = values.get(node.id) if isinstance(node, ast.Name) else None
        texts.append(_text(given, caller) if given is not None else _text(node, place))
    texts += [""] * (3 - len(texts))
    return texts[0], texts[1], texts[2]


def _text(node: ast.expr | None, place: _Place, depth: int = 0) -> str:
    """What an expression says, as far as it is written in the source."""
    if node is None or depth > _DEEPEST:
        return BLANK
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value, place, depth) for value in values).replace(BLANK * 2, BLANK)
        case ast.FormattedValue(value=inner):
            text = _text(inner, place, depth + 1)
            return text if text != BLANK else _named(inner)
        case ast.IfExp(body=body, orelse=other):
            options = [text for text in (_text(body, place, depth + 1), _text(other, place, depth + 1)) if text]
            return BLANK if BLANK in options else " / ".join(dict.fromkeys(options))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, place, depth) + _text(right, place, depth)
        case ast.Name(id=name):
            written = _assigned(name, place)
            return _text(written, place, depth + 1) if written is not None else BLANK
    return BLANK


def _named(node: ast.expr) -> str:
    """A value that has a name, by that name."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return f"‹{name.replace('_', ' ').strip().lower()}›" if len(name) > 1 else BLANK


def _assigned(name: str, place: _Place) -> ast.expr | None:
    """What a name was given in its function, or a constant in some file, when it was given one thing only."""
    nodes = list(ast.walk(place.function)) if place.function else []
    if name.isupper() or name.startswith("_"):
        nodes += [node for tree in _trees().values() for node in tree.body]
    values = [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]
    return values[0] if len(values) == 1 else None


def _arguments(call: ast.Call) -> list[ast.expr]:
    words = {word.arg: word.value for word in call.keywords}
    return [*call.args, *(words[name] for name in ("what", "why", "fix") if name in words)]


def _parameters(function: ast.FunctionDef) -> list[str]:
    names = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args]]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""


@cache
def _trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


@cache
def _places() -> list[_Place]:
    found = []
    for path, tree in _trees().items():
        stack: list[tuple[ast.AST, ast.FunctionDef | None]] = [(tree, None)]
        while stack:
            node, function = stack.pop()
            if isinstance(node, ast.Call):
                found.append(_Place(path, node, function))
            inner = node if isinstance(node, ast.FunctionDef) else function
            stack += [(child, inner) for child in ast.iter_child_nodes(node)]
    return sorted(found, key=lambda place: (place.file, place.call.lineno, place.call.col_offset))


def _callers(name: str) -> list[_Place]:
    return [place for place in _places() if _called(place.call) == name]


@cache
def _error_classes() -> set[str]:
    """`UserError`, `RunError` and every class made of them."""
    known = {"UserError", "RunError"}
    classes = [node for tree in _trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while more := {c.name for c in classes if any(isinstance(base, ast.Name) and base.id in known for base in c.bases)} - known:
        known |= more
    return known


def table() -> str:
    """All messages as Markdown, a section a room."""
    rows: dict[str, list[Message]] = {}
    for message in joined(messages()):
        rows.setdefault(message.room, []).append(message)
    parts = []
    for room, own in rows.items():
        lines = [f"### {ROOMS[room]}", "", "| message | why | what to do |", "|---|---|---|"]
        lines += [f"| {cell(m.what)} | {cell(m.why)} | {cell(m.fix if m.fix != BLANK else 'what the message says')} |" for m in own]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def cell(text: str) -> str:
    """Text that Markdown leaves as it is."""
    for character in "\\`*_<>[]|":
        text = text.replace(character, f"\\{character}" if character not in "<>|" else {"<": "&lt;", ">": "&gt;", "|": "&#124;"}[character])
    return " ".join(text.split()) or BLANK
