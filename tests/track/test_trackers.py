"""Trackers: what each library is told, and that none of them can hold a run up, end it, or learn a secret."""

import importlib.util
import json
import re
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tandem.config.load import load
from tandem.errors import UserError
from tandem.run.tracker import Tracker
from tandem.secrets import without_secrets
from tandem.track.trackers import PACKAGES, check_installed
from tandem.track.trackers.group import Trackers, tracked_run

NAMES = ["trainer.project_name=geometry", "trainer.experiment_name=first"]


class Recorder:
    """Every attribute is a function that notes how it was called, and returns another recorder with the same list."""

    def __init__(self, calls: list, name: str = "", **values: object):
        self._calls, self._name = calls, name
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: object, **kwargs: object) -> object:
            self._calls.append((f"{self._name}{name}", args, kwargs))
            return Recorder(self._calls, f"{self._name}{name}.")

        return call


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch):
    """Puts a module in the place of a tracker's package; returns the list of calls."""

    def put(name: str, **values: object) -> list:
        calls: list = []
        recorder = Recorder(calls, **values)
        module = ModuleType(name)
        module.__getattr__ = lambda attribute: getattr(recorder, attribute)  # type: ignore[method-assign]
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)
        return calls

    return put


def run_with(tmp_path: Path, names: list[str], rows: list[dict], *overrides: str, steps_done: int | None = None, failed: bool = False):
    """What a run tells its trackers; returns its notes."""
    config = load("demo", [*NAMES, f"trainer.trackers=[{','.join(names)}]", *overrides])
    track = Tracker(tmp_path)
    track.open_trackers(config, steps_done)
    for row in rows:
        track.step(row)
    track.close_trackers(failed)
    return [event.text for event in track.take(0) if hasattr(event, "text")]


ROWS = [{"step": 1, "reward/mean": 0.5, "kl/ref": float("nan")}, {"step": 2, "reward/mean": 0.75, "kl/ref": 0.01}]


def of(calls: list, name: str) -> list:
    return [(args, kwargs) for called, args, kwargs in calls if called == name]


# TensorBoard, the real one


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(str(folder))
    reader.Reload()
    return {name: [(event.step, event.value) for event in reader.Scalars(name)] for name in reader.Tags()["scalars"]}


def test_tensorboard_reads_back_what_the_steps_had_and_the_settings_once(tmp_path):
    pytest.importorskip("tensorboard")
    assert run_with(tmp_path, ["tensorboard"], ROWS) == []
    assert scalars(tmp_path / "tensorboard") == {
        "reward/mean": [(1, 0.5), (2, 0.75)],
        "kl/ref": [(2, pytest.approx(0.01))],
        "nonfinite": [(1, 1)],
    }
    run_with(tmp_path, ["tensorboard"], [{"step": 2, "reward/mean": 1.0}, {"step": 3, "reward/mean": 2.0}], steps_done=1)
    assert scalars(tmp_path / "tensorboard")["reward/mean"] == [(1, 0.5), (2, 1.0), (3, 2.0)], "a step that was done again is there once"
    files = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())
    assert files.count(b"optimizer.lr: 0.0006") == 1


# The others, by stand-ins for their packages; benchmarks and CI have no account


def test_wandb_is_given_the_settings_once_and_a_step_that_may_be_done_again(tmp_path, stand_in):
    calls = stand_in("wandb")
    assert run_with(tmp_path, ["wandb"], ROWS) == []
    ((_, given),) = of(calls, "init")
    assert (given["project"], given["name"], given["resume"]) == ("geometry", "first", "allow")
    assert given["config"]["optimizer.lr"] == 6e-4 and "nan" not in str(given["config"])
    assert [args[0] for args, _ in of(calls, "init.log")] == [
        {"reward/mean": 0.5, "nonfinite": 1, "step": 1},
        {"reward/mean": 0.75, "kl/ref": 0.01, "step": 2},
    ]
    assert of(calls, "init.finish") == [((), {"exit_code": 0})]


@pytest.mark.parametrize("tracker", ["wandb", "swanlab", "trackio"])
def test_a_run_that_goes_on_is_the_same_run_there_and_one_begun_anew_is_not(tracker, tmp_path, stand_in):
    calls = stand_in(tracker)
    for steps_done in (None, 2, None):
        run_with(tmp_path, [tracker], ROWS[:1], steps_done=steps_done)
    ids = [given.get("id") or given["name"] for _, given in of(calls, "init")]
    assert ids[0] == ids[1] != ids[2]


def test_swanlab_and_trackio_are_given_metrics_by_step(tmp_path, stand_in):
    for name in ("swanlab", "trackio"):
        calls = stand_in(name)
        assert run_with(tmp_path, [name], ROWS) == []
        assert of(calls, "init")[0][1]["config"]["rollout.n"] == 8
        assert of(calls, "init.log") == [
            (({"reward/mean": 0.5, "nonfinite": 1},), {"step": 1}),
            (({"reward/mean": 0.75, "kl/ref": 0.01},), {"step": 2}),
        ]
        assert len(of(calls, "init.finish")) == 1


def test_mlflow_finds_the_run_again_by_its_tag(tmp_path, stand_in, monkeypatch):
    made = {"known": [], "status": [], "params": {}, "metrics": []}

    class Client:
        def __init__(self, tracking_uri):
            made["uri"] = tracking_uri

        def get_experiment_by_name(self, name):
            return SimpleNamespace(experiment_id="7") if made["known"] else None

        def create_experiment(self, name):
            assert name == "geometry"
            return "7"

        def search_runs(self, experiments, filter_string):
            assert experiments == ["7"]
            wanted = re.fullmatch(r"tags.`tandem.id` = '(\w+)'", filter_string)[1]
            return [SimpleNamespace(info=SimpleNamespace(run_id="r")) for known in made["known"] if known == wanted]

        def create_run(self, experiment, run_name, tags):
            made["known"].append(tags["tandem.id"])
            return SimpleNamespace(info=SimpleNamespace(run_id="r"))

        def log_batch(self, run_id, metrics=(), params=()):
            assert run_id == "r" and len(params) <= 100
            made["params"] |= dict(params)
            made["metrics"] += [(name, value, step) for name, value, _, step in metrics]

        def set_terminated(self, run_id, status):
            made["status"].append(status)

    stand_in("mlflow", MlflowClient=Client)
    stand_in("mlflow.entities", Param=lambda key, value: (key, value), Metric=lambda *parts: parts)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert run_with(tmp_path, ["mlflow"], ROWS) == []
    assert run_with(tmp_path, ["mlflow"], [{"step": 3, "reward/mean": 1.0}], steps_done=2, failed=True) == []
    assert len(made["known"]) == 1 and made["status"] == ["FINISHED", "RUNNING", "FAILED"]
    assert made["params"]["optimizer.lr"] == "0.0006" and made["uri"] == f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert [m for m in made["metrics"] if m[0] == "reward/mean"] == [
        ("reward/mean", 0.5, 1),
        ("reward/mean", 0.75, 2),
        ("reward/mean", 1.0, 3),
    ]


# What must never happen


def module_that(monkeypatch: pytest.MonkeyPatch, start) -> None:
    module = ModuleType("tandem.track.trackers.wandb")
    module.start = start  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("error", [RuntimeError("no network\nmore"), SystemExit(1), KeyError("x"), ImportError("libfoo.so")])
def test_a_tracker_that_fails_is_one_warning_and_the_run_goes_on(error, tmp_path, monkeypatch):
    def log(step, metrics):
        raise error

    module_that(monkeypatch, lambda run: SimpleNamespace(log=log, close=lambda failed: None))
    notes = run_with(tmp_path, ["wandb"], [{"step": step, "reward/mean": 0.5} for step in range(1, 30)])
    assert len(notes) == 1 and notes[0].startswith(f"tracker wandb is off after step 1: {type(error).__name__}")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 29


def test_a_tracker_that_cannot_be_opened_is_off_from_the_start(tmp_path, monkeypatch):
    def start(run):
        raise ValueError("no API key")

    module_that(monkeypatch, start)
    assert run_with(tmp_path, ["wandb"], ROWS) == [
        "tracker wandb is off from the start: ValueError: no API key; the run goes on, metrics.jsonl has it all"
    ]


def test_a_tracker_that_hangs_holds_nothing_up(tmp_path, monkeypatch):
    release, notes = threading.Event(), []
    module_that(monkeypatch, lambda run: SimpleNamespace(log=lambda step, metrics: release.wait(30), close=lambda failed: None))
    began = time.monotonic()
    trackers = Trackers(["wandb", "wandb"], tracked_run(tmp_path, {}, "p", "n", None), notes.append)
    for step in range(1000):
        trackers.log(step, {"reward/mean": 0.5})
    trackers.close(timeout_s=0.5)
    assert time.monotonic() - began < 5
    assert notes == ["tracker wandb has not taken everything by the end of the run; metrics.jsonl has it all"] * 2
    release.set()


def test_secrets_go_nowhere(tmp_path, monkeypatch, stand_in):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    calls = stand_in("wandb")
    secret = ["reward.name=http://me:geheim@grader/score?token=geheim", "data.train_files=[s3://0123456789abcdef/x.parquet]"]
    run_with(tmp_path, ["wandb"], ROWS, *secret)
    told = str(of(calls, "init"))
    assert "geheim" not in told and "0123456789abcdef" not in told and "http://***@grader/score?token=***" in told

    def start(run):
        raise ValueError("key 0123456789abcdef is refused")

    module_that(monkeypatch, start)
    (note,) = run_with(tmp_path, ["wandb"], ROWS)
    assert "0123456789abcdef" not in note and "***" in note
    assert "0123456789abcdef" not in "".join(path.read_text() for path in (tmp_path / "logs").iterdir())


def test_text_that_is_no_secret_stays():
    kept = {"a": ["hf://NAME:SPLIT", "/home/me@work/x", 1, None, "http://grader:80/score?n=3"], "b": {"c": True}}
    assert without_secrets(kept, {"HOME": "/home/me@work", "HF_TOKEN": "short"}) == kept
    named = {"TOKENIZER_NAME": "Qwen/Qwen3.5-35B-A3B", "KEYBOARD": "Qwen/Qwen3.5-35B-A3B", "MONKEY": "Qwen/Qwen3.5-35B-A3B"}
    assert without_secrets("Qwen/Qwen3.5-35B-A3B", named) == "Qwen/Qwen3.5-35B-A3B", "a run could not go on from its own settings"
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "db_password", "MY_ACCESSTOKEN", "SWANLAB_APIKEY", "TOKENS"):
        assert without_secrets("say open-sesame", {name: "open-sesame"}) == "say ***"


def test_a_package_that_is_missing_is_told_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "swanlab").mkdir()  # a folder of records is no package
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    for name in PACKAGES:
        monkeypatch.delitem(sys.modules, PACKAGES[name], raising=False)
        with pytest.raises(UserError, match=f"{name}.*not installed"):
            check_installed([name])


def test_names_are_checked_and_console_is_no_tracker():
    assert load("demo", ["trainer.trackers=[console,wandb,wandb]"]).trainer.trackers == ["wandb"]
    assert load("demo", ["trainer.logger=['console','tensorboard']"]).trainer.trackers == ["tensorboard"]
    with pytest.raises(UserError, match=r"one of console, tensorboard, wandb"):
        load("demo", ["trainer.trackers=clearml"])


def test_every_tracker_has_a_file_and_an_extra():
    for name in PACKAGES:
        assert importlib.util.find_spec(f"tandem.track.trackers.{name}"), name
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    track = re.search(r"^track = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)[1]
    assert all(package in track for package in PACKAGES.values())


def test_the_id_is_kept_beside_the_logs(tmp_path):
    first = tracked_run(tmp_path, {}, "p", "n", None)
    assert json.loads((tmp_path / "logs" / "trackers.json").read_text()) == {"id": first.id}
    assert tracked_run(tmp_path, {}, "p", "n", 3).id == first.id
    assert tracked_run(tmp_path / "other", {}, "p", "n", 3).steps_done is None, "its checkpoint is another run's: a new run there"
