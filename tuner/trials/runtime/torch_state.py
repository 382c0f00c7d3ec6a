"""Restore PyTorch's process-wide settings after a trial, and free the GPU memory that the trial no longer uses."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tuner.trials.runtime.settings import Setting, attribute

_GPU_SLACK = 32 << 20
_INTER_OP = "inter-op threads"
_SDP = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")
_CUDNN = ("enabled", "benchmark", "deterministic", "benchmark_limit")
_MATMUL = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)
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


class TorchState:
    """PyTorch's process-wide settings when this object is created, and the changes that the user's modules make when imported.

    Settings of the current thread, such as `torch.set_grad_enabled`, are left out: each training function runs on a
    thread of its own.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._settings = dict(_settings(torch))
        self._precisions = {f"precision {path}": part for path, part in _with_precision(torch)}
        self._values = self.read()
        self._reused = False

    def read(self) -> dict[str, Any]:
        """Return the current value of each setting."""
        found = {name: get() for name, (get, _) in self._settings.items()}
        found |= {name: part.fp32_precision for name, part in self._precisions.items()}
        found |= {name: _readable(get) for name, get, _ in _older_settings(self._torch)}
        return found | {_INTER_OP: self._torch.get_num_interop_threads()}

    def adopt(self, before: dict[str, Any]) -> None:
        """Keep what has changed since `before` was read, instead of restoring it after the trial.

        An older setting that cannot be read any more keeps its earlier value: the newer ones take precedence.
        """
        self._values |= {name: value for name, value in self.read().items() if value not in (before[name], None)}

    def allow_inter_op(self) -> None:
        """Let every trial call `torch.set_num_interop_threads`.

        PyTorch allows it once in a process, before it starts these threads. Now setting the present number has no effect. In a
        process that an earlier trial has used, a number that PyTorch refuses causes a warning instead of an error.
        """
        set_ = self._torch.set_num_interop_threads

        @functools.wraps(set_)
        def set_num_interop_threads(count: int) -> None:
            present = self._torch.get_num_interop_threads()
            if count == present:
                return
            try:
                set_(count)
            except RuntimeError as error:
                if not self._reused or "cannot set" not in str(error):
                    raise
                warnings.warn(
                    f"PyTorch keeps its {present} inter-op threads, since an earlier trial has used this process. "
                    "reuse_workers=False gives every trial new processes",
                    stacklevel=2,
                )

        self._torch.set_num_interop_threads = set_num_interop_threads

    def restore(self) -> str | None:
        """Restore the settings, and free unused GPU memory. Return None, or the reason why the process should not be reused."""
        self._reused = True
        found = self.read()
        if found[_INTER_OP] != self._values[_INTER_OP]:
            return "the number of PyTorch's inter-op threads can be set only once in a process"
        if found != self._values:
            for name, (get, set_) in self._settings.items():
                if get() != self._values[name]:
                    set_(self._values[name])
            self._restore_precision()
        try:
            if _has_compiled():
                self._torch.compiler.reset()
            return self._free_gpus()
        except Exception as error:  # such as an assertion that failed in a kernel; all later CUDA calls would fail too
            return f"PyTorch cannot be used any more ({str(error).partition(chr(10))[0][:120]})"

    def _restore_precision(self) -> None:
        """Restore the precision of float32 operations, which PyTorch has an older and a newer way to set.

        Reading an older setting raises an error while the newer ones disagree with it. Changing an older setting also
        changes some of the newer ones.
        """
        for name, _, set_ in _older_settings(self._torch):
            if self._values[name] is not None:
                set_(self._values[name])
        for name, part in self._precisions.items():
            part.fp32_precision = self._values[name]

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

    DDP imports the compiler without using it. A reset that is not needed would be slow: with CUDA, the first reset takes seconds,
    because it imports more of the compiler.
    """
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return frames is not None and getattr(frames, "FRAME_COUNTER", 1) > 0


def _settings(torch: Any) -> Iterator[tuple[str, Setting]]:
    """Yield the name of each setting of this version of PyTorch, with the functions that read and change it."""
    yield "threads", (torch.get_num_threads, torch.set_num_threads)
    yield "dtype", (torch.get_default_dtype, torch.set_default_dtype)
    yield "deterministic", (torch.get_deterministic_debug_mode, functools.partial(_set_deterministic, torch))
    yield "anomalies", (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly)
    sharing = torch.multiprocessing
    yield "sharing strategy", (sharing.get_sharing_strategy, sharing.set_sharing_strategy)
    for prefix, owner, names in (
        ("cudnn", torch.backends.cudnn, _CUDNN),
        ("matmul", torch.backends.cuda.matmul, _MATMUL),
    ):
        for name in names:
            if hasattr(owner, name):
                yield f"{prefix}.{name}", attribute(owner, name)
    for name in _SDP:
        yield name, (getattr(torch.backends.cuda, f"{name}_enabled"), getattr(torch.backends.cuda, f"enable_{name}"))


def _set_deterministic(torch: Any, mode: int) -> None:
    torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)


def _older_settings(torch: Any) -> list[tuple[str, Callable[[], Any], Callable[[Any], Any]]]:
    return [
        ("matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        ("cudnn.allow_tf32", *attribute(torch.backends.cudnn, "allow_tf32")),
    ]


def _readable(get: Callable[[], Any]) -> Any:
    """Return the value of an older setting; None if the newer ones disagree with it."""
    try:
        return get()
    except RuntimeError:
        return None


def _with_precision(torch: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of `torch.backends` that have a `fp32_precision` in this version of PyTorch, with their paths."""
    for path in _PRECISIONS:
        part = torch.backends
        for name in filter(None, path.split(".")):
            part = getattr(part, name, None)
        if hasattr(part, "fp32_precision"):
            yield path, part
