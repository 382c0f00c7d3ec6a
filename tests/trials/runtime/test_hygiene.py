"""The state of a process before and after a trial; each case in a separate process."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest


def after(trial: str, check: str = "", before: str = "") -> str:
    """Run `before`, a trial and `check` in a process, and return what `Baseline.restore` says about the trial."""
    code = (
        "import os, sys, threading, subprocess, logging, warnings, random\n"
        f"{textwrap.dedent(before)}\n"
        "from tuner.trials.runtime.hygiene import Baseline\n"
        "baseline = Baseline()\nbaseline.remember_torch()\n"
        f"{textwrap.dedent(trial)}\n"
        "print(baseline.restore(), flush=True)\n"
        f"{textwrap.dedent(check)}\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_monitor_of_progress_bars_may_stay() -> None:
    """Show a progress bar, as `torch.compile` also does: its thread lives as long as the process."""
    bar = """
    from tqdm import tqdm
    list(tqdm(range(2), file=open(os.devnull, "w")))
    assert any("onitor" in thread.name for thread in threading.enumerate())
    """
    assert after(bar) == "None"


def test_what_a_trial_changed_is_put_back(tmp_path: Path) -> None:
    found = after(
        f"""
        home = os.getcwd()
        os.environ["PATH_OF_TRIAL"] = "x"; os.environ.pop("HOME", None)
        os.chdir({str(tmp_path)!r}); sys.path.insert(0, "x"); sys.argv.append("x")
        logging.getLogger().addHandler(logging.StreamHandler()); logging.getLogger().setLevel(1)
        warnings.simplefilter("error")
        """,
        """
        assert "PATH_OF_TRIAL" not in os.environ and "HOME" in os.environ
        assert os.getcwd() == home and "x" not in sys.path and "x" not in sys.argv
        assert logging.getLogger().handlers == [] and logging.getLogger().level == logging.WARNING
        warnings.warn("this one is shown, it does not raise")
        """,
    )
    assert found == "None"


def test_hooks_for_exceptions_do_not_pile_up() -> None:
    """`init_process_group` wraps the existing hook in its own, and never removes it."""
    found = after(
        """
        import torch.distributed as dist
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()
        assert sys.excepthook is not hooks[0], "then torch has stopped doing so, and the reset can go"
        threading.excepthook = print
        """,
        "assert (sys.excepthook, threading.excepthook) == hooks",
        before="import torch; hooks = sys.excepthook, threading.excepthook",
    )
    assert found == "None"


def test_torch_is_put_back() -> None:
    found = after(
        """
        torch.set_default_dtype(torch.float64); torch.set_num_threads(3)
        torch.use_deterministic_algorithms(True); torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("medium"); torch.autograd.set_detect_anomaly(True)
        torch.set_num_interop_threads(inter_op); torch.set_num_interop_threads(inter_op)
        """,
        """
        assert torch.get_default_dtype() == torch.float32 and torch.get_num_threads() == threads
        assert not torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.benchmark
        assert torch.get_float32_matmul_precision() == "highest" and not torch.is_anomaly_enabled()
        torch.set_num_interop_threads(inter_op + 1)
        assert torch.get_num_interop_threads() == inter_op + 1
        with warnings.catch_warnings(record=True) as caught:
            torch.set_num_interop_threads(inter_op + 2)
        assert f"PyTorch keeps its {inter_op + 1} inter-op threads" in str(caught[0].message)
        """,
        before="import torch; threads, inter_op = torch.get_num_threads(), torch.get_num_interop_threads()",
    )
    assert found == "None"


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (
            "threading.Thread(target=threading.Event().wait, name='prefetcher', daemon=True).start()",
            "'prefetcher' outlived",
        ),
        ("child = subprocess.Popen(['sleep', '60'])", "(sleep 60) outlived its trial"),
        (
            "from concurrent.futures import ThreadPoolExecutor as P; p = P(1); p.submit(threading.Event().wait)",
            "ThreadPoolExecutor-0_0' outlived",
        ),
    ],
)
def test_a_process_with_leftovers_is_not_used_again(trial: str, words: str) -> None:
    assert words in after(trial, check="globals().get('child') and child.kill()")


def test_the_service_of_wandb_serves_the_next_trial_too() -> None:
    trial = "service = subprocess.Popen(['wandb-core', '60'], executable='/bin/sleep', start_new_session=True)"
    assert after(trial, check="assert service.poll() is None; service.kill()") == "None"


def test_the_processes_that_compile_kernels_serve_the_next_trial_too() -> None:
    """`torch.compile` starts them, with a thread that reads their answers."""
    trial = """
    from torch._inductor.compile_worker.subproc_pool import SubprocPool
    pool = SubprocPool(1)
    assert pool.submit(int).result() == 0
    assert len(threading.enumerate()) > 1
    """
    assert after(trial, check="pool.shutdown()") == "None"


def test_a_run_of_wandb_ends_with_its_trial(tmp_path: Path) -> None:
    trial = f"""
    os.environ |= {{"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": "{tmp_path}"}}
    import wandb
    with wandb.init(project="project") as run:
        run.log({{"loss": 1.0}})
    """
    assert after(trial) == "None"
    open_run = f"{trial}\n    wandb.init(project='project')"
    assert after(open_run, check="wandb.finish()") == "a run of Weights & Biases was not finished"


def test_processes_with_a_session_of_their_own_end_with_their_trial(tmp_path: Path) -> None:
    script = f"cd {shlex.quote(str(tmp_path))}; sleep 300 & echo $! > inner; wait"
    trial = f"""
    subprocess.Popen(["sh", "-c", {script!r}], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.exists("{tmp_path}/inner"): pass
    """
    assert "outlived its trial" in after(trial)
    inner = int((tmp_path / "inner").read_text())
    try:
        assert not psutil.pid_exists(inner) or psutil.Process(inner).status() == psutil.STATUS_ZOMBIE
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(inner).kill()


def child(tmp_path: Path, on_sigterm: str) -> str:
    """Return a trial that leaves a shell behind, which runs `on_sigterm` at SIGTERM."""
    script = f"cd {shlex.quote(str(tmp_path))}; trap '{on_sigterm}' TERM; echo $$ > pid; while :; do sleep 0.01; done"
    return f"""
    subprocess.Popen(["sh", "-c", {script!r}], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.exists("{tmp_path}/pid"): pass
    """


def test_a_child_that_outlives_its_trial_may_finish_its_work(tmp_path: Path) -> None:
    synced = tmp_path / "synced"
    assert "outlived its trial" in after(child(tmp_path, "sleep 0.2; touch synced; exit"))
    assert synced.exists()


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    assert "outlived its trial" in after(child(tmp_path, ""))
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "pid").read_text())).wait(30)


def test_a_child_of_another_user_stays(tmp_path: Path) -> None:
    refuse = """
    import psutil
    def denied(process, *signal): raise psutil.AccessDenied(process.pid)
    psutil.Process.send_signal = psutil.Process.terminate = psutil.Process.kill = denied
    """
    found = after(child(tmp_path, "exit"), before=refuse)
    psutil.Process(int((tmp_path / "pid").read_text())).kill()
    assert "outlived its trial" in found


@pytest.mark.parametrize(
    "trial",
    [
        "t = threading.Thread(target=threading.Event().wait, args=(0.1,)); t.start()",
        "from concurrent.futures import ThreadPoolExecutor as P; p = P(2); p.submit(int).result()",
        "subprocess.run(['true'])",
        "subprocess.Popen(['sleep', '0.1'])",
    ],
)
def test_what_ends_soon_or_waits_idly_is_no_leftover(trial: str) -> None:
    assert after(trial) == "None"
