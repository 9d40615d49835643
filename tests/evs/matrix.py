"""Run the properties for each family and print which hold: ``python -m tests.evs.matrix``.

Each family and property has a process of its own, so that one that dies takes nothing along. With
``--unpatched`` the same is asked of vLLM without this project's plugin.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

RESULT = "RESULT "


def main() -> int:
    """Print the matrix; returns 0 when all of it holds."""
    from tests.evs.properties import PROPERTIES
    from tests.families import FAMILIES

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", action="append", choices=[*FAMILIES])
    parser.add_argument("--property", action="append", choices=[*PROPERTIES])
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16"])
    parser.add_argument("--unpatched", action="store_true", help="without the plugin")
    parser.add_argument("--cell", action="store_true", help="run in this process")
    options = parser.parse_args()
    if options.cell:
        (family,), (dtype,) = options.family, options.dtype
        return _cell(family, options.property, dtype)
    rows = [
        (family, dtype)
        for family in options.family or FAMILIES
        for dtype in options.dtype or ["float32", "bfloat16"]
        if dtype in FAMILIES[family].dtypes
    ]
    names = options.property or [*PROPERTIES]
    cells = {
        (row, name): _run(*row, name, unpatched=options.unpatched) for row in rows for name in names
    }
    print(_table(rows, names, cells))
    return 0 if all(text.startswith(("pass", "not applicable")) for text in cells.values()) else 1


def measure(
    family: str, dtype: str, names: Sequence[str], *, unpatched: bool = False
) -> tuple[list[dict[str, Any]], str]:
    """Returns what was measured in a process of its own, and why that died, if it did."""
    command = [sys.executable, "-m", "tests.evs.matrix", "--cell"]
    command += ["--family", family, "--dtype", dtype]
    command += [argument for name in names for argument in ("--property", name)]
    environment = {**os.environ, **({"VLLM_PLUGINS": ""} if unpatched else {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    fault = (done.stderr.strip().splitlines() or ["without a word"])[-1] if done.returncode else ""
    return [json.loads(line.removeprefix(RESULT)) for line in lines], fault


def _run(family: str, dtype: str, name: str, *, unpatched: bool) -> str:
    """Returns what stands in one cell, and reports it at once."""
    started = time.monotonic()
    measured, fault = measure(family, dtype, [name], unpatched=unpatched)
    failed = [one for one in measured if not one["holds"]]
    notes = [one["name"] for one in measured if one["note"]]
    if fault:
        text = f"dies: {fault[:160]}"
    elif failed:
        worst = max(failed, key=lambda one: one["value"])
        text = f"{len(failed)} of {len(measured)} fail, worst {worst['name']}: {worst['value']:.3g}"
    elif len(measured) == len(notes):
        text = "not applicable"
    else:
        text = "pass"
    text = "; ".join([text, *notes])
    seconds = time.monotonic() - started
    within = [one["value"] / one["limit"] for one in measured if one["limit"] and not one["least"]]
    closest = f"largest {max(within):.2g} of its limit, " if within else ""
    print(f"{family} {dtype} {name}: {text} ({len(measured)} checks, {closest}{seconds:.0f} s)")
    sys.stdout.flush()
    return text


def _cell(family: str, names: Sequence[str], dtype: str) -> int:
    from tests.evs.properties import PROPERTIES, Bench
    from tests.families import FAMILIES

    try:
        bench = Bench(FAMILIES[family], dtype)
        for name in names:
            for one in PROPERTIES[name](bench):
                record = {"property": name, "name": one.name, "value": one.value}
                record |= {"limit": one.limit, "holds": one.holds, "least": one.at_least}
                print(RESULT + json.dumps(record | {"note": one.is_note}), flush=True)
    except BaseException as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr, flush=True)
        # An engine that died may not let its process end.
        os._exit(1)
    return 0


def _table(
    rows: list[tuple[str, str]], names: list[str], cells: dict[tuple[tuple[str, str], str], str]
) -> str:
    lines = [["family", "dtype", *names], ["---"] * (2 + len(names))]
    lines += [[*row, *(cells[row, name] for name in names)] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
