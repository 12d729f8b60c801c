"""What is published: a source archive and a wheel that hold everything a command needs, installed where nothing else of Tandem is."""

import json
import os
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import tandem

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests" / "report" / "real_run"


def sources() -> set[str]:
    """Every file of the package in this checkout, as a wheel names it."""
    folder = ROOT / "src"
    return {
        path.relative_to(folder).as_posix() for path in (folder / "tandem").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The source archive of this checkout, and the wheel that is built from what the archive holds, not from the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    hatch = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t"]
    subprocess.run([*hatch, "sdist"], cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    subprocess.run([*hatch, "wheel"], cwd=unpacked, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return archive, wheel


def test_the_wheel_holds_every_file_of_the_package_and_no_other(built) -> None:
    names = set(zipfile.ZipFile(built[1]).namelist())
    info = f"tandem_rl-{tandem.__version__}.dist-info"
    assert {name for name in names if not name.startswith(info)} == sources()
    assert {"tandem/py.typed", "tandem/recipes/demo.yaml", "tandem/report/web/shell.html"} <= names
    assert f"{info}/licenses/LICENSE" in names


def test_the_source_archive_has_what_a_packager_needs_and_nothing_of_this_machine(built) -> None:
    with tarfile.open(built[0]) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    wanted = [
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "Makefile",
        "tests/conftest.py",
        "docs/plan.md",
        "requirements/cpu.txt",
    ]
    assert set(wanted) <= names
    assert {f"src/{name}" for name in sources()} <= names
    allowed = {"src", "tests", "benchmarks", "docs", "examples", "docker", "requirements"}
    assert {name.partition("/")[0] for name in names if "/" in name} <= allowed
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".log"))]


def test_the_metadata_name_version_extras_and_licence(built) -> None:
    info = f"tandem_rl-{tandem.__version__}.dist-info"
    lines = zipfile.ZipFile(built[1]).read(f"{info}/METADATA").decode().splitlines()
    assert {"Name: tandem-rl", f"Version: {tandem.__version__}", "License-Expression: Apache-2.0"} <= set(lines)
    extras = {line.removeprefix("Provides-Extra: ") for line in lines if line.startswith("Provides-Extra: ")}
    assert extras == {"cpu", "gpu", "npu", "track", "profile", "dev", "docs"}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """`tandem` of the wheel in an environment of its own, which finds dependencies, and only them, where these tests run."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    where = subprocess.run([python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True)
    others = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    (Path(where.stdout.strip()) / "dependencies.pth").write_text(others)
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(built[1])]
    subprocess.run(install, check=True, capture_output=True)
    return folder / "bin" / "tandem"


def run(command: list[str | Path], cwd: Path) -> str:
    left_out = ("PYTHONPATH", "DEVICE")
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | {"XDG_CACHE_HOME": str(cwd / "cache")}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done
    return done.stdout


def test_the_installed_command_is_the_wheels_and_says_its_version(installed, tmp_path) -> None:
    where = run([installed.with_name("python"), "-c", "import tandem; print(tandem.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parents[1])
    first, *parts = run([installed, "--version"], tmp_path).splitlines()
    assert first == f"tandem {tandem.__version__}"
    assert {"python", "torch", "megatron-core", "ray", "transformers"} <= {line.split()[0] for line in parts}


def test_the_installed_command_has_its_recipes_and_its_page(installed, tmp_path) -> None:
    planned = json.loads(run([installed, "plan", "demo", "--json"], tmp_path))
    assert planned["legal"] and planned["recipe"] == "demo"
    shutil.copytree(RUN, tmp_path / "run")
    run([installed, "report", "run"], tmp_path)
    assert "follow(first);\n</script>" in (tmp_path / "run" / "report.html").read_text()


def test_shells_complete_recipes_and_settings(installed, tmp_path) -> None:
    assert "_TANDEM_COMPLETE" in run([installed, "--show-completion", "bash"], tmp_path)

    def completed(*words: str) -> set[str]:
        environment = {"_TANDEM_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["tandem", *words]), "COMP_CWORD": str(len(words))}
        return set(run(["env", *(f"{name}={value}" for name, value in environment.items()), installed], tmp_path).split())

    assert completed("plan", "qwen") == {"qwen3_5_35b_a3b", "qwen3_5_122b_a10b"}
    assert completed("train", "demo", "optimizer.l") == {"optimizer.lr="}
