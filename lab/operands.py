#!/usr/bin/env python3
"""Looks in cubins for registers that are written while tensor cores may still read them.

A product's A operand in registers is read until the product ends, but ptxas gives its registers to
others earlier where branches are before the wait: states were wrong now and then. `hold` of
src/cuda/tile/ptx.cuh keeps them; this reads what ptxas made of it. Instructions are taken in the
order in which they lie in memory, so a report may also be of a way that is never taken.

    lab/operands.py FILE.cubin...        needs cuobjdump; exits 1 if there is something
"""

import re
import subprocess
import sys

# No register is written, or none that counts.
OTHERS = re.compile(r"(ST|SYNCS|BAR|BRA|UTMA|MEMBAR|FENCE|U[A-Z]|R2UR|ISETP|FSETP|PLOP|WARP|NOP|EXIT|"
                    r"BSSY|BSYNC|RED|DEPBAR|CALL|VOTEU|LDGDEP|RET)")


def registers(operand, count):
    match = re.match(r"R(\d+)", operand)
    first = int(match.group(1)) if match else 0
    return set(range(first, first + count)) if match else set()


def width(operation):
    if ".128" in operation or "LDSM" in operation and ".4" in operation:
        return 4
    return 2 if ".64" in operation or "WIDE" in operation else 1


def overwritten(listing):
    """Number and text of the instructions that write what a product reads."""
    groups, group, found = [], set(), []  # what products read: committed, and not yet
    lines = re.finditer(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(.*?);", listing, re.MULTILINE)
    for number, line in enumerate(lines):
        text = re.sub(r"^@!?U?P\d+\s+", "", line.group(1).strip())
        operation, _, rest = text.partition(" ")
        operands = [operand.strip() for operand in rest.split(",")]
        if operation.startswith("HGMMA"):
            group |= registers(operands[1], 4)
            if "gsb0" in rest:
                groups.append(group)
                group = set()
        elif operation.startswith("WARPGROUP.DEPBAR"):
            pending = int(operands[1], 16)
            groups = groups[len(groups) - pending:] if pending else []
        elif not OTHERS.match(operation):
            if registers(operands[0], width(operation)) & group.union(*groups):
                found.append((number, text))
    return found


def main():
    total = 0
    for path in sys.argv[1:]:
        listing = subprocess.run(["cuobjdump", "-sass", path], capture_output=True, text=True,
                                 check=True).stdout
        found = overwritten(listing)
        total += len(found)
        for number, text in found[:5]:
            print(f"{path}: instruction {number} writes what a product reads: {text}")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
