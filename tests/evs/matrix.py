"""Run the properties for each family and print which hold: ``python -m tests.evs.matrix``.

Each family and dtype has a process of its own, bound to one core, as many at once as there are
cores. Where one dies, what it had not measured yet is run again, each property alone, so that a
fault takes nothing along. With ``--unpatched`` the same is asked of vLLM without this project's
plugin.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

RESULT = "RESULT "
ROUNDED = ("identity", "reference", "positions", "schedule")
"""Properties that are shown in each dtype of a family."""


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
        for dtype in options.dtype or FAMILIES[family].dtypes
        if dtype in FAMILIES[family].dtypes
    ]
    asked = {
        row: [
            name
            for name in options.property or PROPERTIES
            # What does not depend on rounding is shown once for a family.
            if name in ROUNDED or row[1] == FAMILIES[row[0]].dtypes[0]
        ]
        for row in rows
    }
    cores: queue.SimpleQueue[int] = queue.SimpleQueue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    with ThreadPoolExecutor(max_workers=cores.qsize()) as pool:
        runs = [
            pool.submit(_row, row, asked[row], cores, unpatched=options.unpatched) for row in rows
        ]
        cells = {row: run.result() for row, run in zip(rows, runs, strict=True)}
    print(_table([*(options.property or PROPERTIES)], cells))
    texts = [text for row in cells.values() for text in row.values()]
    return 0 if all(text.startswith(("pass", "not applicable")) for text in texts) else 1


def _row(
    row: tuple[str, str], names: Sequence[str], cores: Any, *, unpatched: bool
) -> dict[str, str]:
    """Returns what stands in each cell of one row, and reports it."""
    core = cores.get()
    try:
        started = time.monotonic()
        measured, fault = measure(*row, names, core=core, unpatched=unpatched)
        died_in = measured[-1]["property"] if fault and measured else None
        texts = {}
        for name in names:
            own, own_fault = [one for one in measured if one["property"] == name], ""
            if fault and (not own or name == died_in):
                own, own_fault = measure(*row, [name], core=core, unpatched=unpatched)
            texts[name] = _text(own, own_fault)
            print(f"{' '.join(row)} {name}: {texts[name]} ({_closeness(own)})", flush=True)
        print(f"{' '.join(row)}: {time.monotonic() - started:.0f} s", flush=True)
        return texts
    finally:
        cores.put(core)


def measure(
    family: str,
    dtype: str,
    names: Sequence[str],
    *,
    core: int | None = None,
    unpatched: bool = False,
) -> tuple[list[dict[str, Any]], str]:
    """Returns what was measured in a process of its own, and why that died, if it did."""
    command = [sys.executable, "-m", "tests.evs.matrix", "--cell"]
    command += ["--family", family, "--dtype", dtype]
    command += [argument for name in names for argument in ("--property", name)]
    environment = {**os.environ, **({"VLLM_PLUGINS": ""} if unpatched else {})}
    if core is not None:
        # Threads of two engines on the same core wait for one another, busily.
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": str(core), "OMP_NUM_THREADS": "1"}
    measured: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(RESULT):
                measured.append(json.loads(line.removeprefix(RESULT)))
                if len(measured) % 10 == 1:
                    one = measured[-1]
                    print(f"{family} {dtype}: {one['property']}, {one['name']}", flush=True)
        if process.wait() == 0:
            return measured, ""
        errors.seek(0)
        return measured, (errors.read().strip().splitlines() or ["without a word"])[-1]


def _text(measured: Sequence[dict[str, Any]], fault: str) -> str:
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
    return "; ".join([text, *notes])


def _closeness(measured: Sequence[dict[str, Any]]) -> str:
    within = [one["value"] / one["limit"] for one in measured if one["limit"] and not one["least"]]
    largest = f", the largest {max(within):.2g} of its limit" if within else ""
    return f"{len(measured)} checks{largest}"


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


def _table(names: Sequence[str], cells: dict[tuple[str, str], dict[str, str]]) -> str:
    lines = [["family", "dtype", *names], ["---"] * (2 + len(names))]
    lines += [[*row, *(texts.get(name, "") for name in names)] for row, texts in cells.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
