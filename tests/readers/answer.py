"""Answer the five tasks of ``tasks.json`` from JSON files only: SCHEMA BEFORE AFTER."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema

GATED = ("misses", "redistributes")


def read(path: str, schema: Any) -> Any:
    data = json.loads(Path(path).read_text())
    jsonschema.validate(data, schema)
    return data


def step_of(data: Any) -> Any:
    [step] = [result for result in data["results"] if result["kind"] == "steps"]
    return step


def most_frequent(step: Any, kind: str) -> Any:
    events = [event for event in step["events"] if event["event"] == kind and min(event["per_step"]) > 0]
    return max(events, key=lambda event: sum(event["per_step"]))


def answers(before: Any, after: Any) -> dict[str, Any]:
    step, changed = step_of(before), step_of(after)
    miss, redistribution = most_frequent(step, "miss"), most_frequent(step, "redistribution")
    lines = [miss["line"], redistribution["line"]]
    saved = {line: one["count"] for one in before["advice"] for line in one["source_lines"] if line in lines}
    most = {name: max(changed["counts"][name]) for name in GATED}
    return {
        "find": {"misses": miss["line"], "redistributes": redistribution["line"]},
        "cause": {
            "op": miss["op"],
            "remedy": miss["remedy"],
            "source": redistribution["source"],
            "target": redistribution["target"],
        },
        "change": saved,
        "verify": {
            name: [max(each["counts"][name]) for each in (step, changed)] for name in (*GATED, "collectives")
        },
        "gate": ",".join(f"{name}={number}" for name, number in most.items()),
    }


if __name__ == "__main__":
    schema = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps(answers(*(read(path, schema) for path in sys.argv[2:]))))
