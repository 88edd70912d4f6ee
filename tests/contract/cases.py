"""How many requests Schemathesis made in each phase, by its own reports.

    cases.py 10000 report.ndjson…

It fails where there are fewer, or where an operation never succeeded: then it was only its refusals that
were held against the description.
"""

import json
import sys
from collections import Counter


def main():
    least, reports = int(sys.argv[1]), sys.argv[2:]
    phases, operations, succeeded = Counter(), set(), set()
    for phase, operation, asked, status in (answer for report in reports for answer in answers(report)):
        phases[phase] += 1
        operations.add(operation)
        if status < 300:
            succeeded.add(asked)
    missed = sorted(operations - succeeded)
    print(f"{phases.total():,} cases:", ", ".join(f"{phase} {number:,}" for phase, number in phases.items()))
    print(*(f"never succeeded: {operation}\n" for operation in missed), sep="", end="")
    sys.exit(phases.total() < least or bool(missed))


def answers(report):
    """Of each answer: the phase, the operation that is tested, the one that was asked, the status."""
    with open(report, encoding="utf-8") as events:
        scenarios = (json.loads(event).get("ScenarioFinished") for event in events)
        for scenario in filter(None, scenarios):
            recorder = scenario["recorder"]
            for case_id, interaction in recorder.get("interactions", {}).items():
                if "response" in interaction:
                    path = recorder["cases"][case_id]["value"]["path"]
                    asked = f"{interaction['request']['method']} {path}"
                    # A scenario of several operations tests those that it asks.
                    operation = asked if scenario["phase"] == "stateful" else recorder["label"]
                    yield scenario["phase"], operation, asked, interaction["response"]["status_code"]


if __name__ == "__main__":
    main()
