"""Restore PyTorch's process-wide settings after a trial, and free the GPU memory that the trial no longer uses."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

_GPU_SLACK = 32 << 20
_SDP = ("flash", "mem_efficient", "math", "cudnn")
_PRECISIONS = (
    "",
    "cuda.matmul",
    "cudnn",
    "cudnn.conv",
    "cudnn.rnn",
    "mkldnn",
    "mkldnn.matmul",
    "mkldnn.conv",
    "mkldnn.rnn",
)
"""The parts of `torch.backends` that have a `fp32_precision`, from general to specific: setting one also sets its parts."""
_REDUCTIONS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


class TorchState:
    """PyTorch's process-wide settings at the time when this object is created.

    Settings of the current thread, such as `torch.set_grad_enabled`, are left out: each training function runs on a
    thread of its own.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._settings = [(get, set_, get()) for get, set_ in _settings(torch)]
        self._inter_op_threads = torch.get_num_interop_threads()
        self._older_settings = _older_settings(torch)
        self._precisions = [(part, part.fp32_precision) for part in _with_precision(torch)]

    def restore(self) -> str | None:
        """Restore the settings, and free unused GPU memory. Return None, or the reason why the process should not be reused."""
        torch = self._torch
        for get, set_, value in self._settings:
            if get() != value:
                set_(value)
        self._restore_precision()
        if torch.get_num_interop_threads() != self._inter_op_threads:
            return "the number of PyTorch's inter-op threads can be set only once in a process"
        try:
            if _has_compiled():
                torch.compiler.reset()
            return self._free_gpus()
        except Exception as error:  # such as an assertion that failed in a kernel; all later CUDA calls would fail too
            return f"its CUDA context cannot be used any more ({str(error).partition(chr(10))[0][:120]})"

    def _restore_precision(self) -> None:
        """Restore the precision of float32 operations, which PyTorch has an older and a newer way to set.

        Each older setting raises an error if it is read while the newer ones disagree with it, and also sets some of them.
        """
        if all(part.fp32_precision == value for part, value in self._precisions):
            with contextlib.suppress(RuntimeError):
                if _older_settings(self._torch) == self._older_settings:
                    return
        precision, allow_tf32 = self._older_settings
        self._torch.set_float32_matmul_precision(precision)
        self._torch.backends.cudnn.allow_tf32 = allow_tf32
        for part, value in self._precisions:
            part.fp32_precision = value

    def _free_gpus(self) -> str | None:
        """Free the memory that PyTorch has kept on each GPU that was used.

        Call nothing on the other GPUs: a call creates a CUDA context there, which takes half a gigabyte until this process
        exits.
        """
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return None
        # On an H100, the first matrix product on a stream makes PyTorch keep 32 MiB there, which count as allocated.
        if (clear := getattr(self._torch._C, "_cuda_clearCublasWorkspaces", None)) is not None:
            clear()
        held = 0
        used = [device for device in range(cuda.device_count()) if cuda.memory_reserved(device)]
        for device in used:
            cuda.synchronize(device)
        if used:
            cuda.empty_cache()
        for device in used:
            cuda.reset_peak_memory_stats(device)
            held += cuda.memory_allocated(device)
        return f"{held / 2**20:.0f} MiB of GPU memory outlived their trial" if held > _GPU_SLACK else None


def _has_compiled() -> bool:
    """Return whether `torch.compile` has compiled anything since its last reset.

    DDP imports the compiler too, and with CUDA the first reset takes seconds, because it imports still more of it.
    """
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return frames is not None and getattr(frames, "FRAME_COUNTER", 1) > 0


def _settings(torch: Any) -> Iterator[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Yield a function that reads a setting, and one that changes it, for each setting of this version of PyTorch."""
    yield torch.get_num_threads, torch.set_num_threads
    yield torch.get_default_dtype, torch.set_default_dtype
    yield torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    yield torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly
    yield torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy
    for name in ("enabled", "benchmark", "deterministic"):
        yield _attribute(torch.backends.cudnn, name)
    for name in _REDUCTIONS:
        yield _attribute(torch.backends.cuda.matmul, name)
    for name in _SDP:
        yield getattr(torch.backends.cuda, f"{name}_sdp_enabled"), getattr(torch.backends.cuda, f"enable_{name}_sdp")


def _older_settings(torch: Any) -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _with_precision(torch: Any) -> Iterator[Any]:
    """Yield the parts of `torch.backends` that have a `fp32_precision` in this version of PyTorch."""
    for path in _PRECISIONS:
        part = torch.backends
        for name in filter(None, path.split(".")):
            part = getattr(part, name, None)
        if hasattr(part, "fp32_precision"):
            yield part
