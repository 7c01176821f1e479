"""The environment variables that may change a number, by allow-list, without anything private."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

# GLOO_SOCKET_IFNAME is the one addition: it decides which interface a gloo all-reduce crosses.
_PREFIXES = ("NCCL_", "CUDA_", "UCX_", "FI_", "KVIKIO_", "OMP_")
_NAMES = ("GLOO_SOCKET_IFNAME",)
_HOST_NAMES = ("NCCL_HOSTID", "NCCL_COMM_ID")
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|AUTH|PRIVATE|COOKIE|(^|_)KEY($|_)")
_SECRET_VALUE = re.compile(
    r"://[^/\s]*@|-----BEGIN|\bBearer\s|\b(gh[oprsu]_|glpat-|hf_|sk-|AKIA|xox[abp]-|eyJ)[A-Za-z0-9_-]{8,}"
    r"|(?<![A-Za-z0-9+=_-])(?=[A-Za-z0-9+_-]*[0-9])(?=[A-Za-z0-9+_-]*[A-Za-z])[A-Za-z0-9+_-]{32,}={0,2}(?![A-Za-z0-9+=_-])",
    re.IGNORECASE,
)
_PRIVATE = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I), "<uuid>"),
    (re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I), "<address>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"), "<address>"),
    (re.compile(r"(?<![0-9a-zA-Z:])(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}(?![0-9a-zA-Z:.])", re.I), "<address>"),
    (re.compile(r"(/home|/Users|/data/home|/mnt/home)/[^/:,\s]+"), r"\1/<user>"),
)


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the allowed variables; secrets are left out, addresses, UUIDs and home folders masked."""
    given = os.environ if variables is None else variables
    return {name: mask(value) for name, value in sorted(given.items()) if _allowed(name) and not _secret(name, value)}


def mask(value: str) -> str:
    """Return ``value`` with addresses, UUIDs and the users of home folders replaced."""
    for pattern, word in _PRIVATE:
        value = pattern.sub(word, value)
    return value


def _allowed(name: str) -> bool:
    return (name.startswith(_PREFIXES) or name in _NAMES) and name not in _HOST_NAMES


def _secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(mask(value)))
