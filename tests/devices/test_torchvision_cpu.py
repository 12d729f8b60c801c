"""torchvision beside CPU torch: its CUDA build must import, in processes that know nothing of Tandem."""

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.devices import torchvision_cpu
from tandem.errors import UserError

# A torchvision whose compiled operators did not load: it registers the shape of an operator that torch does not know.
CUDA_BUILD = "from torch import library as operators\noperators.register_fake('torchvision::nms')(lambda boxes, scores, threshold: boxes)\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Iterator[Path]:
    """site-packages of a new environment that sees this one's packages, but not its .pth files. `sys.executable` is its interpreter."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    site_packages = next((folder / "lib").glob("python*/site-packages"))
    (site_packages / "base.pth").write_text(sysconfig.get_path("purelib"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(folder / "bin" / "python"))
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        yield site_packages


@pytest.fixture(scope="module")
def shimmed(environment) -> Path:
    """`environment` with a CUDA build, installed into."""
    (environment / "torchvision.py").write_text(CUDA_BUILD)
    assert torchvision_cpu.install(environment) is True
    return environment


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_where_torchvision_imports_nothing_is_written(environment):
    (environment / "torchvision.py").write_text("")
    before = sorted(environment.iterdir())
    assert torchvision_cpu.install(environment) is False
    assert sorted(environment.iterdir()) == before


def test_another_fault_of_torchvision_is_reported_and_nothing_is_written(environment):
    (environment / "torchvision.py").write_text("raise ImportError('libfoo.so is missing')")
    with pytest.raises(UserError, match=r"libfoo\.so is missing"):
        torchvision_cpu.install(environment)
    assert not list(environment.glob("_tandem*"))


def test_a_cuda_build_imports_in_children_too_and_its_operators_fail_loudly(shimmed):
    code = "import torch, torchvision; print('imported'); torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)"
    result = run(f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {code!r}]).returncode)")
    assert result.stdout == "imported\n" and "NotImplementedError" in result.stderr


def test_a_second_install_does_not_take_its_own_work_for_a_working_torchvision(shimmed):
    assert "operator torchvision::nms does not exist" in torchvision_cpu.import_error(torchvision_cpu.PROBE)


def test_looking_for_torchvision_imports_neither_torch_nor_tandem(shimmed):
    result = run("import sys, importlib.util as u; print(bool(u.find_spec('torchvision')), {'torch', 'tandem'} & set(sys.modules))")
    assert result.stdout.split() == ["True", "set()"], result.stderr
