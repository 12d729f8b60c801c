"""The run's folder: made, and the resolved config written."""

from pathlib import Path

from blake3 import blake3

from tandem.config.load import resolved_yaml
from tandem.config.schema import Config
from tandem.errors import UserError


def begin(config: Config, device: str) -> tuple[Config, Path]:
    """Make `config.run_dir`, write config.yaml into it; returns the config with the device that was found.

    Raises:
        UserError: the folder cannot be written.
    """
    config = config.model_copy(update={"device": device})
    run_dir = Path(config.run_dir).resolve()
    try:
        (run_dir / "logs").mkdir(parents=True, exist_ok=True)
        (run_dir / "config.yaml").write_text(resolved_yaml(config))
    except OSError as error:
        raise UserError(f"the run's folder {run_dir} cannot be written", str(error), "set run_dir to a folder you can write") from error
    return config, run_dir


def shared_memory_prefix(run_dir: Path) -> str:
    """Starts the names of all shared-memory files of the run."""
    return f"tandem-{blake3(str(run_dir.resolve()).encode()).hexdigest(8)}"
