#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts test cases of one `bazel test` run.

Usage: count_tests.py NAME EVENTS EXIT_CODE

NAME is a name for the run. EVENTS is the run's --build_event_json_file: it
names the XML of exactly the tests that this run ran or found in its cache, so
that results of an earlier run cannot be counted. EXIT_CODE is Bazel's.

Standard output gets one line, "PASSED FAILED SKIPPED". Standard error gets one
line for each failure and each skipped case, with its reason, a summary, and a
line "cost ..." that says how long the tests ran.

A test case is a <testcase> of a test's XML. One failure is counted for each
target that failed to build, for each test without readable XML, and for each
test that failed although none of its cases did (a crash, a timeout). A disabled
case counts as skipped.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

# Bazel's exit codes: a target did not load or build; all was built, but there
# was nothing to test.
BUILD_FAILED = 1
NO_TESTS_FOUND = 4


def read_events(path):
    events = []
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                try:
                    events.append(json.loads(line))
                except ValueError:
                    pass  # Bazel was killed while it wrote this line.
    except OSError:
        pass  # Bazel did not even open it.
    return events


def final_attempts(events):
    """Returns the last testResult event of each label, run and shard."""
    final = {}
    for event in events:
        test = event.get("id", {}).get("testResult")
        if test is None or "testResult" not in event:
            continue
        key = (test["label"], test.get("run", 1), test.get("shard", 1))
        attempt = test.get("attempt", 1)
        if key not in final or attempt >= final[key][0]:
            final[key] = (attempt, event["testResult"])
    return {key: result for key, (_, result) in sorted(final.items())}


def targets_not_built(events):
    labels = set()
    for event in events:
        event_id = event.get("id", {})
        for kind in ("targetCompleted", "targetConfigured", "configuredLabel",
                     "unconfiguredLabel"):
            label = event_id.get(kind, {}).get("label")
            if label is None:
                continue
            aborted = event.get("aborted")
            if aborted is not None:
                # The target was left out, not broken.
                if aborted.get("reason") != "SKIPPED":
                    labels.add(label)
            elif kind == "targetCompleted":
                if not event.get("completed", {}).get("success", False):
                    labels.add(label)
    return labels


def xml_cases(result):
    """Returns (name, outcome, reason of a skip) of each case; None without XML."""
    for output in result.get("testActionOutput", []):
        if output.get("name") != "test.xml":
            continue
        path = urllib.parse.unquote(
            urllib.parse.urlparse(output.get("uri", "")).path)
        try:
            tree = ElementTree.parse(path)
        except (OSError, ElementTree.ParseError):
            return None
        cases = []
        for case in tree.iter("testcase"):
            name = ".".join(part for part in (case.get("classname"),
                                              case.get("name")) if part)
            reason = ""
            if case.find("failure") is not None or case.find(
                    "error") is not None:
                outcome = "failed"
            elif case.find("skipped") is not None or case.get(
                    "status") == "notrun":
                outcome = "skipped"
                skipped = case.find("skipped")
                message = "" if skipped is None else skipped.get("message", "")
                # gtest puts the place of the skip on a line of its own.
                reason = message.strip().split("\n")[-1] or "disabled"
            else:
                outcome = "passed"
            cases.append((name, outcome, reason))
        return cases
    return None


def cost(results):
    """Returns how long tests ran. Results of an earlier run took no time."""
    seconds = sorted(
        ((int(result.get("testAttemptDurationMillis", 0)) / 1000, label)
         for (label, _, _), result in results.items()
         if not result.get("cachedLocally", False)),
        reverse=True)
    longest = ", ".join(f"{label} {took:.0f} s" for took, label in seconds[:5])
    return (f"{len(seconds)} test programs ran for "
            f"{sum(took for took, _ in seconds):.0f} s, the longest: {longest}")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    run, path, exit_code = sys.argv[1], sys.argv[2], int(sys.argv[3])
    events = read_events(path)
    count = {"passed": 0, "failed": 0, "skipped": 0}

    def fail(what, why):
        count["failed"] += 1
        print(f"FAILED [{run}] {what}: {why}", file=sys.stderr)

    not_built = targets_not_built(events)
    for label in sorted(not_built):
        fail(label, "did not build")

    for (label, test_run, shard), result in final_attempts(events).items():
        status = result.get("status", "NO_STATUS")
        if label in not_built and status != "PASSED":
            continue  # It was counted above.
        cases = xml_cases(result)
        if cases is None:
            fail(label, f"no readable test.xml (status {status})")
            continue
        failed_cases = 0
        for name, outcome, reason in cases:
            if outcome == "failed":
                failed_cases += 1
                fail(label, name)
                continue
            if outcome == "skipped":
                print(f"SKIPPED [{run}] {label} {name}: {reason}",
                      file=sys.stderr)
            count[outcome] += 1
        if status not in ("PASSED", "FLAKY") and failed_cases == 0:
            fail(label, f"status {status}")

    # A package that does not load leaves no event of its own.
    load_failed = exit_code == BUILD_FAILED and not not_built
    other = exit_code not in (0, NO_TESTS_FOUND) and count["failed"] == 0
    if load_failed or other:
        fail("bazel", f"exit code {exit_code}; see its errors above")

    print("cost", cost(final_attempts(events)), file=sys.stderr)
    print(f"{run}: {count['passed']} passed, {count['failed']} failed, "
          f"{count['skipped']} skipped", file=sys.stderr)
    print(count["passed"], count["failed"], count["skipped"])


if __name__ == "__main__":
    main()
