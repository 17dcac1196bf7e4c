"""Prints the skipped tests with their reasons, and one closing line, from CTest's JUnit file."""

import re
import sys
import xml.etree.ElementTree as ElementTree


def reason(case):
    """What GTEST_SKIP() printed, or CTest's word for it."""
    output = case.findtext("system-out") or ""
    printed = re.search(r"Skipped\n(.*?)\n", output)
    return printed.group(1).strip() if printed else "no reason printed"


def main(path):
    cases = ElementTree.parse(path).getroot().findall("testcase")
    failed = [c for c in cases if c.find("failure") is not None]
    skipped = [c for c in cases if c.find("skipped") is not None]
    for case in skipped:
        print(f"skipped: {case.get('name')}: {reason(case)}")
    passed = len(cases) - len(failed) - len(skipped)
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")


if __name__ == "__main__":
    main(sys.argv[1])
