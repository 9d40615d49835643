"""A summary in Markdown, for people, and in JSON, for programs."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from server.evaluation.proportion import Proportion
from server.evaluation.summary import ALL, RateSummary, Spread, Summary
from server.evaluation.target import Rate

_CONTROLS = {
    "shuffled": "**A control that must fail**: the frames of every clip are in a random order.",
    "wrong-clip": "**A control that must fail**: every question is asked about another clip.",
}


def as_json(summary: Summary) -> dict[str, Any]:
    """Returns everything, shares and intervals from 0 to 1 and times in milliseconds."""
    whole = asdict(summary)
    whole["chance"] = {kind: _proportion(guess) for kind, guess in summary.chance.items()}
    for told, rate in zip(whole["rates"], summary.rates, strict=True):
        told["accuracy"] = {kind: _proportion(found) for kind, found in rate.accuracy.items()}
    return whole


def as_markdown(summary: Summary, *, plot_name: str | None = None) -> str:
    """Returns the report.

    Args:
        summary: the numbers.
        plot_name: of an image beside the report, to show at its top.
    """
    control = _CONTROLS.get(summary.circumstances.get("control", ""))
    parts = [
        "# Accuracy and time to first token by pruning rate",
        f"![Accuracy and time to first token by rate]({plot_name})" if plot_name else "",
        control or "",
        _circumstances(summary),
        "\n".join(f"- **{note[0].upper()}{note[1:]}.**" for note in summary.notes),
        *("## Accuracy", accuracy_table(summary), _ABOUT_ACCURACY),
        *("## Time to first token, milliseconds", times_table(summary), _about_times(summary)),
        *("## Tokens", tokens_table(summary)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def accuracy_table(summary: Summary) -> str:
    """Returns the right answers by kind and rate, with 95 % intervals."""
    rows = [["kind", "asked", "chance", *(rate_name(rate.rate) for rate in summary.rates)]]
    for kind, guess in summary.chance.items():
        cells = [_with_interval(rate.accuracy[kind]) for rate in summary.rates]
        rows.append([kind, str(guess.asked), _percent(guess.share), *cells])
    if len(summary.rates) > 1:
        first = summary.rates[0].accuracy[ALL].share
        changes = [_points(first, rate.accuracy[ALL].share) for rate in summary.rates]
        rows.append([f"points against {rate_name(summary.rates[0].rate)}", "", "", *changes])
    if any(rate.num_errors or rate.num_missing for rate in summary.rates):
        rows.append(["errors", "", "", *(str(rate.num_errors) for rate in summary.rates)])
        rows.append(["not asked yet", "", "", *(str(rate.num_missing) for rate in summary.rates)])
    return _table(rows)


def times_table(summary: Summary) -> str:
    """Returns time to first token and its stages by rate, medians and 90th percentiles."""
    stages = summary.stages
    rows = [["median / p90", "first token", "change", "client's first token", *stages]]
    first = summary.rates[0].time_to_first_token_ms
    for rate in summary.rates:
        rows.append(
            [
                rate_name(rate.rate),
                _median_and_p90(rate.time_to_first_token_ms),
                _change(first, rate.time_to_first_token_ms),
                _median_and_p90(rate.client_time_to_first_token_ms),
                *(_median_and_p90(rate.stages_ms.get(stage)) for stage in stages),
            ]
        )
    return _table(rows)


def tokens_table(summary: Summary) -> str:
    """Returns tokens a request by rate, and what caches knew of them."""
    header = ["mean of a request", "prompt tokens", "video tokens", "video tokens before"]
    header += ["requests with cached tokens", "cached tokens", "cold requests", "retries"]
    return _table([header, *(_tokens_row(rate) for rate in summary.rates)])


def rate_name(rate: Rate) -> str:
    """Returns how a rate is called in tables and plots."""
    return "own rate" if rate is None else f"rate {rate:g}"


def _tokens_row(rate: RateSummary) -> list[str]:
    answered = rate.accuracy[ALL].asked
    return [
        rate_name(rate.rate),
        _mean(rate.prompt_tokens),
        _mean(rate.video_tokens),
        _mean(rate.video_tokens_before),
        f"{rate.num_with_cached_tokens} of {answered}" if rate.cached_tokens else "unknown",
        _mean(rate.cached_tokens),
        f"{rate.num_cold} of {answered}",
        str(rate.num_retries),
    ]


_ABOUT_ACCURACY = (
    "Percent of the answers that are right, with Wilson's 95 % interval. Chance: what the one"
    " answer would reach that is right most often, kind by kind. Errors are no answers and are not"
    " counted as wrong ones."
)


def _about_times(summary: Summary) -> str:
    if summary.is_measured_by_server:
        whose = "Measured by the server, from the first byte of the request to the first token."
    else:
        whose = "Measured by the client, from sending the request to the first chunk with text."
    if summary.circumstances.get("cold"):
        caches = (
            "Every MP4 was sent with bytes in it that no cache knows, so each request decodes, and"
            " reads its whole video, like the first one about a clip."
        )
    else:
        caches = (
            "Clips were sent as they are: after the first request about a clip it need not be"
            " decoded, and a prompt that begins like an earlier one need not be read again, so the"
            " times are those of a mixture that depends on the caches."
        )
    num = summary.circumstances.get("concurrency", 1)
    load = "one request at a time" if num == 1 else f"{num} requests at a time"
    return f"{whose} Asked with {load}. {caches}"


def _circumstances(summary: Summary) -> str:
    told = summary.circumstances
    lines = [
        f"- model: `{told.get('model')}` on `{told.get('server')}`",
        f"- questions: {summary.num_items} about {summary.num_videos} videos, from"
        f" `{told.get('questions')}` ({str(told.get('digest'))[:12]})",
        f"- at most {told.get('max_tokens')} tokens an answer, temperature 0",
    ]
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows, the first of them a header, in Markdown that is aligned as plain text too."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    lines = [_aligned(row, widths) for row in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *others = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]


def _proportion(found: Proportion) -> dict[str, Any]:
    return {**asdict(found), "share": found.share, "interval": list(found.interval)}


def _with_interval(found: Proportion) -> str:
    if found.share is None:
        return "-"
    low, high = found.interval
    return f"{100 * found.share:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _points(first: float | None, share: float | None) -> str:
    return "-" if first is None or share is None else f"{100 * (share - first):+.1f}"


def _median_and_p90(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.1f} / {spread.p90:.1f}"


def _mean(spread: Spread | None) -> str:
    return "unknown" if spread is None else f"{spread.mean:.1f}"


def _change(first: Spread | None, spread: Spread | None) -> str:
    if first is None or spread is None or not first.median:
        return "-"
    return f"{100 * (spread.median / first.median - 1):+.1f} %"
