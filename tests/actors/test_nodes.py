"""Several Ray nodes on one machine: who sits where, what reaches them, and a training run over two of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.actors.cluster import actor_environment, check_resources, without_a_node
from tandem.config.load import load
from tandem.devices import cpu, npu
from tandem.errors import UserError
from tests.actors.nodes import cluster_of
from tests.cli.commands import tandem

# The 122B recipe's placement with four devices a node in place of sixteen.
PLACEMENT = ("qwen3_5_122b_a10b", "device=npu", "trainer.devices_per_node=4", "parallel.pp=2", "parallel.ep=4", "rollout.tp=4")


@pytest.fixture(scope="module")
def four_nodes() -> Iterator[str]:
    with cluster_of(4, 4, "NPU") as address:
        yield address


def test_ranks_fill_node_after_node_and_generators_sit_on_their_ranks_devices(four_nodes: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HCCL_BUFFSIZE", "123")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    ended = tandem("cluster", "check", *PLACEMENT, f"cluster.address={four_nodes}", "--json", cwd=tmp_path, timeout=240)
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    places = {place["seat"]: place for place in found["places"]}
    nodes = [places[f"rank {rank}"]["node"] for rank in range(16)]
    assert len(set(nodes)) == 4
    for node in range(4):
        ranks = [places[f"rank {rank}"] for rank in range(4 * node, 4 * node + 4)]
        assert len({place["node"] for place in ranks}) == 1, "ranks of a node, and so each tensor parallel pair, are on one node"
        assert sorted(id for place in ranks for id in place["devices"]) == ["0", "1", "2", "3"]
    for index in range(4):
        of = [places[f"rank {rank}"] for rank in range(4 * index, 4 * index + 4)]
        generator = places[f"generator {index}"]
        assert (generator["node"], generator["devices"]) == (of[0]["node"], [id for place in of for id in place["devices"]])
    assert {place["environment"]["HCCL_BUFFSIZE"] for place in places.values()} == {"123"}
    assert {place["environment"]["HCCL_CONNECT_TIMEOUT"] for place in places.values()} == {"5400"}
    assert "hf_secret" not in ended.out


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["trainer.nnodes=6"], ["has 16 NPU", "needs 24", "on 2 more machines:", '"NPU": 4']),
        (
            ["trainer.nnodes=2", "trainer.devices_per_node=8", "rollout.tp=8"],
            ["has 16 NPU", "2 nodes x 8", "on 2 more machines:", '"NPU": 8'],
        ),
    ],
)
def test_a_cluster_that_cannot_seat_the_run_is_told_at_once_with_the_line_to_type(
    four_nodes: str, overrides: list[str], said: list[str], tmp_path: Path
) -> None:
    ended = tandem("cluster", "check", *PLACEMENT, *overrides, f"cluster.address={four_nodes}", cwd=tmp_path)
    assert ended.code == 2
    for part in [*said, f"ray start --address {four_nodes}"]:
        assert part in ended.err


def test_two_nodes_train_with_two_ranks_and_a_generator_each(tmp_path: Path) -> None:
    """A rank publishes experts of its own while it takes part in gathering what the other publishes; buckets go to the other node too."""
    layout = ("trainer.nnodes=2", "trainer.devices_per_node=2", "parallel.tp=2", "parallel.ep=2", "sync.bucket_bytes=1048576")
    with cluster_of(2, 4, "CPU") as address:
        ended = tandem(
            "train", "demo", f"cluster.address={address}", *layout, "rollout.replicas=2", "rollout.health_timeout_s=60",
            "trainer.total_steps=2", "trainer.val_before_train=false", "data.val_max_rows=10", "warm_start.max_steps=40", "rollout.n=4",
            "data.train_batch_size=16", "run_dir=run", "--json", cwd=tmp_path, timeout=300,
        )  # fmt: skip
    assert ended.code == 0, ended.err
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "fidelity/logprob_abs_diff_mean" in row]
    assert len(steps) == 2
    assert all(row["grad_norm"] > 0 for row in steps)
    # the second step's samples were made by weights that travelled from one node to the other's generator
    assert all(row["fidelity/logprob_abs_diff_mean"] <= 1e-5 for row in steps)


@pytest.mark.parametrize("joined", [True, False])
def test_a_cluster_of_the_run_s_own_is_not_one_to_join(joined: bool, monkeypatch) -> None:
    import ray

    monkeypatch.setattr(ray, "nodes", lambda: [node_with(NPU=16)])
    config = load("qwen3_5_122b_a10b", ["device=npu", "cluster.address=10.0.0.1:6766"], env={})
    with pytest.raises(UserError, match="has 16 NPU") as told:
        check_resources(config, npu, joined)
    assert ("on 3 more machines: ray start --address 10.0.0.1:6766" in told.value.fix) is joined
    assert ("on this machine: ray start --head --port 6766" in told.value.fix) is not joined


def test_actors_that_would_wait_for_a_cpu_of_ray_s_are_told_at_once(monkeypatch) -> None:
    """Each rank and each generator claims one of them beside its device."""
    import ray

    config = load("qwen3_5_35b_a3b", ["device=npu", "cluster.address=10.0.0.1:6766"], env={})
    monkeypatch.setattr(ray, "nodes", lambda: [node_with(NPU=16, CPU=18)])
    with pytest.raises(UserError, match="have 18 CPU, the actors on a node of the run claim 19") as told:
        check_resources(config, npu, True)
    assert "--num-cpus 19" in told.value.fix
    monkeypatch.setattr(ray, "nodes", lambda: [node_with(NPU=16, CPU=19)])
    check_resources(config, npu, True)


def test_generators_beside_cpu_ranks_are_counted(monkeypatch) -> None:
    import ray

    config = load("qwen3_5_35b_a3b", ["device=cpu", "cluster.address=10.0.0.1:6766"], env={})
    assert (config.trainer.devices_per_node, config.rollout.replicas) == (2, 2)
    monkeypatch.setattr(ray, "nodes", lambda: [node_with(CPU=4)])
    with pytest.raises(UserError, match=r"has 4 CPU .* needs 5") as told:
        check_resources(config, cpu, True)
    assert "--num-cpus 5" in told.value.fix
    monkeypatch.setattr(ray, "nodes", lambda: [node_with(CPU=5)])
    check_resources(config, cpu, True)
    monkeypatch.setattr(ray, "nodes", lambda: [node_with(CPU=3)])
    check_resources(config, cpu, True, generators=False)


def node_with(**resources: float) -> dict[str, object]:
    return {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1, "Alive": True, "Resources": resources}


def test_groups_take_the_tightest_node_so_that_large_ones_find_theirs() -> None:
    assert without_a_node([4, 4, 8], [8, 8]) == []
    assert without_a_node([8, 8], [16]) == []
    assert without_a_node([16], [8, 8]) == [16]
    assert without_a_node([2, 4, 4], [6, 4]) == []
    assert without_a_node([4] * 5, [4] * 4) == [4]


def test_what_is_exported_wins_over_defaults_and_secrets_and_places_stay_here() -> None:
    exported = {
        "HCCL_CONNECT_TIMEOUT": "900", "NCCL_DEBUG": "INFO", "HF_TOKEN": "x", "VLLM_API_KEY": "x", "ASCEND_RT_VISIBLE_DEVICES": "1",
        "VLLM_HOST_IP": "10.0.0.1", "HCCL_IF_IP": "10.0.0.1", "OMP_NUM_THREADS": "64", "EDITOR": "vi", "HF_HOME": "/mine",
    }  # fmt: skip
    given = actor_environment(load("demo", ["trainer.num_threads=3"], env={}), npu, exported)
    assert (given["HCCL_CONNECT_TIMEOUT"], given["NCCL_DEBUG"], given["HCCL_BUFFSIZE"]) == ("900", "INFO", "300")
    assert given["OMP_NUM_THREADS"] == "3", "threads are a setting"
    assert given["RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"] == "1"
    assert not {"HF_TOKEN", "VLLM_API_KEY", "ASCEND_RT_VISIBLE_DEVICES", "VLLM_HOST_IP", "HCCL_IF_IP", "EDITOR", "HF_HOME"} & given.keys()
