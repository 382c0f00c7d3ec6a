"""Make the README's pictures of the page: an animation of a real search, and pictures of its end.

    python docs/make_page_pictures.py [--trials 40]

Starts `tuner serve` with a home of its own, runs a search for a network on handwritten digits, and takes a picture of the page in
Chromium twice a second while it runs. Needs Chromium and the packages of the extra `dev`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops
from playwright.sync_api import Page, sync_playwright

import tuner
from tuner.client.synchronous import Client
from tuner.examples import digits
from tuner.space import Space

HERE = Path(__file__).parent / "pictures"
ENDED = ("completed", "failed", "cancelled")
SIZE = {"width": 1280, "height": 860}
WIDTH = 900  # of the animation, in pixels
MOST_FRAMES = 48
MOST_BYTES = 1_400_000


@contextlib.contextmanager
def service() -> Iterator[str]:
    """Yield the address of a service in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-c", "from tuner.cli import main; main()", "serve"]
        environment = {**os.environ, "TUNER_HOME": home}
        process = subprocess.Popen([*command, "--port", str(port)], env=environment)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()
            subprocess.run([*command, "--stop"], env=environment, check=True)  # a service leaves Ray for the next one


def connected(url: str) -> Client:
    while True:
        with contextlib.suppress(tuner.TunerError):
            client = tuner.connect(url)
            client.session()
            return client
        time.sleep(0.5)


def spec(trials: int) -> dict[str, Any]:
    return {
        "name": "digits",
        "entrypoint": "tuner.examples.digits:train",
        "space": Space.from_python(digits.SPACE).to_json(),
        "metric": "accuracy",
        "mode": "max",
        "num_samples": trials,
        "seed": 1,
        "search": {"type": "random"},
        "scheduler": {"type": "asha", "max_t": digits.MAX_T, "grace_period": 1, "reduction_factor": 3},
        "scaling": {"num_workers": 2, "resources_per_worker": {"CPU": 0.25}},
        "limits": {"max_concurrent_trials": 4},
    }


def frames(page: Page, client: Client, experiment: str) -> list[Image.Image]:
    """Return a picture for each change of the page, from the first report until the search ends."""
    found: list[Image.Image] = []
    while True:
        now = client.experiment(experiment).get()
        ended = now.state in ENDED
        if not ended and now.best is None:
            time.sleep(0.2)
            continue
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        if not found or ImageChops.difference(found[-1], picture).getbbox():
            found.append(picture)
        if ended:
            return found
        time.sleep(0.5)


def animation(pictures: Sequence[Image.Image]) -> bytes:
    """Return an animated WebP of at most MOST_BYTES, of pictures that are spread evenly over the run."""
    count = min(MOST_FRAMES, len(pictures))
    chosen = [pictures[round(i * (len(pictures) - 1) / max(count - 1, 1))] for i in range(count)]
    height = round(WIDTH * SIZE["height"] / SIZE["width"])
    small = [one.resize((WIDTH, height), Image.Resampling.LANCZOS) for one in chosen]
    times = [250] * (count - 1) + [4000]
    for quality in (80, 70, 60, 50, 40, 30, 20, 10):
        file = io.BytesIO()
        small[0].save(
            file, "WEBP", save_all=True, append_images=small[1:], duration=times, loop=0, quality=quality, method=4
        )
        if file.tell() <= MOST_BYTES:
            break
    return file.getvalue()


def save(page: Page, name: str) -> None:
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    # Large areas keep their colors exactly. MAXCOVERAGE had given dark panels a green tint.
    few = picture.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(HERE / f"{name}.png", optimize=True)
    print(f"{name}.png: {(HERE / f'{name}.png').stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    trials = parser.parse_args().trials
    with service() as url, connected(url) as client, sync_playwright() as playwright:
        chromium = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
        page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        experiment = client.create(spec(trials)).get().id
        page.goto(f"{url}/experiments/{experiment}")
        page.get_by_role("heading", level=1).wait_for()
        found = frames(page, client, experiment)
        content = animation(found)
        (HERE / "page.webp").write_bytes(content)
        print(f"page.webp: {len(content)} bytes, {len(found)} pictures taken")
        dark = browser.new_page(viewport=SIZE, color_scheme="dark")  # type: ignore[arg-type]
        dark.goto(f"{url}/experiments/{experiment}?tab=parameters")
        dark.get_by_text("PED-ANOVA over").wait_for()
        dark.get_by_role("heading", name="Two parameters together").wait_for()
        dark.wait_for_load_state("networkidle")
        save(dark, "parameters")
        browser.close()


if __name__ == "__main__":
    main()
