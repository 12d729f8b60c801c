"""`python -m tandem.devices.torchvision_cpu`: make `import torchvision` work in this environment, for every process started from it.

transformers' video processors and vLLM's Qwen modules import torchvision, on CPU too. The usual wheel is a CUDA build whose operators
cannot load beside CPU torch (see `torchvision_schemas`). vLLM inspects models in subprocesses, so a fix inside one process is not
enough: a `.pth` file in site-packages runs at the start of each.
"""

import logging
import subprocess
import sys
import sysconfig
from pathlib import Path

from tandem.errors import UserError

MODULE = "_tandem_torchvision_schemas"
# Imports torchvision as if the files below were not there.
PROBE = f"import sys; sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != {MODULE!r}]; import torchvision"

log = logging.getLogger(__name__)


def import_error(code: str) -> str:
    """The last line of what a fresh interpreter says when it runs `code`; empty when it runs well."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return "" if result.returncode == 0 else result.stderr.strip().splitlines()[-1]


def install(site_packages: Path | None = None) -> bool:
    """Write the two files into `site_packages` (default: this environment's) if torchvision needs them. Returns whether it does.

    Raises:
        UserError: torchvision cannot be imported, for another reason than the missing schemas.
    """
    error = import_error(PROBE)
    if not error:
        return False
    if "operator torchvision::" in error:
        folder = site_packages or Path(sysconfig.get_path("purelib"))
        folder.joinpath(f"{MODULE}.py").write_text(Path(__file__).with_name("torchvision_schemas.py").read_text())
        folder.joinpath(f"{MODULE}.pth").write_text(f"import {MODULE}\n")
        error = import_error("import torchvision")
    if error:
        raise UserError("torchvision cannot be imported", error, "run `make setup`, or install the torchvision build made for your torch")
    return True


def main() -> int:
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
    try:
        needed = install()
    except UserError as error:
        log.error("%s", error)
        return error.exit_code
    log.info("torchvision: %s", "operator schemas installed for CPU torch" if needed else "imports as it is, nothing to do")
    return 0


if __name__ == "__main__":
    sys.exit(main())
