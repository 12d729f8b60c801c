"""One page with everything about some runs: self-contained, nothing is fetched and nothing but its own script runs.

The parts of the page are files in `web/`: modules of plain JavaScript, joined here into one script in the order of `SCRIPTS`. Data stand in
a JSON block; the script puts them on the page as text, never as markup.
"""

import hashlib
import json
import os
import re
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from tandem import __version__
from tandem.errors import UserError
from tandem.report.compare import setting_differences
from tandem.report.curves import curves_of
from tandem.report.look import page_rows
from tandem.report.measured import measured_of
from tandem.report.runs import RunFolder
from tandem.report.samples import Budget, rollouts_of
from tandem.report.warnings import steps_with_warnings, warnings_of
from tandem.track.summary import summarize, summary_table

WEB = files("tandem.report") / "web"
SCRIPTS = (
    *("dom.js", "format.js", "colours.js", "scale.js", "chart.js", "curves.js", "time.js"),
    *("filters.js", "tokens.js", "sample.js", "group.js", "browser.js", "tables.js", "main.js"),
)
ROWS_SCRIPTS = ("dom.js", "format.js", "rows.js")
_IMPORT = re.compile(r"^import .*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def page_data(runs: list[RunFolder], budget: Budget, live: bool = False) -> dict[str, Any]:
    """All that the page shows. The budget is shared by the runs."""
    share = Budget(*(part // len(runs) for part in (budget.num_samples, budget.text_bytes, budget.image_bytes)))
    return {
        "tandem": __version__,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "live": live,
        "runs": [_run_data(run, share) for run in runs],
        "differences": setting_differences(runs),
    }


def _run_data(run: RunFolder, budget: Budget) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(run.path.resolve()),
        "summary": [list(row) for row in summary_table(summarize(run.metrics, {}, {})).rows],
        "curves": curves_of(run.metrics),
        "warnings": warnings_of(run),
        "notes": run.notes,
        "plan": measured_of(run),
        "config": run.config_text,
        "rollouts": rollouts_of(run, budget, steps_with_warnings(run)),
    }


def page(data: dict[str, Any]) -> str:
    """The HTML document about runs."""
    return document("Tandem", "page.html", SCRIPTS, data, live=data["live"])


def document(title: str, body: str, scripts: Sequence[str], data: dict[str, Any], live: bool = False) -> str:
    """An HTML document. Args: body, scripts: files in `web/`; live: it may ask its own server for more."""
    script, style = script_text(scripts), _web("style.css")
    connect = "; connect-src 'self'" if live else ""
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:"
        f"{connect}; base-uri 'none'; form-action 'none'"
    )
    parts = {"title": title, "body": _web(body), "policy": policy, "style": style, "data": embedded(data), "script": script}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _web("shell.html"))


def script_text(scripts: Sequence[str] = SCRIPTS) -> str:
    """The modules as one: they name one another in imports for editors and readers, and have no name twice."""
    text = "\n".join(_EXPORT.sub("", _IMPORT.sub("", _web(name))) for name in scripts)
    assert "</script" not in text and "<!--" not in text
    return text


def embedded(data: Any) -> str:
    """JSON that may stand in a script element: no `<` can end it or begin a comment in it. Numbers that are not finite are null."""
    text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # a lone surrogate, from a broken file, has no UTF-8
    return text.replace("<", "\\u003c").encode("utf-8", "replace").decode("utf-8")


def write_page(text: str, path: Path) -> Path:
    """Whole or not at all. Raises UserError when it cannot be written."""
    unfinished = path.with_name(path.name + ".tmp")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written", str(error), "give another file: --out FILE") from error
    return path


def write_report(runs: list[RunFolder], path: Path, budget: Budget | None = None) -> Path:
    """Raises UserError when a file of a run cannot be read, or `path` cannot be written."""
    return write_page(page(page_data(runs, budget or Budget())), path)


def write_rows_page(rows: Sequence[dict[str, Any]], summary: Sequence[str], bad: Sequence[str], limit: int, path: Path) -> Path:
    """The page of `tandem inspect data`. Raises UserError when it cannot be written."""
    data = {"rows": page_rows(rows, limit), "summary": list(summary), "bad": list(bad)}
    return write_page(document("Tandem: rows", "rows.html", ROWS_SCRIPTS, data), path)


def _web(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None  # a NaN is not less
    if isinstance(value, dict):
        return {str(key): _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value
