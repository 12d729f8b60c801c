"""The two recipes: the published values for each device, the variables that replace them, and the order in which sources win."""

import re
from pathlib import Path

import pytest

from tandem.config.checks import check, data_parallel_size, world_size
from tandem.config.load import load
from tandem.config.notes import notes
from tandem.config.recipe_file import DEVICES, builtin_recipes, find_recipe, read_layers
from tandem.config.schema import Config
from tandem.errors import UserError

SMALL, LARGE = "qwen3_5_35b_a3b", "qwen3_5_122b_a10b"

# As the guide and the launch scripts it names have them.
PUBLISHED = {
    (SMALL, ""): "model.path=Qwen/Qwen3.5-35B-A3B model.dtype=bfloat16 data.train_batch_size=32 data.max_prompt_length=1024 "
    "data.max_response_length=2048 data.truncation=error data.filter_overlong=True batch.mini_batch_size=32 batch.packing=True rollout.n=5 "
    "optimizer.lr=1e-06 algorithm.kl.coef=0.01 algorithm.kl.kind=k3 algorithm.kl.where=loss algorithm.entropy_coef=0.0 "
    "rollout.memory_share=0.6 rollout.max_model_len=0 trainer.recompute=full trainer.offload=True optimizer.on_cpu=True "
    "model.router_aux_loss_coef=0.0 model.router_z_loss_coef=0.0 trainer.save_freq=20 trainer.test_freq=5 trainer.total_epochs=15 "
    "parallel.vpp=0 algorithm.advantage=grpo prepare=geo3k trainer.nnodes=1",
    (SMALL, "npu"): "trainer.devices_per_node=16 parallel.tp=2 parallel.pp=2 parallel.cp=1 parallel.ep=8 parallel.etp=1 rollout.tp=8",
    (SMALL, "gpu"): "trainer.devices_per_node=8 parallel.tp=2 parallel.pp=1 parallel.cp=1 parallel.ep=8 parallel.etp=1 rollout.tp=8",
    (LARGE, ""): "model.path=Qwen/Qwen3.5-122B-A10B model.dtype=bfloat16 data.train_batch_size=128 data.max_prompt_length=3240 "
    "data.max_response_length=4096 data.truncation=right data.filter_overlong=True batch.mini_batch_size=64 batch.packing=True rollout.n=6 "
    "optimizer.lr=1e-06 algorithm.kl.coef=0.0 algorithm.entropy_coef=0.0 trainer.recompute=full trainer.offload=True optimizer.on_cpu=True "
    "model.router_aux_loss_coef=0.0 model.router_z_loss_coef=0.0 trainer.save_freq=50 trainer.test_freq=10 "
    "trainer.total_epochs=20 parallel.vpp=0 algorithm.advantage=grpo prepare=geo3k trainer.nnodes=4",
    (LARGE, "npu"): "trainer.devices_per_node=16 parallel.tp=2 parallel.pp=4 parallel.cp=1 parallel.ep=16 parallel.etp=1 rollout.tp=16 "
    "rollout.memory_share=0.6 rollout.max_model_len=8192",
    (LARGE, "gpu"): "trainer.devices_per_node=8 parallel.tp=2 parallel.pp=2 parallel.cp=1 parallel.ep=8 parallel.etp=1 rollout.tp=8 "
    "rollout.memory_share=0.66 rollout.max_model_len=15768",
}


def value(config: Config, key: str) -> object:
    found: object = config
    for name in key.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("recipe", [SMALL, LARGE])
@pytest.mark.parametrize("device", ["npu", "gpu"])
def test_the_published_values(recipe: str, device: str) -> None:
    config = load(recipe, env={"DEVICE": device})
    for setting in f"device={device} {PUBLISHED[recipe, '']} {PUBLISHED[recipe, device]}".split():
        key, _, expected = setting.partition("=")
        assert str(value(config, key)) == expected, key
    home = Path.home() / "data" / "geo3k"
    assert (config.data.train_files, config.data.val_files) == ([str(home / "train.parquet")], [str(home / "test.parquet")])


@pytest.mark.parametrize(
    ("recipe", "device", "ranks", "copies", "generators"),
    [(SMALL, "npu", 16, 4, 2), (SMALL, "gpu", 8, 4, 1), (LARGE, "npu", 64, 8, 4), (LARGE, "gpu", 32, 8, 4), (SMALL, "cpu", 2, 1, 2),
     (LARGE, "cpu", 2, 1, 2)],
)  # fmt: skip
def test_the_layout_is_legal_and_generators_fill_the_devices(recipe: str, device: str, ranks: int, copies: int, generators: int) -> None:
    config = load(recipe, [f"device={device}"], env={})
    check(config)
    assert (world_size(config), data_parallel_size(config), config.rollout.replicas) == (ranks, copies, generators)


def test_all_offload_means_the_optimizer_too() -> None:
    off = load(SMALL, env={"DEVICE": "gpu", "ALL_OFFLOAD": "False"})
    assert (off.trainer.offload, off.optimizer.on_cpu) == (False, False)
    assert load(SMALL, ["optimizer.on_cpu=true"], env={"DEVICE": "gpu", "ALL_OFFLOAD": "False"}).optimizer.on_cpu is True


def test_fewer_devices_of_a_generator_make_more_generators() -> None:
    assert load(SMALL, env={"DEVICE": "npu", "GEN_TP": "4"}).rollout.replicas == 4


VARIABLES = {
    SMALL: "HF_MODEL_PATH=/m:model.path=/m train_path=/a:data.train_files=['/a'] test_path=/b:data.val_files=['/b'] TP=1:parallel.tp=1 "
    "NDEVICES_PER_NODE=32:trainer.devices_per_node=32 PP=5:parallel.pp=5 CP=2:parallel.cp=2 EP=4:parallel.ep=4 ETP=2:parallel.etp=2 "
    "GEN_TP=4:rollout.tp=4 ALL_OFFLOAD=False:trainer.offload=False DEVICE=gpu:device=gpu",
    LARGE: "HF_MODEL_PATH=/m:model.path=/m train_files=/a:data.train_files=['/a'] test_files=/b:data.val_files=['/b'] TP=1:parallel.tp=1 "
    "n_devices_per_node=8:trainer.devices_per_node=8 NDEVICES_PER_NODE=8:trainer.devices_per_node=8 nnodes=2:trainer.nnodes=2 "
    "PP=2:parallel.pp=2 CP=2:parallel.cp=2 EP=8:parallel.ep=8 ETP=2:parallel.etp=2 GEN_TP=8:rollout.tp=8 save_path=/s:run_dir=/s "
    "project_name=p:trainer.project_name=p exp_name=e:trainer.experiment_name=e adv_estimator=rloo:algorithm.advantage=rloo "
    "vllm_max_model_len=9000:rollout.max_model_len=9000 rollout_gpu_memory_utilization=0.5:rollout.memory_share=0.5 "
    "ACTOR_VPP=2:parallel.vpp=2 ACTOR_VPP=null:parallel.vpp=0 ALL_OFFLOAD=False:trainer.offload=False DEVICE=gpu:device=gpu",
}


@pytest.mark.parametrize(("recipe", "case"), [(recipe, case) for recipe, cases in VARIABLES.items() for case in cases.split()])
def test_a_variable_wins_over_the_recipe_and_loses_to_an_argument(recipe: str, case: str) -> None:
    variable, _, setting = case.partition(":")
    key, _, expected = setting.partition("=")
    env = {"DEVICE": "npu", "ACTOR_VPP": ""} | dict([variable.split("=")])
    assert str(value(load(recipe, env=env), key)) == expected
    before = load(recipe, env={"DEVICE": "npu"})
    written = value(before, key)
    again = load(recipe, [f"{key}={written[0] if isinstance(written, list) else written}"], env=env)
    assert value(again, key) == written


@pytest.mark.parametrize("recipe", [SMALL, LARGE])
def test_every_variable_of_a_recipe_is_in_the_table_above(recipe: str) -> None:
    (layer,) = read_layers(find_recipe(recipe))
    assert set(layer.environment) == {case.partition("=")[0] for case in VARIABLES[recipe].split()}


@pytest.mark.parametrize("recipe", [SMALL, LARGE])
def test_the_script_lists_the_variables_of_its_recipe(recipe: str) -> None:
    name = {SMALL: "run_qwen3_5_35b_megatron.sh", LARGE: "run_qwen3_5_122b_a10b_megatron.sh"}[recipe]
    text = (Path(__file__).parents[2] / "examples" / "grpo_trainer" / name).read_text()
    (layer,) = read_layers(find_recipe(recipe))
    assert [variable for variable in layer.environment if not re.search(rf"^# .*\b{variable}\b", text, re.MULTILINE)] == []
    assert len(text.splitlines()) < 60
    assert f'train {recipe} "$@"' in text


def message(*overrides: str, recipe: str = LARGE, **env: str) -> str:
    with pytest.raises(UserError) as caught:
        load(recipe, overrides, env)
    return str(caught.value)


def test_a_wrong_variable_is_named() -> None:
    assert "environment variable TP" in message(DEVICE="npu", TP="two")
    assert "environment variable ALL_OFFLOAD" in message(DEVICE="npu", ALL_OFFLOAD="yes")
    said = message(DEVICE="tpu")
    assert "environment variable DEVICE" in said
    assert all(name in said for name in ("npu", "gpu", "cpu"))
    said = message(DEVICE="npu", n_devices_per_node="8", NDEVICES_PER_NODE="16")
    assert "n_devices_per_node" in said
    assert "NDEVICES_PER_NODE" in said


def test_a_variable_set_to_nothing_is_unset() -> None:
    assert load(SMALL, env={"DEVICE": "npu", "TP": "", "train_path": ""}) == load(SMALL, env={"DEVICE": "npu"})


def test_the_device_is_looked_for_only_when_nothing_names_one() -> None:
    def never() -> str:
        raise AssertionError("looked for a device")

    assert load(SMALL, ["device=cpu"], {"DEVICE": "npu"}, never).parallel.pp == 1
    assert load(SMALL, [], {"TANDEM__DEVICE": "gpu", "DEVICE": "npu"}, never).device == "gpu"
    assert load("demo", [], {}, never).device == "cpu"
    for device in DEVICES:
        assert load(SMALL, [], {}, lambda device=device: device) == load(SMALL, [], {"DEVICE": device})  # type: ignore[misc]
    assert load(SMALL, ["device=auto"], {"DEVICE": "gpu"}, lambda: "npu").parallel.pp == 2
    assert "device=npu|gpu|cpu" in message()


def test_a_recipe_over_another_wins_over_its_part_for_the_device(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"base: {SMALL}\nenvironment: {{STEPS: trainer.total_steps}}\nparallel: {{tp: 1}}\nnpu: {{parallel: {{ep: 4}}}}\n")
    config = load(str(mine), env={"DEVICE": "npu", "STEPS": "3", "CP": "2"})
    assert (config.parallel.tp, config.parallel.pp, config.parallel.ep, config.parallel.cp) == (1, 2, 4, 2)
    assert config.trainer.total_steps == 3
    assert load(str(mine), env={"DEVICE": "gpu"}).parallel.ep == 8


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("npu: {parallel: {tpp: 1}}", "unknown key `parallel.tpp`"),
        ("npu: {npu: {run_dir: x}}", "unknown key `npu`"),
        ("npu: {}\ncpu: {}\nnpu: {}", "duplicate key `npu`"),
        ("environment: {TP: parallel.tpp}", "unknown key `parallel.tpp`"),
        ("environment: [TP]", "environment must map"),
    ],
)
def test_a_mistake_in_a_part_is_named_with_its_line(text: str, part: str, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(text)
    said = message(recipe=str(tmp_path / "r.yaml"), DEVICE="cpu")
    assert part in said
    assert "r.yaml:" in said


def test_a_router_loss_is_noted() -> None:
    assert [notes(load(recipe, ["device=cpu"], {})) for recipe in builtin_recipes()] == [[]] * len(builtin_recipes())
    off = load(SMALL, [], {"DEVICE": "npu"})
    assert notes(off) == []
    on = load(SMALL, ["model.router_aux_loss_coef=0.01", "model.router_z_loss_coef=1e-3"], {"DEVICE": "npu"})
    first, second = notes(on)
    assert "model.router_aux_loss_coef = 0.01" in first
    assert "lowers accuracy" in first
    assert "model.router_z_loss_coef = 0.001" in second
