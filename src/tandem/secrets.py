"""What must not stand in a text that is kept or sent: passwords in addresses, and what variables named like secrets hold."""

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_NAMES = re.compile(r"(?:^|_)(?:ACCESS|API|AUTH)?(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?(?:_|$)", re.IGNORECASE)  # no TOKENIZER
_IN_ADDRESS = re.compile(r"(\w+://)[^/@\s]+@")
_IN_QUERY = re.compile(r"([?&][^=&\s]*(?:token|key|secret|password|sig)[^=&\s]*=)[^&\s]+", re.IGNORECASE)
_SHORTEST = 8  # a shorter value would hide harmless words


def without_secrets(value: Any, environment: Mapping[str, str] = os.environ) -> Any:
    """The same value, text or texts within dictionaries and lists, with `***` in the place of each secret.

    A variable that names a file or folder which is there, as TOKENIZER_DIR might, holds no secret.
    """
    if isinstance(value, dict):
        return {key: without_secrets(part, environment) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(part, environment) for part in value]
    if not isinstance(value, str):
        return value
    for name, secret in environment.items():
        if len(secret) >= _SHORTEST and _NAMES.search(name) and secret in value and not os.path.exists(secret):
            value = value.replace(secret, HIDDEN)
    return _IN_QUERY.sub(rf"\1{HIDDEN}", _IN_ADDRESS.sub(rf"\1{HIDDEN}@", value))


class SecretlessFormatter(logging.Formatter):
    """For log files: messages and tracebacks without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return str(without_secrets(super().format(record)))
