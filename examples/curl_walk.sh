#!/usr/bin/env bash
# A walk through the REST API with curl. Run `tuner serve` in one terminal, and this in another:
#
#     examples/curl_walk.sh [http://localhost:8000]
#
# If the service requires a token, set TUNER_TOKEN to the one that `tuner token create` printed.
set -euo pipefail

api="${1:-http://localhost:8000}/api/v1"

# call METHOD PATH [BODY] [HEADER] prints the response, and stops the script if the service refuses the call.
call() {
    local arguments=(--silent --show-error --fail-with-body --request "$1" "$api$2")
    if [ -n "${TUNER_TOKEN:-}" ]; then arguments+=(--header "Authorization: Bearer $TUNER_TOKEN"); fi
    if [ -n "${3:-}" ]; then arguments+=(--header "Content-Type: application/json" --data "$3"); fi
    if [ -n "${4:-}" ]; then arguments+=(--header "$4"); fi
    curl "${arguments[@]}"
}

# field EXPRESSION reads JSON and prints a part of it, such as ["best"]["value"].
field() {
    python3 -c "import json, sys; print(json.load(sys.stdin)$1)"
}

# wait_for EXPERIMENT prints the state in which it ends.
wait_for() {
    local state
    while true; do
        state=$(call GET "/experiments/$1" | field '["state"]')
        case "$state" in
        completed | failed | cancelled)
            echo "$state"
            return
            ;;
        esac
        sleep 0.5
    done
}

spec='{
  "name": "curl walk",
  "entrypoint": "tuner.examples.digits:train",
  "space": {
    "lr": {"type": "loguniform", "lower": 0.0001, "upper": 0.1},
    "width": {"type": "choice", "categories": [16, 32, 64]}
  },
  "metric": "accuracy",
  "mode": "max",
  "num_samples": 4,
  "search": {"type": "random"},
  "scheduler": {"type": "asha", "max_t": 4},
  "scaling": {"num_workers": 1, "resources_per_worker": {"CPU": 0.5}},
  "limits": {"max_concurrent_trials": 1}
}'

echo "== check the spec; nothing is created"
call POST "/experiments/dry-run?configurations=1" "$spec" | field '["configurations"][0]["config"]'

echo "== create the experiment; the key makes a repetition harmless"
key="Idempotency-Key: walk-$$-$RANDOM"
experiment=$(call POST /experiments "$spec" "$key" | field '["id"]')
again=$(call POST /experiments "$spec" "$key" | field '["id"]')
[ "$experiment" = "$again" ]
echo "$experiment"

echo "== pause and resume it"
call POST "/experiments/$experiment/pause" | field '["state"]'
call POST "/experiments/$experiment/resume" | field '["state"]'

echo "== change it while it runs"
call PATCH "/experiments/$experiment" '{"notes": "from *curl*", "tags": {"walk": "curl"}}' | field '["tags"]'

echo "== wait for the end"
wait_for "$experiment"

echo "== the three best trials"
call GET "/experiments/$experiment/trials?sort=-best_value&page_size=3" | field '["items"][0]["params"]'

echo "== why trials were stopped"
call GET "/experiments/$experiment/decisions?kind=stop&page_size=1" | field '["items"]'

echo "== the best result"
call GET "/experiments/$experiment/best" | field '["value"]'

echo "== fork it: the same spec with a narrower space, which begins with what the trials have shown"
fork=$(call POST "/experiments/$experiment/fork" \
    '{"changes": {"num_samples": 2, "space": {"lr": {"lower": 0.001}}}, "learn": true}' | field '["id"]')
wait_for "$fork"

echo "== what a mistake looks like"
call POST "/experiments/$experiment/fork" '{"changes": {"seeds": 1}}' | field '["errors"][0]' || true

echo "== delete both, with their files"
call DELETE "/experiments/$fork?force=true"
call DELETE "/experiments/$experiment?force=true"
echo "done"
