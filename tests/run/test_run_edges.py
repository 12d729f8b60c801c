"""What surrounds the loop: the folder's lock, names that do not exist, a signal that reaches Ray first, and small figures."""

import json
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from tandem.actors import cluster
from tandem.algorithms.state import AlgorithmState
from tandem.config.load import load
from tandem.config.schema import FidelityConfig, WarmStartConfig
from tandem.errors import RunError, UserError
from tandem.run import assemble, evaluate, launch, loop
from tandem.run.fidelity import check_reference
from tandem.run.metrics import sample_metrics
from tandem.run.run import Run
from tandem.run.run_dir import begin, only_run_in
from tandem.run.tracker import Tracker
from tandem.sync.shared_memory import SHARED_MEMORY
from tandem.track.events import Table

HOLD = """
import sys, pathlib
from tandem.run.run_dir import only_run_in
with only_run_in(pathlib.Path(sys.argv[1])):
    print(flush=True)
    input()
"""


def test_a_second_run_in_the_same_folder_is_refused_and_a_killed_one_leaves_it_free(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline()  # it holds the folder now
        with pytest.raises(UserError, match="another run is using"), only_run_in(tmp_path):
            pass
        other.kill()
    with only_run_in(tmp_path):
        pass


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_run_whose_folder_was_removed_does_not_go_on_in_a_new_one(is_made_anew: bool, tmp_path: Path) -> None:
    """Without its checkpoints, and it would end with 0."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    track = Tracker(run_dir)
    track.step({"step": 1})
    shutil.rmtree(run_dir)
    if is_made_anew:
        run_dir.mkdir()
    with pytest.raises(FileNotFoundError, match="run"):
        track.step({"step": 2})
    with pytest.raises(FileNotFoundError, match="run"):
        track.rollouts(2, [])
    assert not list(tmp_path.glob("run/*"))


@pytest.mark.parametrize("name", ["checkpoints", "rollouts", "export"])
def test_a_file_where_a_folder_must_be_is_told_before_anything_starts(name: str, tmp_path: Path) -> None:
    """A step, or with export the whole run, would be lost to it."""
    (tmp_path / name).write_text("a file")
    with pytest.raises(UserError, match=f"{name} is in the way: it is no folder"):
        begin(load("demo", [f"run_dir={tmp_path}"], env={}), "cpu")
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    begin(load("demo", [f"run_dir={tmp_path}"], env={}), "cpu")


@pytest.mark.parametrize("key", ["algorithm.advantage", "algorithm.loss", "reward.name"])
def test_an_unknown_name_ends_the_run_before_anything_starts(key: str) -> None:
    launch.check_names(load("demo", env={}))
    with pytest.raises(UserError, match=r"unknown .* 'nope'") as caught:
        launch.check_names(load("demo", [f"{key}=nope"], env={}))
    assert key in caught.value.fix


class DeadController:
    """Ray's answer for an actor whose process is gone."""

    class news:
        @staticmethod
        def remote(timeout_s: float):
            from ray.exceptions import ActorDiedError

            raise ActorDiedError()


def test_a_signal_that_ends_the_controller_before_it_is_seen_is_still_a_stop_by_signal() -> None:
    seen = iter([False, True])  # the signal comes while the controller is asked for news
    assert launch._watch(None, DeadController, None, lambda: next(seen)) is None
    with pytest.raises(RunError, match="controller's process died"):
        launch._watch(None, DeadController, None, lambda: False)


def test_the_death_of_an_actor_is_told_without_rays_list_of_guesses() -> None:
    told = "The actor died.\n\tclass_name: X\nThe actor is dead because its worker process has died. End of file. Some common causes: (1)"
    assert cluster.cause_of_death(RuntimeError(told)) == "The actor is dead because its worker process has died. End of file."
    assert cluster.cause_of_death(RuntimeError("The actor is unavailable")) == "The actor is unavailable"


def sample(reward: float, group: int = 0) -> SimpleNamespace:
    row = SimpleNamespace(id="r", data_source="s", messages=[{"role": "user", "content": "?"}], ground_truth="7")
    completion = SimpleNamespace(token_ids=[1], finish_reason="stop")
    prompt = SimpleNamespace(row=row, token_ids=[1])
    scores = {"reward": reward, "accuracy": reward, "format": 0.0, "reason": "wrong", "also": {}, "length_penalty": 0.0}
    return SimpleNamespace(group=group, completion=completion, prompt=prompt, text="\\boxed{7}", answer=None, **scores)


def test_a_group_of_equal_rewards_is_not_mixed_whatever_their_mean_rounds_to() -> None:
    assert np.array([0.1] * 6).std() > 0
    assert sample_metrics([sample(0.1) for _ in range(6)])["reward/mixed_groups"] == 0
    assert sample_metrics([sample(0.1), sample(1.0), sample(0.3, 1), sample(0.3, 1)])["reward/mixed_groups"] == 0.5


def test_a_limit_of_0_on_the_first_reference_kl_does_not_check_as_the_settings_say() -> None:
    old, ref = [np.zeros(2, np.float32)], [np.full(2, 1e-3, np.float32)]
    check_reference(old, ref, FidelityConfig(max_kl_ref_at_start=0))
    with pytest.raises(RunError, match="policy and reference differ"):
        check_reference(old, ref, FidelityConfig(max_kl_ref_at_start=1e-4))


@pytest.mark.parametrize(("rewards", "interval"), [([1.0], None), ([0.0, 1.0], [0.0, 1.0])])
def test_the_interval_of_one_row_is_no_number_and_its_json_is_valid(tmp_path: Path, monkeypatch, rewards, interval) -> None:
    samples = [sample(reward) for reward in rewards]
    for number, one in enumerate(samples):
        one.prompt.row.id = f"r{number}"
    monkeypatch.setattr(loop, "sample_held_out", lambda run: samples)
    run = SimpleNamespace(val_prompts=[1], run_dir=tmp_path, track=Tracker(tmp_path), model_path="m", version=-1, record=lambda *args: None)
    run.config = load("demo", ["rollout.val_n=1"], env={})
    got = evaluate.evaluate(run)["accuracy_interval"]
    assert got == (interval if interval is None else pytest.approx(interval))
    json.loads((tmp_path / "eval.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_every_sample_of_an_evaluation_is_written_with_the_parts_of_its_reward_and_each_source_has_a_line(tmp_path, monkeypatch) -> None:
    samples = [sample(1.0), sample(0.0), sample(0.0, 1), sample(0.0, 1)]
    for one, row, source in zip(samples, "aabb", "xxyy"):
        one.prompt.row.id, one.prompt.row.data_source, one.answer = row, source, "7"
    monkeypatch.setattr(loop, "sample_held_out", lambda run: samples)
    run = SimpleNamespace(val_prompts=[1], run_dir=tmp_path, track=Tracker(tmp_path), model_path="m", version=-1, record=lambda *args: None)
    run.config = load("demo", ["rollout.val_n=2", "rollout.val_temperature=0.5"], env={})
    found = evaluate.evaluate(run)
    assert (
        found["accuracy"] == 0.25 and found["sources"]["x"]["pass_at_2"]["value"] == 1.0 and found["sources"]["y"]["avg_at_2"]["value"] == 0
    )
    rows = [json.loads(line) for line in (tmp_path / "eval_rows.jsonl").read_text().splitlines()]
    assert [row["row"] for row in rows] == ["a", "b"] and [len(row["samples"]) for row in rows] == [2, 2]
    assert rows[0]["samples"][0] | {"reward": 1.0, "accuracy": 1.0, "format": 0.0, "also": {}, "reason": "wrong"} == rows[0]["samples"][0]
    [shown] = [event for event in run.track.take(0) if isinstance(event, Table)]
    assert [row[0] for row in shown.rows] == ["all", "x", "y"] and "pass@2" in shown.columns and "maj@2" in shown.columns


class Recorder:
    """A run of one step whose every method only notes its name."""

    def __init__(self, *overrides: str):
        self.config, self.calls, self.total_steps, self.stop_requested = load("demo", overrides, env={}), [], 1, False
        self.trainers = self.track = self
        self.algorithm_state = AlgorithmState(0.0)

    def start(self) -> int:
        self.config = self.config.model_copy(update={"warm_start": WarmStartConfig()})
        return Run.start(self)

    def was_validated(self, step: int) -> bool:
        return False

    def phase(self, name: str) -> AbstractContextManager:
        return nullcontext()

    def __getattr__(self, name: str):
        return lambda *args, **kwargs: self.calls.append(name)


def test_the_trainer_makes_room_before_generators_start_and_they_sleep_until_the_first_publication(monkeypatch, tmp_path: Path) -> None:
    """A generator takes its share of a device when it starts: beside the trainer's weights and gradients a device would be too small."""
    calls: list[str] = []

    class Group:
        def __init__(self, *args, **kwargs):
            pass

        def __getattr__(self, name: str):
            return lambda *args, **kwargs: calls.append(f"{type(self).__name__}.{name}") or []

    trainers, generators = type("trainers", (Group,), {}), type("generators", (Group,), {})
    monkeypatch.setattr(assemble, "TrainGroup", trainers)
    monkeypatch.setattr(assemble, "GeneratorGroup", generators)
    monkeypatch.setattr(assemble, "RewardPool", Group)
    monkeypatch.setattr(assemble, "with_assets", lambda config, track: config)
    monkeypatch.setattr(cluster, "seats", lambda *args, **kwargs: SimpleNamespace(trainers=[], generators=[], shared=[]))
    monkeypatch.setattr(assemble.Run, "prepare_prompts", lambda run, **kwargs: None)
    monkeypatch.setattr(assemble.Run, "check_shared_folder", lambda run: None)
    builder = SimpleNamespace(banned_token_ids=list, stop_token_ids=list)
    monkeypatch.setattr(assemble.Run, "builder", builder, raising=False)
    for task, expected in {
        "train": ["Group.wait_until_ready", "trainers.start", "trainers.offload", "generators.start", "generators.sleep"],
        "sft": ["trainers.start", "trainers.offload"],
        "eval": ["Group.wait_until_ready", "generators.start"],
    }.items():
        calls.clear()
        run = assemble.assemble(load("demo", env={}), None, task, tmp_path, Tracker(tmp_path))
        assert [call for call in calls if call not in ("trainers.places", "trainers.peak_flops")] == expected
        if hasattr(run, "generators"):
            assert ("catch_up" in vars(run.generators)) == (task == "train"), "without trainers a new engine has the right weights"


def test_a_run_saves_before_it_validates_and_no_reference_is_kept_without_a_kl_term(monkeypatch) -> None:
    monkeypatch.setattr(loop, "one_step", lambda run, step: run.calls.append("one_step"))
    monkeypatch.setattr(loop, "validate", lambda run, step: run.calls.append("validate"))
    run = Recorder("algorithm.kl.coef=0")
    loop.train(run)
    calls = [call for call in run.calls if call not in ("_go_on_after", "go_on_after", "note", "prune", "settle_save")]
    assert run.calls[-2:] == ["settle_save", "export"], "a run is not over before its checkpoint is complete"
    assert calls == ["start_optimizer", "publish", "validate", "one_step", "step", "save", "validate", "export"]
    run = Recorder("algorithm.kl.coef=0.1")
    loop.train(run)
    assert run.calls.index("_keep_reference") < run.calls.index("start_optimizer")


HOLD_SEGMENT = """
import os, pathlib
from multiprocessing.shared_memory import SharedMemory
segment = SharedMemory(create=True, size=4096)
pathlib.Path(f"/dev/shm/sem.loky-{os.getpid()}-test").touch()
print(segment.name, flush=True)
input()
"""


def test_shared_memory_of_a_killed_process_is_found_and_that_of_others_is_not() -> None:
    others = SharedMemory(create=True, size=4096)
    with subprocess.Popen([sys.executable, "-c", HOLD_SEGMENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        name = child.stdout.readline().strip()
        process = psutil.Process(child.pid)
        trackers = process.children()
        found = launch.shared_memory_of([process])
        launch.end([*trackers, process], grace_s=0)  # the tracker, which would remove it, dies first, as it does when Ray ends
        assert found == {SHARED_MEMORY / name, SHARED_MEMORY / f"sem.loky-{child.pid}-test"}
        for path in found:
            path.unlink()  # was left behind
        child.wait()
    others.close()
    others.unlink()
    assert launch.shared_memory_of([process]) == set()
