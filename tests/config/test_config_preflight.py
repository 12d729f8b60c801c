"""What must be there before a run: each missing thing is told in one message, and nothing that is there is refused."""

import json
import shutil
import socket
from pathlib import Path

import pytest

from tandem.config.load import load
from tandem.config.modelfolder import check_model
from tandem.config.preflight import (
    check_address,
    check_cluster,
    check_run_dir,
    check_shared_memory,
    check_sources,
    own_address,
    preflight,
    shared_memory_needed,
)
from tandem.config.schema import Config, ParallelConfig
from tandem.config.weightfiles import read_header
from tandem.errors import UserError


def config_of(*overrides: str) -> Config:
    return load("demo", overrides, env={})


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of a real tiny model to break."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def split(model: Path, names: tuple[str, ...]) -> None:
    """Turn the single weight file into an index that names `names`, the first of which exists and holds all tensors."""
    (model / "model.safetensors").rename(model / names[0])
    weight_map = dict.fromkeys(read_header(model / names[0]).tensors, names[0]) | {f"t{i}": name for i, name in enumerate(names[1:])}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def add_to_index(model: Path, **files: str) -> None:
    """Shard the model and let its index name more tensors than there are."""
    split(model, ("a.safetensors",))
    index = json.loads((model / "model.safetensors.index.json").read_text())
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index["weight_map"] | files}))


def keep_single_file_beside_index(model: Path) -> None:
    split(model, ("a.safetensors",))
    shutil.copyfile(model / "a.safetensors", model / "model.safetensors")


def test_a_whole_model_passes_in_one_file_or_with_an_index(model: Path) -> None:
    check_model(str(model), ParallelConfig())
    split(model, ("model-00001-of-00001.safetensors",))
    check_model(str(model), ParallelConfig())


def test_a_hub_name_is_left_to_the_hub_client_but_a_path_is_not() -> None:
    check_model("Qwen/Qwen3.5-35B-A3B", ParallelConfig())
    for path in ("/nowhere/model", "nowhere", "./a/b", "a/b/c", "~/nowhere/x"):
        with pytest.raises(UserError, match="no model at"):
            check_model(path, ParallelConfig())


def set_config(model: Path, **changes: object) -> None:
    path = model / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


@pytest.mark.parametrize(
    ("breaking", "said"),
    [
        (lambda m: (m / "config.json").unlink(), "no config.json"),
        (lambda m: (m / "config.json").write_text("{'a': 1"), "not valid JSON"),
        (lambda m: (m / "config.json").write_bytes(b"\xff\xfe\x00"), "not valid JSON"),
        (lambda m: (m / "config.json").write_text("[1]"), "no JSON object"),
        (lambda m: set_config(m, model_type="qwen2_vl"), "model_type is 'qwen2_vl'"),
        (lambda m: set_config(m, model_type=None), "model_type is None"),
        (lambda m: set_config(m, model_type="qwen3_5_moe_text"), "qwen3_5_moe or qwen3_5"),
        (lambda m: set_config(m, vision_config=None), "no vision_config"),
        (lambda m: set_config(m, text_config=None), "no text_config"),
        (lambda m: (m / "model.safetensors").unlink(), "no weights"),
        (lambda m: split(m, ("a.safetensors", "b.safetensors", "c.safetensors")), "2 of 3 weight files are missing"),
        (lambda m: (m / "model.safetensors.index.json").write_text("{}"), "no weight_map"),
        (lambda m: add_to_index(m, ghost="a.safetensors"), "index.json does not say what the weight files hold: ghost in a.safetensors"),
        (lambda m: add_to_index(m, ghost="../a.safetensors"), "1 of 2 weight files are missing"),
        (keep_single_file_beside_index, "beside model.safetensors.index.json"),
        (lambda m: (m / "model.safetensors").write_bytes((m / "model.safetensors").read_bytes()[:-1]), "not a whole safetensors file"),
        (lambda m: (m / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1"), "not a whole safetensors file"),
        (lambda m: (m / "model.safetensors").write_bytes(b""), "not a whole safetensors file"),
        (lambda m: [path.unlink() for path in m.glob("*processor_config.json")], "no image processor"),
        (lambda m: [path.unlink() for path in [*m.glob("*token*"), *m.glob("vocab*")]], "no tokenizer"),
    ],
)
def test_a_broken_model_folder_is_told(breaking, said: str, model: Path) -> None:
    breaking(model)
    with pytest.raises(UserError) as caught:
        check_model(str(model), ParallelConfig())
    assert said in str(caught.value)
    assert str(model) in str(caught.value)


@pytest.mark.parametrize("key", ["cluster.master_port", "cluster.dashboard_port"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_told_and_free_again_when_its_listener_is_gone(key: str, host: str) -> None:
    with socket.socket() as listener:
        listener.bind((host, 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use") as caught:
            check_cluster(config_of(f"{key}={port}"))
        assert key in str(caught.value)
    check_cluster(config_of(f"{key}={port}"))


def test_ports_of_zero_are_left_to_the_system() -> None:
    check_cluster(config_of("cluster.master_port=0", "cluster.dashboard_port=0"))


def test_several_nodes_need_a_cluster_to_join() -> None:
    with pytest.raises(UserError, match=r"cluster\.address"):
        check_cluster(config_of("device=npu", "trainer.nnodes=2"))
    check_cluster(config_of("device=npu", "trainer.nnodes=2", "cluster.address=10.0.0.1:6379"))


def test_an_address_where_no_cluster_listens_is_told_at_once_instead_of_after_minutes() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(UserError, match=f"no Ray cluster at cluster.address = {address}"):
            check_address(address)  # bound, but nobody listens
        listener.listen()
        if own_address() != "127.0.0.1":
            with pytest.raises(UserError, match=f"Ray takes {own_address()}"):
                check_address(address)  # Ray would look at the other address, for minutes
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        check_address(f"127.0.0.1:{listener.getsockname()[1]}")
    check_address("")
    check_address("auto")
    for wrong in ("localhost", "localhost:", ":6379", "host:ray", "localhost:99999999"):
        with pytest.raises(UserError, match=r"cluster\.address"):
            check_address(wrong)


def test_shared_memory_is_compared_with_what_is_free(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    check_shared_memory(free // 2, tmp_path)
    with pytest.raises(UserError) as caught:
        check_shared_memory(free + (10 << 30), tmp_path)
    assert f"{(free + (10 << 30)) / (1 << 30):.2f} GiB" in str(caught.value)
    assert "--shm-size=" in str(caught.value)
    with pytest.raises(UserError, match="no "):
        check_shared_memory(1, tmp_path / "absent")


def test_shared_memory_needed_is_the_object_store_and_a_bucket() -> None:
    bucket = 16 << 20
    sizes = (f"sync.bucket_bytes={bucket}", "cluster.object_store_bytes=1000")
    assert shared_memory_needed(config_of(*sizes)) == 1000 + bucket
    assert shared_memory_needed(config_of(sizes[0], "device=cpu")) == (256 << 20) + bucket
    assert shared_memory_needed(config_of(sizes[0], "device=npu")) == bucket
    assert shared_memory_needed(config_of(*sizes, "cluster.address=head:1")) == bucket
    ranks = ["trainer.devices_per_node=4", "parallel.pp=2", "cluster.address=head:1"]
    assert shared_memory_needed(config_of(*sizes, *ranks)) == 2 * bucket  # each stage publishes its own
    assert shared_memory_needed(config_of(*sizes, *ranks, "parallel.ep=2")) == 4 * bucket
    assert shared_memory_needed(config_of(*sizes, *ranks, "parallel.ep=2", "trainer.nnodes=2", "trainer.devices_per_node=2")) == 2 * bucket


def test_a_folder_with_a_run_is_gone_on_with_only_when_asked(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoints" / "reference").mkdir(parents=True)
    check_run_dir(config_of(f"run_dir={folder}"), "train")  # it failed before its first step
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(UserError, match="already holds a run"):
        check_run_dir(config_of(f"run_dir={folder}"), "train")
    check_run_dir(config_of(f"run_dir={folder}", "resume=auto"), "train")
    check_run_dir(config_of(f"run_dir={folder}"), "eval")  # trains nothing


def test_a_run_dir_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write run_dir"):
        check_run_dir(config_of(f"run_dir={tmp_path}/file/run"), "train")
    check_run_dir(config_of(f"run_dir={tmp_path}/a/b/c"), "train")
    assert not (tmp_path / "a").exists()  # only looked at


def test_a_run_without_rows_or_model_is_refused(tmp_path: Path) -> None:
    base = ["prepare=", "model.path=org/name"]
    with pytest.raises(UserError, match=r"data\.train_files is empty"):
        check_sources(config_of(*base), "train")
    with pytest.raises(UserError, match=r"data\.val_files is empty"):
        check_sources(config_of(*base, "data.train_files=a"), "eval")
    with pytest.raises(UserError, match=r"model\.path is empty"):
        check_sources(config_of("prepare=", "data.train_files=a"), "train")
    check_sources(config_of(*base, "data.train_files=a"), "sft")
    with pytest.raises(UserError, match=r"warm_start\.max_steps = 0"):
        check_sources(config_of(*base, "data.train_files=a", "warm_start.max_steps=0"), "sft")
    check_sources(config_of(), "demo")


def test_every_list_of_files_is_looked_at_once(tmp_path: Path) -> None:
    seen: list[tuple[list[str], bool]] = []
    config = config_of(f"run_dir={tmp_path}/r", "data.train_files=[a, b]", "data.val_files=c", "warm_start.val_files=c")
    preflight(config, "train", lambda *call: seen.append(call))
    assert seen == [(["a", "b"], True), (["c"], True)]  # the demo has a warm start, which learns the rows' responses
    seen.clear()
    config = config_of(f"run_dir={tmp_path}/r", "data.train_files=a", "data.val_files=b", "warm_start.val_files=c")
    preflight(config, "train", lambda *call: seen.append(call))
    assert seen == [(["a"], True), (["b"], False), (["c"], True)]
    for task, overrides in (("eval", []), ("train", ["warm_start.max_steps=0"])):
        seen.clear()
        preflight(
            config_of(f"run_dir={tmp_path}/r", "data.train_files=a", "data.val_files=b", *overrides), task, lambda *call: seen.append(call)
        )
        assert seen == [(["a"], False), (["b"], False)]


def test_a_cache_that_cannot_be_written_is_told_before_anything_starts(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot write the cache"):
        preflight(config_of(f"run_dir={tmp_path}/r"), "train", lambda *call: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    preflight(config_of(f"run_dir={tmp_path}/r"), "train", lambda *call: None)
