"""What a faulty link does, for ranks that import this: one of the two ranks of a gang receives what was not sent.

Only the first gang of a function called ``pair_on_broken_links`` stands on such a link. The rank imports this with the
function's file, and so before it meets the other one; nothing of the product knows of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def _stands_on_broken_link() -> bool:
    if os.environ.get("PHALANX_FUNCTION") != "pair_on_broken_links" or os.environ.get("RANK") != "1":
        return False
    try:
        (Path(os.environ["PHALANX_MARKER_DIR"]) / "broken-link").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _break_copies() -> None:
    receive: Any = dist.recv

    def spoilt(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        came = receive(tensor, *args, **kwargs)
        tensor.view(torch.uint8)[tensor.nbytes // 2] ^= 1
        return came

    dist.recv = spoilt


if _stands_on_broken_link():
    _break_copies()
