"""How many requests Schemathesis made in each phase, by its own reports.

    cases.py 10000 "operations links" report.ndjson…

It fails where there are fewer. With `operations`, also where one never succeeded: then it was only its refusals
that were held against the description. With `links`, also where none ever led to an operation that needs an id.
"""

import json
import sys
from collections import Counter


def main():
    least, required, reports = int(sys.argv[1]), sys.argv[2].split(), sys.argv[3:]
    phases, operations, succeeded, linked = Counter(), set(), set(), set()
    for phase, operation, asked, status, by_link in (answer for report in reports for answer in answers(report)):
        phases[phase] += 1
        operations.add(operation)
        if status < 300:
            succeeded.add(asked)
        if by_link:
            linked.add(asked)
    refused = sorted(operations - succeeded)
    unlinked = sorted(operation for operation in operations - linked if "{" in operation)
    print(f"{phases.total():,} cases:", ", ".join(f"{phase} {number:,}" for phase, number in phases.items()))
    failed = phases.total() < least
    if failed:
        print(f"fewer than {least:,}")
    missing = {"operations": (refused, "never succeeded"), "links": (unlinked, "never by a link")}
    for missed, what in (missing[name] for name in required):
        if missed:
            print(f"{what}: {', '.join(missed)}")
            failed = True
    sys.exit(failed)


def answers(report):
    """Of each answer: the phase, the operation that is tested, the one that was asked, the status, and whether
    the request has something of an answer before."""
    with open(report, encoding="utf-8") as events:
        scenarios = (json.loads(event).get("ScenarioFinished") for event in events)
        for scenario in filter(None, scenarios):
            recorder = scenario["recorder"]
            for case_id, interaction in recorder.get("interactions", {}).items():
                if "response" in interaction:
                    case = recorder["cases"][case_id]
                    asked = f"{interaction['request']['method']} {case['value']['path']}"
                    # A scenario of several operations tests those that it asks.
                    operation = asked if scenario["phase"] == "stateful" else recorder["label"]
                    by_link = "transition" in case and case["is_transition_applied"]
                    yield scenario["phase"], operation, asked, interaction["response"]["status_code"], by_link


if __name__ == "__main__":
    main()
