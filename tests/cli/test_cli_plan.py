"""`tandem plan` as it is typed: exit codes, JSON, the look for layouts, amounts of memory; and the plan that a run makes first."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tandem.cli.plan import num_bytes
from tandem.config.load import load
from tandem.errors import UserError
from tests.cli.commands import tandem

KEYS = {"recipe", "device", "legal", "broken_rules", "fits", "checks", "change", "model", "layout", "batch", "stages", "host", "generator"}
KEYS |= {"compute", "traffic"}


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "ours.yaml").write_text("base: qwen3_5_35b_a3b\ndevice: npu\noptimizer: {on_cpu: false}\n")
    return "ours.yaml"


def test_a_plan_that_fits_exits_with_0_and_one_that_does_not_with_2_and_the_change(recipe: str, tmp_path: Path) -> None:
    fits = tandem("plan", recipe, "--memory", "64GiB", cwd=tmp_path)
    assert fits.code == 0
    assert "it fits: tightest is device, update: 47.9 GiB of 64.0 GiB" in " ".join(fits.out.split())
    too_much = tandem("plan", recipe, "--memory", "40GiB", cwd=tmp_path)
    assert too_much.code == 2
    assert "does not fit: device, update: 47.9 GiB of 40.0 GiB" in too_much.out
    assert "smallest change that makes it fit: " in too_much.out
    assert too_much.err == ""


def test_json_has_the_documented_keys_and_adds_up(recipe: str, tmp_path: Path) -> None:
    made = json.loads(tandem("plan", recipe, "--memory", "40GiB", "--json", cwd=tmp_path).out)
    assert made.keys() == KEYS
    told = Path(__file__).parents[2].joinpath("docs", "plan.md").read_text()
    assert all(f"`{key}`" in told for key in KEYS)
    assert (made["legal"], made["fits"]) == (True, False)
    for stage in made["stages"]:
        for memory in stage["phases"].values():
            assert memory["total"] == sum(size for name, size in memory.items() if name != "total")
    assert [stage["num_ranks"] for stage in made["stages"]] == [8, 8]
    update = next(check for check in made["checks"] if (check["place"], check["phase"]) == ("device", "update"))
    assert update["needed_bytes"] == max(stage["phases"]["update"]["total"] for stage in made["stages"])
    assert made["change"]


def test_an_illegal_layout_exits_with_2_and_every_broken_rule(recipe: str, tmp_path: Path) -> None:
    ended = tandem("plan", recipe, "parallel.tp=4", "parallel.pp=3", "--json", cwd=tmp_path)
    assert ended.code == 2
    refused = json.loads(ended.out)
    assert (refused["legal"], refused["fits"]) == (False, False)
    assert len(refused["broken_rules"]) == 4
    assert all(rule.keys() == {"what", "why", "fix"} for rule in refused["broken_rules"])


def test_the_setting_that_mends_a_layout_is_whole_on_a_narrow_terminal(recipe: str, tmp_path: Path) -> None:
    ended = tandem("plan", recipe, "batch.mini_batch_size=20", cwd=tmp_path)
    assert "…" not in ended.out
    cells = [line.split("│")[3].strip() for line in ended.out.splitlines() if line.startswith("│")]
    assert "batch.mini_batch_size=16" in "".join(cells)


def test_without_the_devices_memory_nothing_is_compared(recipe: str, tmp_path: Path) -> None:
    made = json.loads(tandem("plan", recipe, "--json", cwd=tmp_path).out)
    assert (made["fits"], made["checks"]) == (None, [])


def test_devices_and_search(recipe: str, tmp_path: Path) -> None:
    found = json.loads(tandem("plan", recipe, "--devices", "8", "--memory", "80GiB", "--search", "--json", cwd=tmp_path).out)
    assert 0 < len(found) <= 10
    assert all(one["tp"] * one["pp"] * one["cp"] * one["dp"] == 8 for one in found)
    assert tandem("plan", recipe, "--devices", "17", cwd=tmp_path).code == 2


def test_a_model_that_is_not_here_is_told_with_what_is_known_without(tmp_path: Path) -> None:
    ended = tandem("plan", "demo", "model.path=Qwen/Qwen3.5-9B", cwd=tmp_path)
    assert ended.code == 2
    assert "Qwen/Qwen3.5-35B-A3B" in ended.err
    assert len(ended.err.splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "expected"), [("64GiB", 64 << 30), ("80GB", 80 * 10**9), ("1.5TiB", 3 << 39), ("1073741824", 1 << 30), ("", 0)]
)
def test_amounts_of_memory(text: str, expected: int) -> None:
    assert num_bytes(text) == expected


@pytest.mark.parametrize("text", ["64 apples", "GiB", "-1GiB", "64", "64KiB"])
def test_what_is_no_amount_of_memory_is_told(text: str) -> None:
    with pytest.raises(UserError, match="amount of memory"):
        num_bytes(text)


def test_a_run_writes_its_plan_and_one_that_does_not_fit_starts_nothing(tmp_path: Path, monkeypatch) -> None:
    from tandem.devices import cpu
    from tandem.run import launch

    started: list[str] = []
    monkeypatch.setattr(launch, "_run", lambda config, task, *_: started.append(task) or {})
    monkeypatch.setattr(launch, "_clean_up", lambda run_dir: None)
    console = SimpleNamespace(emit=lambda event: None)
    config = load("demo", [f"run_dir={tmp_path / 'run'}"], env={})
    launch.launch(config, "train", console)
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["layout"]["world"] == 2
    monkeypatch.setattr(cpu, "memory_bytes", lambda: 1 << 30)
    with pytest.raises(UserError, match="does not fit: host"):
        launch.launch(config, "train", console)
    assert started == ["train"]


def test_a_recipe_with_parts_for_devices_is_planned_for_this_machine_or_the_named_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEVICE", raising=False)
    assert "2 ranks on cpu" in tandem("plan", "qwen3_5_35b_a3b", cwd=tmp_path).out
    assert "8 ranks on gpu" in tandem("plan", "qwen3_5_35b_a3b", "--memory", "96GiB", cwd=tmp_path).out, "this machine has no device memory"
    monkeypatch.setenv("DEVICE", "npu")
    assert "16 ranks on npu" in tandem("plan", "qwen3_5_35b_a3b", cwd=tmp_path).out
    monkeypatch.setenv("DEVICE", "tpu")
    (tmp_path / "own.yaml").write_text("base: demo\ndevice: auto\n")
    ended = tandem("plan", "own.yaml", cwd=tmp_path)
    assert ended.code == 2 and "unknown device 'tpu'" in ended.err
