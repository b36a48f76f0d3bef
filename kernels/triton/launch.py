"""Where every Triton kernel is launched."""

from typing import Any

import torch


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """`kernel[grid](*arguments, **constants)` on the device of the first argument, which is a tensor.

    Triton launches on the current device, whatever the tensors lie on.
    """
    with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
        kernel[grid](*arguments, **constants)
