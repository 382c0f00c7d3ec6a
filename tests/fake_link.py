"""Stand in for `tuner.hosts.on_ray.link`: send the same lines without Ray. The address says how it goes wrong."""

from __future__ import annotations

import json
import sys


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    sys.stdin.readline()
    while (address := sys.stdin.readline().strip()).startswith("{"):
        command = json.loads(address)
        if command["arguments"] == ["crash"]:
            sys.exit(3)
        variables = ", ".join(f"{name}={value}" for name, value in command["environment"].items())
        hangs = command["arguments"] == ["hangs"]
        say(code=None if hangs else 0, output=f"ray {' '.join(command['arguments'])} with {variables}")
    if address == "nowhere":
        say(trouble="Ray at nowhere could not be reached", log="it could not be reached")
        sys.exit(1)
    say(up=f"host at {address}", news=[])
    for line in sys.stdin:
        question = json.loads(line)
        if question["ask"] == "poke":
            say(up="host", news=["poked"])
        elif question["ask"] == "cluster":
            say(answer=question["id"], found={"cpus": 2.0})
        elif question["args"][0] == "crash":
            sys.exit(3)
        elif question["args"][0] == "silent":
            say(answer=question["id"], error="the driver does not answer: GetTimeoutError")
        else:
            say(answer=question["id"], found={"0": {"stack": f"{question['args'][0]} at {address}"}})


if __name__ == "__main__":
    main()
