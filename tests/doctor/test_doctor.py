"""What the doctor says about sets of versions and machines that are described here, and about this one."""

import json
import socket
import sys
from pathlib import Path

import pytest

from tandem.doctor import versions as versions_module
from tandem.doctor.ascend import cann_version, driver_findings
from tandem.doctor.finding import Finding
from tandem.doctor.imports import import_findings
from tandem.doctor.machine import disk, port_finding
from tandem.doctor.packages import package_findings, trees
from tandem.doctor.stacks import ROWS, StackName, stack_of
from tandem.doctor.variables import variable_findings
from tests.cli.commands import tandem

GUIDE = {
    "python": "3.11.14", "cann": "9.0.0", "torch": "2.9.0", "torch-npu": "2.9.0.post1", "megatron-core": "0.16.1", "mindspeed": "0.16.0",
    "vllm": "0.18.1", "vllm-ascend": "0.18.0rc1", "transformers": "5.2.0", "ray": "2.55.1", "psutil": "7.0", "math-verify": "0.9.0",
    "mathruler": "0.1.0",
}  # fmt: skip
LATER = GUIDE | {
    "python": "3.12.4", "cann": "9.1.0", "torch": "2.10.0", "torch-npu": "2.10.0.post4", "megatron-core": "0.18.2", "mindspeed": "0.18.0"
}  # fmt: skip


def faults(found: list[Finding]) -> dict[str, Finding]:
    return {one.component: one for one in found if one.state == "fault"}


@pytest.mark.parametrize("stack", [GUIDE, LATER])
def test_each_stack_is_right_with_itself(stack: dict[str, str]) -> None:
    assert faults(package_findings("npu", stack_of(stack["megatron-core"]), stack.get)) == {}


@pytest.mark.parametrize(
    ("changed", "component", "said"),
    [
        ({"mindspeed": "0.18.0"}, "mindspeed", "belongs to the stack `later`, Megatron-Core to `guide`"),
        ({"megatron-core": "0.18.2"}, "mindspeed", "belongs to the stack `guide`, Megatron-Core to `later`"),
        ({"megatron-core": "0.18.2"}, "python", "belongs to the stack `guide`"),
        ({"cann": "9.1.0"}, "cann", "belongs to the stack `later`"),
        ({"cann": None}, "cann", "built for one CANN"),
        ({"megatron-core": "0.15.3"}, "megatron-core", "the trainer"),
        ({"torch-npu": "2.8.0"}, "torch, torch-npu", "one minor version of torch"),
        ({"vllm-ascend": "0.19.1"}, "vllm, vllm-ascend", "one minor version of vLLM"),
        ({"transformers": "4.57.1"}, "transformers", "do not know Qwen3.5"),
        ({"psutil": None}, "psutil", "hangs without it"),
        ({"mindspeed": "source tree"}, "mindspeed", "patches one version"),
    ],
)
def test_a_mix_is_refused_by_name(changed: dict[str, str | None], component: str, said: str) -> None:
    stack = {name: version for name, version in (GUIDE | changed).items() if version}
    found = faults(package_findings("npu", stack_of(stack.get("megatron-core")), stack.get))
    assert said in found[component].why
    assert found[component].fix


def test_no_other_component_is_blamed_for_one_that_is_wrong() -> None:
    assert set(faults(package_findings("npu", "guide", (GUIDE | {"cann": "9.1.0"}).get))) == {"cann"}


@pytest.mark.parametrize(
    ("megatron", "stack"), [("0.16.1", "guide"), ("0.18.2", "later"), ("0.17.0", "later"), (None, "guide"), ("0.9.0", "guide")]
)
def test_the_installed_megatron_says_which_stack_is_meant(megatron: str | None, stack: StackName) -> None:
    assert stack_of(megatron) == stack


def test_what_the_extras_install_is_what_the_doctor_wants() -> None:
    """The extras of pyproject.toml and the doctor's table are two places; the pinned ones must agree."""
    import tomllib

    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = {(row.component, device): row.guide for row in ROWS for device in row.devices}
    for device in ("cpu", "gpu"):
        for requirement in extras[device]:
            name, _, specifier = requirement.partition("==") if "==" in requirement else requirement.partition(">=")
            if "==" in requirement and (name, device) in rows and name != "ray":
                wanted = rows[name, device].removeprefix("==").removesuffix(".*")
                assert specifier.startswith(wanted), requirement


@pytest.mark.parametrize(
    ("path", "text", "version"),
    [
        ("ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info", "package_name=Ascend-cann-toolkit\nversion=9.0.0\n", "9.0.0"),
        ("ascend-toolkit/latest/version.cfg", "# version: 1.0\nrunning_version=[9.1.RC1]\nversion=9.1.RC1\n", "9.1.RC1"),
        ("cann-9.0.0/lib64/libascendcl.so", "", "9.0.0"),
    ],
)
def test_the_version_of_cann_is_found_where_it_is_installed(path: str, text: str, version: str, tmp_path: Path) -> None:
    assert cann_version(tmp_path, {}) is None
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
    assert cann_version(tmp_path, {}) == version


def test_the_sourced_cann_wins_over_an_installed_one(tmp_path: Path) -> None:
    for name in ("cann-9.0.0", "mine/cann-8.5.1"):
        (tmp_path / name).mkdir(parents=True)
    assert cann_version(tmp_path, {"ASCEND_HOME_PATH": str(tmp_path / "mine" / "cann-8.5.1")}) == "8.5.1"


def test_driver_devices_and_cann_environment_are_each_told(tmp_path: Path) -> None:
    root, dev = tmp_path / "Ascend", tmp_path / "dev"
    dev.mkdir()
    assert [one.state for one in driver_findings(root, dev, {})] == ["fault"] * 3
    (root / "driver").mkdir(parents=True)
    (root / "driver" / "version.info").write_text("Version=25.2.0\nascendhal_version=7.35\n")
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (dev / name).touch()
    found = driver_findings(root, dev, {"ASCEND_TOOLKIT_HOME": "/usr/local/Ascend/cann-9.0.0"})
    assert [(one.found, one.state) for one in found] == [("25.2.0", "ok"), ("2", "ok"), ("set", "ok")]


def test_a_source_tree_before_an_installed_package_is_told(tmp_path: Path, monkeypatch) -> None:
    """The reported case: /Megatron-LM on PYTHONPATH and another megatron-core in site-packages."""
    core = tmp_path / "megatron" / "core"
    core.mkdir(parents=True)
    (core / "__init__.py").touch()
    (core / "package_info.py").write_text("MAJOR = 0\nMINOR = 12\nPATCH = 1\n")
    assert trees() == []
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.split(".")[0] == "megatron"]:
        monkeypatch.delitem(sys.modules, name)
    assert versions_module.version("megatron-core") == "0.12.1"
    [fault] = trees()
    assert str(core) in fault.found
    assert "0.16.1" in fault.found
    assert str(tmp_path) in fault.fix


@pytest.mark.parametrize(
    ("device", "variables", "blamed"),
    [
        ("npu", {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}, "PYTORCH_NPU_ALLOC_CONF"),
        ("npu", {"PYTORCH_NPU_ALLOC_CONF": "garbage_collection_threshold:0.8"}, None),
        ("npu", {"HCCL_CONNECT_TIMEOUT": "120"}, "HCCL_CONNECT_TIMEOUT"),
        ("npu", {"HCCL_CONNECT_TIMEOUT": "5400"}, None),
        ("npu", {"RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "0"}, "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"),
        ("npu", {"HCCL_SOCKET_IFNAME": "enp67s0f5"}, "HCCL_SOCKET_IFNAME"),
        ("npu", {"HCCL_SOCKET_IFNAME": "eth"}, None),
        ("gpu", {"NCCL_SOCKET_IFNAME": "^docker0"}, None),
        ("gpu", {"NCCL_SOCKET_IFNAME": "=bond0"}, "NCCL_SOCKET_IFNAME"),
        ("gpu", {"NCCL_SOCKET_IFNAME": "=eth"}, "NCCL_SOCKET_IFNAME"),
        ("gpu", {"HCCL_CONNECT_TIMEOUT": "120"}, None),
        ("cpu", {"OMP_NUM_THREADS": "all"}, "OMP_NUM_THREADS"),
    ],
)
def test_variables_that_make_ranks_wait_or_memory_fail(device: str, variables: dict[str, str], blamed: str | None) -> None:
    assert list(faults(variable_findings(device, variables, {"lo", "eth0"}))) == ([blamed] if blamed else [])


def test_a_port_that_is_taken_and_a_folder_that_cannot_be_written() -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        assert port_finding(listener.getsockname()[1], "HCCL's own", "fault").state == "fault"
    assert port_finding(0, "any", "fault").state == "ok"
    assert disk(Path("/proc")).state == "fault"


def test_here_a_cpu_run_could_start_and_what_it_needs_loads(tmp_path: Path) -> None:
    ended = tandem("doctor", "--device", "cpu", "--json", cwd=tmp_path, timeout=300)
    told = json.loads(ended.out)
    assert (ended.code, told["ok"], told["stack"]) == (0, True, "guide"), [one for one in told["findings"] if one["state"] == "fault"]
    components = {one["component"]: one for one in told["findings"]}
    assert components["megatron-core"]["found"] == "0.16.1"
    assert {components[f"import of the {part}"]["found"] for part in ("trainer", "generator", "cluster")} == {"loads"}


def test_a_library_that_does_not_load_is_a_fault_with_its_own_words(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('libray.so: cannot open shared object file')\n")
    (tmp_path / "vllm.py").write_text("raise OSError('undefined symbol: _ZN3c10')\n")
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = [one.found for one in import_findings("cpu")]
    assert found == [
        "ImportError: libtorch_cpu.so",
        "OSError: undefined symbol: _ZN3c10",
        "ImportError: libray.so: cannot open shared object file",
    ]


def test_a_machine_without_npus_ends_with_2_and_every_missing_part(tmp_path: Path) -> None:
    ended = tandem("doctor", "--device", "npu", "--quick", cwd=tmp_path)
    assert ended.code == 2
    for part in ("torch-npu: not installed", "mindspeed: not installed", "NPU driver", "no run can start"):
        assert part in ended.out


@pytest.mark.parametrize(("arguments", "said"), [(["--device", "tpu"], "npu, gpu and cpu"), (["--stack", "newest"], "guide")])
def test_unknown_names_are_told(arguments: list[str], said: str, tmp_path: Path) -> None:
    ended = tandem("doctor", *arguments, cwd=tmp_path)
    assert ended.code == 2
    assert said in ended.err
