"""A summary as an SVG picture of two panels: right answers by rate, and time by rate and stage.

Colours follow the reader's light or dark scheme, and nothing is loaded from elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil, floor, log10
from xml.etree import ElementTree

from server.evaluation.proportion import Proportion
from server.evaluation.report import rate_name
from server.evaluation.summary import ALL, RateSummary, Summary

WIDTH, HEIGHT = 960, 470
_TOP, _BOTTOM = 64.0, 350.0
_LEGEND_ROWS, _LEGEND_STEP, _LEGEND_COLUMN, _LEGEND_LETTERS = 3, 18, 102, 13
# Told apart by most eyes, and seen on white and on near black.
_COLOURS = (
    *("#4e79a7", "#e8833a", "#3f9b57", "#d1495b", "#8d6cab", "#9c755f", "#2a9d9d", "#c9a227"),
    *("#d37295", "#808890"),
)
_STYLE = """
svg { font-family: system-ui, sans-serif; font-size: 12px; }
.page { fill: #ffffff; } .ink { fill: #1f2328; } .faint { fill: #59636e; }
.line { stroke: #1f2328; } .grid { stroke: #d1d9e0; }
.over { paint-order: stroke; stroke: #ffffff; stroke-width: 4px; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117; } .ink { fill: #f0f6fc; } .faint { fill: #9198a1; }
  .line { stroke: #f0f6fc; } .grid { stroke: #3d444d; } .over { stroke: #0d1117; }
}
"""


@dataclass(frozen=True, slots=True)
class _Panel:
    """A part of the picture with an axis of values, and a place for each rate."""

    svg: ElementTree.Element
    left: float
    right: float
    low: float
    high: float
    """Values at the bottom and at the top."""
    num_places: int

    def x(self, place: int) -> float:
        return self.left + (place + 0.5) * (self.right - self.left) / self.num_places

    def y(self, value: float) -> float:
        return _BOTTOM - (value - self.low) / (self.high - self.low) * (_BOTTOM - _TOP)

    def frame(self, title: str, rates: Sequence[RateSummary], step: float, unit: str) -> None:
        _text(self.svg, self.left, 24, title, "ink", **{"font-size": "15", "font-weight": "600"})
        _text(self.svg, self.left, 44, unit, "faint")
        for number in range(round((self.high - self.low) / step) + 1):
            value = self.low + number * step
            y = self.y(value)
            _line(self.svg, self.left, y, self.right, y, "grid")
            _text(self.svg, self.left - 6, y + 4, f"{value:g}", "faint", **{"text-anchor": "end"})
        for place, rate in enumerate(rates):
            name = rate_name(rate.rate)
            _text(self.svg, self.x(place), _BOTTOM + 18, name, "ink", **{"text-anchor": "middle"})

    def legend(self, colours: dict[str, str | None]) -> None:
        """Name the colours; None is that of ink."""
        room = _LEGEND_ROWS * int((self.right - self.left) // _LEGEND_COLUMN)
        shown = list(colours.items())
        if len(shown) > room:
            shown = shown[: room - 1]
        for number, (name, colour) in enumerate(shown):
            x, y = self._legend_place(number)
            paint = {"class": "ink"} if colour is None else {"fill": colour}
            _rectangle(self.svg, x, y - 9, 10, 10, **paint)
            short = name if len(name) <= _LEGEND_LETTERS else f"{name[: _LEGEND_LETTERS - 1]}…"
            _text(self.svg, x + 15, y, short, "ink")
        if len(shown) < len(colours):
            x, y = self._legend_place(len(shown))
            _text(self.svg, x, y, f"and {len(colours) - len(shown)} more", "faint")

    def _legend_place(self, number: int) -> tuple[float, float]:
        column, row = divmod(number, _LEGEND_ROWS)
        return self.left + column * _LEGEND_COLUMN, _BOTTOM + 48 + row * _LEGEND_STEP


def as_svg(summary: Summary) -> str:
    """Returns the picture."""
    svg = ElementTree.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
    )
    ElementTree.SubElement(svg, "title").text = "Accuracy and time to first token by pruning rate"
    ElementTree.SubElement(svg, "style").text = _STYLE
    _rectangle(svg, 0, 0, WIDTH, HEIGHT, **{"class": "page"})
    _draw_accuracy(svg, summary)
    _draw_times(svg, summary)
    about = f"{summary.circumstances.get('model', '')}, {summary.num_items} questions about"
    _text(svg, 52, HEIGHT - 12, f"{about} {summary.num_videos} videos", "faint")
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _draw_accuracy(svg: ElementTree.Element, summary: Summary) -> None:
    kinds = [kind for kind in summary.chance if kind != ALL]
    shares = [f.share for rate in summary.rates for f in rate.accuracy.values() if f.asked]
    lows = [rate.accuracy[ALL].interval[0] for rate in summary.rates]
    lowest = min([1.0, *lows, *(share for share in shares if share is not None)])
    low = min(90.0, 10.0 * floor(10 * lowest))
    panel = _Panel(svg, 52, 460, low, 100, len(summary.rates))
    step = 5 if low >= 60 else 10 if low >= 30 else 20 if low % 20 == 0 else 10
    panel.frame("Right answers", summary.rates, step, "percent, with 95 % intervals for all")
    colours = [colour for colour, _ in zip(cycle(_COLOURS), kinds, strict=False)]
    for kind, colour in zip(kinds, colours, strict=True):
        _path(panel, [rate.accuracy[kind] for rate in summary.rates], stroke=colour, width=1.3)
    overall = [rate.accuracy[ALL] for rate in summary.rates]
    _path(panel, overall, width=2.6)
    for place, found in enumerate(overall):
        _draw_point(panel, place, found)
    panel.legend({ALL: None, **dict(zip(kinds, colours, strict=True))})


def _draw_point(panel: _Panel, place: int, found: Proportion) -> None:
    if found.share is None:
        return
    x, (low, high) = panel.x(place), found.interval
    _line(panel.svg, x, panel.y(100 * low), x, panel.y(100 * high), "line", **{"stroke-width": "2"})
    _line(panel.svg, x - 5, panel.y(100 * low), x + 5, panel.y(100 * low), "line")
    _line(panel.svg, x - 5, panel.y(100 * high), x + 5, panel.y(100 * high), "line")
    share = f"{100 * found.share:.1f}"
    _text(panel.svg, x + 7, panel.y(100 * found.share) + 15, share, "ink over")


def _path(
    panel: _Panel, found: Sequence[Proportion], *, width: float, stroke: str | None = None
) -> None:
    points = [
        f"{panel.x(place):.1f},{panel.y(100 * each.share):.1f}"
        for place, each in enumerate(found)
        if each.share is not None
    ]
    colour = {"class": "line"} if stroke is None else {"stroke": stroke}
    ElementTree.SubElement(
        panel.svg,
        "polyline",
        {"points": " ".join(points), "fill": "none", "stroke-width": str(width), **colour},
    )


def _draw_times(svg: ElementTree.Element, summary: Summary) -> None:
    parts = [_parts(rate) for rate in summary.rates]
    totals = [sum(part.values()) for part in parts]
    top, step = _axis(max(totals, default=0.0))
    panel = _Panel(svg, 540, WIDTH - 20, 0, top, len(summary.rates))
    whose = "the server's" if summary.is_measured_by_server else "the client's"
    title = "Time to first token"
    panel.frame(title, summary.rates, step, f"milliseconds, mean, by {whose} clock")
    names = list(dict.fromkeys(name for part in parts for name in part))
    colours = dict(zip(names, cycle(_COLOURS), strict=False))
    half = 0.28 * (panel.right - panel.left) / panel.num_places
    for place, part in enumerate(parts):
        below = 0.0
        for name, value in part.items():
            y, foot = panel.y(below + value), panel.y(below)
            bar = _rectangle(svg, panel.x(place) - half, y, 2 * half, foot - y, fill=colours[name])
            ElementTree.SubElement(bar, "title").text = f"{name} {value:.1f} ms"
            below += value
        middle = {"text-anchor": "middle", "font-weight": "600"}
        if part:
            _text(svg, panel.x(place), panel.y(below) - 6, f"{below:.1f}", "ink", **middle)
    panel.legend({**colours})


def _parts(rate: RateSummary) -> dict[str, float]:
    """Returns what a bar is made of; means, because these add up to the mean of the whole."""
    if rate.stages_ms:
        return {stage: spread.mean for stage, spread in rate.stages_ms.items()}
    whole = rate.time_to_first_token_ms
    return {} if whole is None else {"first token": whole.mean}


def _axis(highest: float) -> tuple[float, float]:
    """Returns a round number above ``highest``, with room for a label, and a step up to it."""
    wanted = max(highest * 1.08, 1e-3)
    unit = 10.0 ** floor(log10(wanted))
    is_enough: Callable[[float], bool] = lambda step: wanted / (step * unit) <= 6  # noqa: E731
    step = unit * next(step for step in (0.2, 0.5, 1, 2, 5) if is_enough(step))
    return step * ceil(wanted / step), step


def _text(
    svg: ElementTree.Element, x: float, y: float, words: str, kind: str, **attributes: str
) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "class": kind}
    ElementTree.SubElement(svg, "text", {**place, **attributes}).text = words


def _line(
    svg: ElementTree.Element,
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    kind: str,
    **attributes: str,
) -> None:
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    ElementTree.SubElement(svg, "line", {**ends, "class": kind, **attributes})


def _rectangle(
    svg: ElementTree.Element, x: float, y: float, width: float, height: float, **attributes: str
) -> ElementTree.Element:
    box = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}
    return ElementTree.SubElement(svg, "rect", {**box, **attributes})
