from tandem.cli.options import DryRun, Json, Overrides, Quiet
from tandem.cli.start import start


def demo(overrides: Overrides = None, dry_run: DryRun = False, quiet: Quiet = False, as_json: Json = False) -> None:
    """Watch a tiny Qwen3.5 learn from images on this CPU.

    Example: tandem demo run_dir=runs/demo
    """
    start("demo", "demo", overrides or (), dry_run=dry_run, quiet=quiet, as_json=as_json)
