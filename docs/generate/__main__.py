"""`python -m docs.generate`: write what the pages take from the source; `--check` changes nothing, and fails when a page is behind."""

import re
import sys
from pathlib import Path

from docs.generate import messages, settings, verl

DOCS = Path(__file__).parents[1]
MARK = "<!-- from here on written by `python -m docs.generate` -->\n"


def pages() -> dict[Path, str]:
    """Each page with its generated part as the source has it now."""
    return {DOCS / name: _above(name) + MARK + "\n" + text for name, text in parts().items()}


def parts() -> dict[str, str]:
    return {"settings.md": settings.tables(), "troubleshooting.md": messages.table(), "verl.md": verl.tables(), "extending.md": _recipes()}


def _above(name: str) -> str:
    """What people have written on the page."""
    return (DOCS / name).read_text(encoding="utf-8").partition(MARK)[0]


def _recipes() -> str:
    """The sections `Add ...` of CONTRIBUTING.md."""
    sections = re.split(r"^(?=## )", (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return "".join(section for section in sections if section.startswith("## Add ")).rstrip() + "\n"


def main() -> int:
    behind = [path for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    for path in behind:
        if "--check" in sys.argv:
            sys.stderr.write(f"{path.relative_to(DOCS.parent)} is behind the source: python -m docs.generate\n")
        else:
            path.write_text(pages()[path], encoding="utf-8")
            sys.stderr.write(f"wrote {path.relative_to(DOCS.parent)}\n")
    return int(bool(behind) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
