"""Rules between settings: the reason is named and the suggested value is legal."""

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tandem.config import algorithm_checks, checks
from tandem.config.checks import check, data_parallel_size
from tandem.config.load import load
from tandem.config.schema import Config
from tandem.errors import UserError

LEGAL = (
    "device=cpu trainer.devices_per_node=2 rollout.replicas=2 rollout.n=8 data.train_batch_size=16 data.max_prompt_length=96 "
    "data.max_response_length=24 warm_start.max_steps=400 warm_start.batch_size=32 algorithm.kl.coef=0.001"
)


def config_of(*overrides: str) -> Config:
    return load("demo", [*LEGAL.split(), *overrides], env={})


@pytest.mark.parametrize(
    ("overrides", "what", "fix"),
    [
        ("trainer.devices_per_node=6 parallel.tp=4", "6 training ranks", "use 4 ranks"),
        ("trainer.devices_per_node=3 parallel.pp=2", "3 training ranks", "use 2 ranks"),
        ("trainer.devices_per_node=4 parallel.cp=3", "4 training ranks", "use 3 ranks"),
        ("trainer.devices_per_node=8 parallel.ep=3", "the experts", "ep * etp * pp of 2"),
        ("trainer.devices_per_node=4 parallel.ep=4 parallel.etp=2", "the experts", "ep * etp * pp of 4"),
        ("parallel.vpp=2", "parallel.vpp = 2 without a pipeline", "parallel.vpp=0"),
        ("parallel.vpp=1 parallel.pp=2", "parallel.vpp = 1", "parallel.vpp=0"),
        ("parallel.sp=true", "parallel.sp = true", "parallel.tp=2"),
        ("batch.mini_batch_size=5", "batch.mini_batch_size = 5", "batch.mini_batch_size=4"),
        ("trainer.devices_per_node=8 rollout.n=2 data.train_batch_size=6", "data.train_batch_size = 6", "data.train_batch_size=4"),
        ("warm_start.batch_size=31", "warm_start.batch_size = 31", "warm_start.batch_size=30"),
        ("rollout.max_model_len=100", "rollout.max_model_len = 100", "rollout.max_model_len=120"),
        ("batch.max_tokens_per_device=119", "batch.max_tokens_per_device = 119", "batch.max_tokens_per_device=120"),
        ("rollout.n=1", "rollout.n = 1", "rollout.n=2"),
        ("rollout.n=1 algorithm.advantage=rloo", "rollout.n = 1", "rollout.n=2"),
        ("algorithm.clip_dual=0.5", "algorithm.clip_dual = 0.5", "set 3"),
        ("algorithm.kl.where=reward algorithm.kl.coef=0", "algorithm.kl.where = reward", "algorithm.kl.coef=0.001"),
        ("algorithm.kl.target=0.1 algorithm.kl.coef=0", "algorithm.kl.target = 0.1", "algorithm.kl.coef=0.001"),
        ("algorithm.dynamic_sampling=3 rollout.n=1 algorithm.advantage=remax", "rollout.n = 1", "rollout.n=2"),
        ("algorithm.dynamic_sampling=3 trainer.total_steps=0", "without trainer.total_steps", "trainer.total_steps"),
        ("data.columns.prompt=ask", "data.columns names some", "data.columns.answer"),
        ("data.columns.images=pic", "data.columns names some", "data.columns.answer"),
        ("data.instruction=x", "data.instruction without", "data.system_prompt"),
        ("reward.overlong_buffer=25", "reward.overlong_buffer = 25", "reward.overlong_buffer=6"),
        ("rollout.router_replay=true trainer.recompute=selective", "rollout.router_replay with", "trainer.recompute=full"),
        (
            "rollout.router_replay=true rollout.placement=split rollout.max_staleness=1",
            "rollout.router_replay with rollout.max_staleness",
            "rollout.max_staleness=0",
        ),
        ("rollout.expert_parallel=true rollout.tp=2", "rollout.expert_parallel with device = cpu", "rollout.expert_parallel=false"),
        ("device=npu rollout.expert_parallel=true", "rollout.expert_parallel with rollout.tp = 1", "rollout.expert_parallel=false"),
        ("rollout.placement=split rollout.replicas=0", "rollout.replicas = 0", "rollout.replicas=1"),
        ("rollout.max_staleness=1", "rollout.max_staleness = 1", "rollout.placement=split"),
        ("device=npu trainer.devices_per_node=4 rollout.replicas=1 rollout.tp=3", "rollout.tp = 3", "rollout.tp=2"),
        ("device=cpu trainer.devices_per_node=1 rollout.tp=2", "rollout.tp = 2", "rollout.tp=1"),
        ("algorithm.kl.target=1 algorithm.kl.horizon=100", "algorithm.kl.horizon = 100", "algorithm.kl.horizon=1280"),
        ("trainer.total_steps=9 algorithm.dynamic_sampling=2 algorithm.advantage=remax", "algorithm.dynamic_sampling", "grpo"),
        ("optimizer.betas=[0.9,1]", "optimizer.betas = [0.9, 1.0]", "[0.9, 0.999]"),
        ("optimizer.betas=[-0.1,0.9]", "optimizer.betas = [-0.1, 0.9]", "[0.9, 0.999]"),
        ("rollout.temperature=5", "rollout.temperature = 5.0", "rollout.temperature=2"),
        ("rollout.val_temperature=0.001", "rollout.val_temperature = 0.001", "rollout.val_temperature=0.01"),
        ("rollout.top_p=0.9", "rollout.top_p = 0.9", "rollout.top_p=1"),
        ("rollout.top_k=5 fidelity.max_logprob_abs_diff_mean=0 algorithm.old_logprobs=rollout", "algorithm.old_logprobs", "trainer"),
        ("rollout.val_temperature=0 rollout.val_n=4", "rollout.val_n = 4", "rollout.val_n=1"),
        ("device=gpu rollout.replicas=3", "3 generator devices on 2", "rollout.replicas=2"),
        ("cluster.master_port=4000 cluster.dashboard_port=4000", "both 4000", "choose another"),
    ],
)
def test_a_broken_rule_names_its_reason_and_a_legal_value(overrides: str, what: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        check(config_of(*overrides.split()))
    assert what in caught.value.what
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    "overrides",
    [
        "trainer.devices_per_node=8 parallel.tp=4 parallel.pp=2 parallel.vpp=2 parallel.ep=4 parallel.sp=true",
        "batch.max_tokens_per_device=60 parallel.cp=2",
        "batch.max_tokens_per_device=1 batch.micro_batch_size=4",
        "rollout.n=1 algorithm.advantage=ppo",
        "rollout.top_p=0.9 fidelity.max_logprob_abs_diff_mean=0",
        "rollout.replicas=3",
        "batch.mini_batch_size=4",
    ],
)
def test_legal_settings_pass(overrides: str) -> None:
    check(config_of(*overrides.split()))


def test_the_batch_is_checked_against_data_parallel_size_not_device_count() -> None:
    sixteen = ["trainer.nnodes=2", "trainer.devices_per_node=8", "parallel.tp=2", "parallel.pp=2", "rollout.n=2"]
    fits = config_of(*sixteen, "data.train_batch_size=2")
    assert data_parallel_size(fits) == 4
    check(fits)  # 4 samples on 16 devices: one for each of the 4 model copies
    with pytest.raises(UserError, match="data-parallel size 4"):
        check(config_of(*sixteen, "data.train_batch_size=3"))


small = st.integers(1, 6)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 24), small, small, small, small, small, st.integers(1, 40), st.integers(0, 40), small, st.integers(0, 40))
def test_following_the_fixes_ends_in_a_legal_configuration(
    devices: int, tp: int, pp: int, cp: int, ep: int, etp: int, batch: int, mini: int, n: int, rows: int
) -> None:
    assume(mini <= batch)
    names = {
        "trainer.devices_per_node": devices,
        "parallel.tp": tp,
        "parallel.pp": pp,
        "parallel.cp": cp,
        "parallel.ep": ep,
        "parallel.etp": etp,
        "data.train_batch_size": batch,
        "batch.mini_batch_size": mini,
        "rollout.n": n,
        "warm_start.batch_size": max(rows, 1),
        "warm_start.max_steps": rows,
    }
    for _ in range(20):
        config = config_of(*(f"{key}={value}" for key, value in names.items()))
        try:
            check(config)
            break
        except UserError as error:
            follow(error, names)
    else:
        raise AssertionError(f"no end of errors: {names}")
    world = names["trainer.devices_per_node"]
    assert world % (names["parallel.tp"] * names["parallel.pp"] * names["parallel.cp"]) == 0
    assert world % (names["parallel.ep"] * names["parallel.etp"] * names["parallel.pp"]) == 0
    dp = world // (names["parallel.tp"] * names["parallel.pp"] * names["parallel.cp"])
    assert names["data.train_batch_size"] * names["rollout.n"] % dp == 0
    assert (names["batch.mini_batch_size"] or dp) * names["rollout.n"] % dp == 0


def follow(error: UserError, names: dict[str, int]) -> None:
    """Do what the first suggestion of a message says; a layout that needs two numbers is taken as plain data parallel."""
    if ranks := re.search(r"(?<!an )(?:use|or) (\d+) ranks", error.fix):
        names["trainer.devices_per_node"] = int(ranks[1])
        if "experts" in error.what:
            names |= {"parallel.ep": 1, "parallel.etp": 1}
    else:
        key, value = re.findall(r"([a-z_.]+)=(\d+)", error.fix)[0]
        names[key] = int(value)


def test_every_rule_of_the_modules_is_applied() -> None:
    taking_a_config = {
        name
        for name, value in {**vars(checks), **vars(algorithm_checks)}.items()
        if callable(value) and getattr(value, "__annotations__", {}) == {"config": Config, "return": None} and name != "check"
    }
    assert {rule.__name__ for rule in checks.RULES} == taking_a_config
