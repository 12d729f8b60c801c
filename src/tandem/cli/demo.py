from tandem.cli.options import DryRun, Json, LogJson, Overrides, Quiet, Verbose
from tandem.cli.start import Shown, start


def demo(
    overrides: Overrides = None, dry_run: DryRun = False, quiet: Quiet = False, verbose: Verbose = False,
    log_json: LogJson = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Watch a tiny Qwen3.5 learn from images on this CPU.

    Example: tandem demo run_dir=runs/demo
    """
    start("demo", "demo", overrides or (), Shown(quiet, verbose, log_json, as_json), dry_run=dry_run)
