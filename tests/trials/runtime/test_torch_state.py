"""PyTorch's settings before and after a trial."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tuner.trials.runtime.torch_state import TorchState

SETTINGS = """
torch.set_default_dtype(torch.float64)
torch.set_num_threads(3)
torch.use_deterministic_algorithms(True)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.autograd.set_detect_anomaly(True)
torch.multiprocessing.set_sharing_strategy("file_system")
torch.backends.cudnn.enabled = False
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.conv.fp32_precision = "ieee"
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cuda.matmul.fp32_precision = "tf32"
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
torch.backends.cuda.matmul.allow_fp16_accumulation = True
torch.backends.cudnn.benchmark_limit = 3
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.fp32_precision = "tf32"
torch.backends.fp32_precision = "ieee"
torch.backends.mkldnn.matmul.fp32_precision = "bf16"
torch.set_float32_matmul_precision("medium")
""".strip().splitlines()


def settings() -> list[Any]:
    return [
        torch.get_default_dtype(), torch.get_num_threads(), torch.get_deterministic_debug_mode(), torch.is_anomaly_enabled(),
        torch.multiprocessing.get_sharing_strategy(), torch.get_float32_matmul_precision(), torch.backends.fp32_precision,
        torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic,
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.rnn.fp32_precision,
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction, torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.mkldnn.matmul.fp32_precision, torch._inductor.config.deterministic,
        torch.backends.cuda.matmul.allow_fp16_accumulation, torch.backends.cudnn.benchmark_limit,
    ]  # fmt: skip


@pytest.fixture
def state() -> Iterator[TorchState]:
    import torch._inductor.config  # two seconds of CPU, which only the process that runs these tests spends

    found = TorchState(torch)
    yield found
    found.restore()


@pytest.mark.parametrize("change", SETTINGS)
def test_a_setting_is_restored(state: TorchState, change: str) -> None:
    before = settings()
    exec(change, {"torch": torch})
    assert state.restore() is None
    assert settings() == before


@pytest.mark.parametrize("change", SETTINGS)
def test_a_setting_that_a_module_makes_when_it_is_imported_stays(state: TorchState, change: str) -> None:
    """The module is imported once for all trials of the process.

    After a change of one of the newer settings of precision, PyTorch refuses to read the older ones.
    """
    fresh = TorchState(torch)
    before = fresh.read()
    exec(change, {"torch": torch})
    fresh.adopt(before)
    changed = fresh.read()
    assert fresh.restore() is None
    assert fresh.read() == changed
    torch.set_default_dtype(torch.float16)
    torch.set_float32_matmul_precision("high")
    assert fresh.restore() is None
    assert fresh.read() == changed


def test_all_settings_at_once_are_restored(state: TorchState) -> None:
    before = settings()
    exec("\n".join(SETTINGS), {"torch": torch})
    assert state.restore() is None
    assert settings() == before


def test_a_setting_that_can_be_made_only_once_ends_the_use_of_the_process(
    state: TorchState, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_interop_threads()
    monkeypatch.setattr(torch, "get_num_interop_threads", lambda: threads + 1)
    assert state.restore() == "the number of PyTorch's inter-op threads can be set only once in a process"


class Devices:
    """Stands for `torch.cuda` on a machine with three GPUs, of which the process has used the last one."""

    def __init__(self, held: int = 0, error: str = "") -> None:
        self.held, self.error, self.touched = held, error, set[int]()

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return False  # for `torch.compiler.reset`

    def device_count(self) -> int:
        return 3

    def memory_reserved(self, device: int) -> int:
        return self.held + 1 if device == 2 else 0

    def synchronize(self, device: int) -> None:
        self.touched.add(device)
        if self.error:
            raise RuntimeError(self.error)

    def empty_cache(self) -> None: ...

    def reset_peak_memory_stats(self, device: int) -> None: ...

    def memory_allocated(self, device: int) -> int:
        return self.held if device == 2 else 0


def freed(devices: Devices, monkeypatch: pytest.MonkeyPatch, **private: Any) -> str | None:
    state = TorchState(torch)
    monkeypatch.setattr(state, "_torch", SimpleNamespace(cuda=devices, _C=SimpleNamespace(**private)))
    return state._free_gpus()


def test_only_the_devices_that_were_used_are_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call on another device would create a CUDA context there."""
    devices = Devices()
    assert freed(devices, monkeypatch) is None
    assert devices.touched == {2}


def test_memory_that_a_trial_leaves_on_any_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert freed(Devices(held=64 << 20), monkeypatch) == "64 MiB of GPU memory outlived their trial"


def test_memory_that_pytorch_keeps_for_matrix_products_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as allocated: 65 MiB after one step of a linear layer on an H200."""
    devices = Devices(held=65 << 20)

    def clear() -> None:
        devices.held = 0

    assert freed(devices, monkeypatch, _cuda_clearCublasWorkspaces=clear) is None
    assert devices.held == 0


def test_the_compiler_is_reset_only_if_it_has_compiled(state: TorchState, monkeypatch: pytest.MonkeyPatch) -> None:
    """DDP imports it too. With CUDA, the first reset takes seconds."""
    import torch._dynamo

    torch.compiler.reset()
    resets: list[None] = []
    reset = torch.compiler.reset
    monkeypatch.setattr(torch.compiler, "reset", lambda: (resets.append(None), reset()))
    state.restore()
    assert resets == []
    torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2))
    state.restore()
    state.restore()
    assert resets == [None]


def test_a_broken_cuda_context_ends_the_use_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Devices(error="CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`")
    state = TorchState(torch)
    monkeypatch.setattr(torch, "cuda", devices)
    assert state.restore() == "PyTorch cannot be used any more (CUDA error: device-side assert triggered)"
