"""The pages say what is: generated parts are those of the source, errors are all listed, commands exist, links lead somewhere."""

import html
import json
import re
import shlex
from pathlib import Path

import pytest

from docs.generate import messages
from docs.generate.__main__ import DOCS, MARK, pages
from tandem.config.keys import SETTINGS
from tandem.config.load import load
from tandem.config.recipe_file import builtin_recipes
from tandem.errors import UserError
from tests.cli.test_examples import WrongUse, commands, parse

ROOT = DOCS.parent
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md"])


def test_generated_parts_are_those_of_the_source() -> None:
    behind = [path.name for path, text in pages().items() if path.read_text() != text]
    assert not behind, "python -m docs.generate writes them"


def unescaped(markdown: str) -> str:
    return html.unescape(re.sub(r"\\([\\`*_\[\]])", r"\1", markdown))


@pytest.fixture(scope="module")
def listed() -> str:
    return unescaped((DOCS / "troubleshooting.md").read_text().partition(MARK)[2])


def test_every_error_of_the_source_is_listed(listed: str) -> None:
    """Counted another way than the generator does: by the words of each error that is written in a source file."""
    source = "\n".join(path.read_text() for path in messages.SOURCE.rglob("*.py"))
    kinds = "|".join(messages._error_classes())
    written = re.findall(rf'\b(?:{kinds})\(\s*f?"((?:[^"\\]|\\.)*)"', source)
    assert len(written) > 150
    for text in written:
        for piece in re.split(r"\{(?:[^{}]|\{[^{}]*\})*\}", text):
            assert " ".join(piece.split()) in listed, text


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        ("demmo", []), ("demo", ["trainer.total_stepz=2"]), ("demo", ["rollout.n=many"]), ("demo", ["optimizer.lr"]),
        ("demo", ["trainer.trackers=clearml"]), ("qwen3_5_35b_a3b", ["device=npu", "trainer.val_only=True"]), ("demo", ["rollout.n=1"]),
        ("demo", ["trainer.profile.steps=[0]"]), ("demo", ["trainer.profile.ranks=[7]"]),
    ],
)  # fmt: skip
def test_a_message_that_a_person_sees_is_found_by_its_pattern(recipe: str, overrides: list[str], listed: str) -> None:
    from tandem.config.checks import check

    with pytest.raises(UserError) as caught:
        check(load(recipe, overrides, env={}))
    rows = [line.split(" | ")[0].removeprefix("| ") for line in listed.splitlines() if line.startswith("| ")]
    patterns = ["".join(".*" if part else re.escape(text) for text, part in re.findall(r"([^‹›…]+)|(‹[^›]*›|…)", row)) for row in rows]
    fitting = [
        row for row, pattern in zip(rows, patterns) if re.fullmatch(pattern, caught.value.what) and len(pattern.replace(".*", "")) > 8
    ]
    assert fitting, caught.value.what


# Commands

_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(tandem [a-z][^`]*)`")
_OPTIONAL = re.compile(r"(?<= )\[[^\]]*\](?= |$)")  # [key=value ...]
_EXAMPLES = {"RECIPE": "demo", "N": "4", "DIR": "dir", "...": "", "$@": ""}


def command_lines(path: Path, inline: bool = True) -> list[str]:
    """Every `tandem ...` of a page, without variables before it; `inline`: those in the text, too."""
    text = path.read_text().partition(MARK)[0]  # below it are pieces of the source
    lines = [line for block in _BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    found = [re.search(r"(?:^|\b[A-Z_]+=\S+ )(tandem [a-z-].*)", line) for line in lines]
    return [m[1] for m in found if m] + (_INLINE.findall(_BLOCK.sub("", text)) if inline else [])


def words_of(line: str) -> list[str]:
    line = _OPTIONAL.sub("", re.split(r" #|\s\| |, `", line)[0])
    return [word for part in shlex.split(line)[1:] if (word := _EXAMPLES.get(part, part))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_command_on_a_page_is_understood_and_its_settings_exist(path: str) -> None:
    in_blocks = command_lines(path, inline=False)
    for line in command_lines(path):
        words = words_of(line)
        try:
            given = parse(words)
        except WrongUse as error:
            if line not in in_blocks and (" ".join(words) in commands() or "Missing" in str(error)):
                continue  # the text speaks of the command
            raise AssertionError(f"{line}: {error}") from error
        recipe = given.get("recipe")
        if recipe in builtin_recipes():
            overrides = [word for word in given.get("overrides") or () if word != "key=value"]
            load(recipe, overrides, env={"DEVICE": "cpu"})


def test_pages_hold_enough_commands_for_the_test_to_mean_something() -> None:
    assert sum(len(command_lines(path)) for path in PAGES) > 80


# Links, also of the pages that are not in docs/


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files_that_are_there(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", _BLOCK.sub("", path.read_text())):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (path.parent / target).exists(), target


def test_english_and_chinese_pages_have_the_same_commands() -> None:
    for name in ("quickstart", "ascend"):
        english, chinese = (set(command_lines(DOCS / f"{name}{end}.md")) for end in ("", ".zh"))
        strip = lambda lines: {re.split(r"\s+#", line)[0] for line in lines}  # noqa: E731
        assert strip(english) == strip(chinese)


def test_the_picture_of_a_step_is_read_in_light_and_dark_and_by_screen_readers() -> None:
    text = (DOCS / "images" / "step.svg").read_text()
    assert "prefers-color-scheme: dark" in text and 'role="img"' in text and "<title" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_every_setting_says_what_it_is() -> None:
    assert [key for key, field in SETTINGS.items() if not field.description] == []


def test_every_metric_of_a_run_is_on_the_metrics_page() -> None:
    """Those of a recorded run and those that the loop's source names."""
    rows = (ROOT / "tests" / "report" / "real_run" / "metrics.jsonl").read_text().splitlines()
    groups = "kl|ratio|loss|routing|staleness|correction|update|critic|value|dynamic_sampling|environment"
    source = "\n".join(path.read_text() for room in ("run", "algorithms") for path in (messages.SOURCE / room).rglob("*.py"))
    names = {name for row in rows for name in json.loads(row)} | set(re.findall(rf'"((?:{groups})/[a-z0-9_]+)"', source)) | {"mfu"}
    names -= {name for name in names if name.startswith("routing/num_")}  # sums on their way to the shares
    listed = re.findall(r"`([a-z_]+[a-z_0-9/.<>]*)`", (DOCS / "metrics.md").read_text().replace("`/", "`").partition("## ")[0])
    places = [re.sub(r"\\\.\\\.\\\.|<[a-z]+>", ".+", re.escape(name)) for name in listed]
    missing = sorted(name for name in names if not any(re.fullmatch(rf"(?:[a-z_]+/)?{place}", name) for place in places))
    assert not missing
