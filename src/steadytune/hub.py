"""Whether a model can be had by its name: from a directory, the local cache, or the hub."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from urllib.parse import urlparse


def can_be_had(name: str) -> bool:
    """Whether there is any hope of loading a model: not for a name of the hub that is not cached where no hub is."""
    from huggingface_hub import try_to_load_from_cache as cached

    near = name.startswith("builtin:") or looks_like_path(name) or Path(name).is_dir() or online()
    return near or isinstance(cached(name, "config.json"), str)


def looks_like_path(name: str) -> bool:
    return name.startswith((".", "~", os.sep)) or name.count("/") > 1


@cache
def online() -> bool:
    """Whether the hub's name resolves. Asked once, because transformers would try for half a minute per file."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        socket.getaddrinfo(urlparse(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True
