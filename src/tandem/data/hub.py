"""Files of a model or data set on the Hugging Face hub, in this machine's cache; each way that can fail ends with what to do."""

import errno
import sys
from pathlib import Path
from typing import Any, Literal

from tandem.errors import UserError
from tandem.progress import Progress

Kind = Literal["model", "dataset"]
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt")


def fetch(name: str, kind: Kind, patterns: tuple[str, ...], offline: bool = False, progress: Progress | None = None) -> Path:
    """The local folder with the files of `name` that match `patterns`, downloaded if they are not there yet.

    A file that is whole is not fetched again; a connection that is cut goes on where it was.

    Args:
        offline: only look into the cache. HF_HUB_OFFLINE=1 has the same effect.
        progress: told (MB there, MB in all) in the place of the hub's own bars.

    Raises:
        UserError: the name does not exist, is gated, the hub is not reachable, or the disk is full.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    if progress or not sys.stderr.isatty():
        disable_progress_bars()
    what = f"{_WORDS[kind]} {name}"
    by_hand = f"download it elsewhere: hf download {name} --repo-type {kind} --local-dir DIR, copy DIR here, and {_USE_IT[kind]}"
    try:
        wanted: dict[str, Any] = {"repo_type": kind, "allow_patterns": list(patterns), "local_files_only": offline}
        if progress:
            missing = [file for file in snapshot_download(name, dry_run=True, **wanted) if file.will_download]
            if total := sum(file.file_size or 0 for file in missing):
                wanted["tqdm_class"] = _telling(progress, total)
        return Path(snapshot_download(name, **wanted))
    except GatedRepoError as error:  # before RepositoryNotFoundError, which it is too
        page = f"https://huggingface.co/{'datasets/' if kind == 'dataset' else ''}{name}"
        raise UserError(
            f"{what} is gated", "its owners ask for agreement first", f"agree at {page}, then `hf auth login`, or set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"there is no {what} on the hub", "no such name, or it is private and no token is set", "check the name; `hf auth login`"
        ) from error
    except LocalEntryNotFoundError as error:
        why = "it is not in the cache, and nothing may be downloaded" if offline else f"the hub is not reachable: {_first_line(error)}"
        raise UserError(f"{what} is not here", why, by_hand) from error
    except (HTTPError, OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise UserError(f"no room for {what}", str(error), "make room, or set HF_HOME to a folder on a larger disk") from error
        raise UserError(f"{what} cannot be fetched", _first_line(error), f"try again: what is whole stays; or {by_hand}") from error


def _telling(progress: Progress, total: int) -> type:
    """A bar for the hub's library that shows nothing and tells `progress`. It makes one for bytes received and one for bytes written."""
    from tqdm.auto import tqdm

    most = [0.0]

    class Telling(tqdm):
        def __init__(self, *args: Any, **kwargs: Any):
            kwargs.pop("name", None)
            self.num_bytes = 0.0
            self.counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **kwargs | {"disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if self.counts_bytes:
                self.num_bytes += n or 0
                most[0] = max(most[0], self.num_bytes)
                progress(int(min(most[0], total) / 1e6), int(total / 1e6))
            return None

    return Telling


_WORDS = {"model": "model", "dataset": "data set"}
_USE_IT = {"model": "set model.path=DIR (HF_MODEL_PATH)", "dataset": "run `tandem data geo3k --source DIR`"}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
