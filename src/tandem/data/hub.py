"""Files of a model or data set on the Hugging Face hub, in this machine's cache; each way that can fail ends with what to do."""

import errno
import sys
from pathlib import Path
from typing import Literal

from tandem.errors import UserError

Kind = Literal["model", "dataset"]
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt")


def fetch(name: str, kind: Kind, patterns: tuple[str, ...], offline: bool = False) -> Path:
    """The local folder with the files of `name` that match `patterns`, downloaded if they are not there yet.

    A file that is whole is not fetched again; a connection that is cut goes on where it was.

    Args:
        offline: only look into the cache. HF_HUB_OFFLINE=1 has the same effect.

    Raises:
        UserError: the name does not exist, is gated, the hub is not reachable, or the disk is full.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    what = f"{_WORDS[kind]} {name}"
    by_hand = f"download it elsewhere: hf download {name} --repo-type {kind} --local-dir DIR, copy DIR here, and {_USE_IT[kind]}"
    try:
        return Path(snapshot_download(name, repo_type=kind, allow_patterns=list(patterns), local_files_only=offline))
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


_WORDS = {"model": "model", "dataset": "data set"}
_USE_IT = {"model": "set model.path=DIR (HF_MODEL_PATH)", "dataset": "run `tandem data geo3k --source DIR`"}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
