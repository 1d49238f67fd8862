"""The result of `scripts/compare` as a table in Markdown and as one page that needs nothing else.

Both show the numbers of the JSON, rounded in the same way.
"""

import html as escape

BAR, ROW, LEFT, WIDTH = 14, 24, 110, 620
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: #1c2330; background: #fff }
h2 { font-size: 1rem; margin: 1.6rem 0 .2rem } svg { width: 100%; height: auto; max-width: 46rem }
table { border-collapse: collapse; font-size: .85rem; display: block; overflow-x: auto }
td, th { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #e3e6ec }
td:first-child, th:first-child { text-align: left } .note { color: #5b6475 }
text { font: 12px system-ui, sans-serif; fill: currentColor } .bar { fill: #9db4d8 }
.own { fill: #2f6fd0 } .spread { stroke: #1c2330; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) { body { color: #e3e7ee; background: #14181f }
  td, th { border-color: #2a303b } .bar { fill: #44597b } .own { fill: #5b93e6 }
  .spread { stroke: #e3e7ee } .note { color: #98a2b3 } }
"""


def rounded(value):
    """Three digits, or whole where it is large."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def shown(cell):
    return f"{rounded(cell['median'])} ±{rounded(cell['spread'])}" if cell else ""


def figures(result):
    """Every figure that some gateway has, in the order in which they were measured."""
    names = {}
    for own in result["table"].values():
        names.update(dict.fromkeys(own))
    return list(names)


def markdown(result):
    gateways = list(result["table"])
    lines = ["| | " + " | ".join(gateways) + " |", "| --- |" + " ---: |" * len(gateways)]
    for figure in figures(result):
        cells = [shown(result["table"][gateway].get(figure)) for gateway in gateways]
        lines.append(f"| {figure} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(result, figure):
    """Bars from zero with the spread over their ends."""
    rows = [(name, own[figure]) for name, own in result["table"].items() if figure in own]
    low = min(0, *(cell["median"] - cell["spread"] for _, cell in rows))
    high = max(0, *(cell["median"] + cell["spread"] for _, cell in rows))
    at = lambda value: LEFT + (value - low) / ((high - low) or 1) * (WIDTH - LEFT - 130)
    parts = []
    for n, (name, cell) in enumerate(rows):
        top, middle = n * ROW + 5, n * ROW + 5 + BAR / 2
        left, right = sorted((at(0), at(cell["median"])))
        kind = "own" if name == "expedite" else "bar"
        ends = [at(cell["median"] + sign * cell["spread"]) for sign in (-1, 1)]
        parts.append(
            f'<text x="0" y="{middle + 4:.1f}">{escape.escape(name)}</text>'
            f'<rect class="{kind}" x="{left:.1f}" y="{top}" width="{right - left:.1f}" '
            f'height="{BAR}"/><line class="spread" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" '
            f'y1="{middle:.1f}" y2="{middle:.1f}"/>'
            f'<text x="{max(ends[1], right) + 8:.1f}" y="{middle + 4:.1f}">{shown(cell)}</text>'
        )
    label = escape.escape(figure, quote=True)
    view = f'viewBox="0 0 {WIDTH} {len(rows) * ROW + 4}"'
    return f'<svg {view} role="img" aria-label="{label}">{"".join(parts)}</svg>'


def table(result):
    gateways = list(result["table"])
    head = "".join(f"<th>{escape.escape(name)}</th>" for name in gateways)
    rows = []
    for figure in figures(result):
        cells = "".join(
            f"<td>{shown(result['table'][name].get(figure))}</td>" for name in gateways
        )
        rows.append(f"<tr><td>{escape.escape(figure)}</td>{cells}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def failures(result):
    """Lines about what did not go right, for readers who wonder about a number."""
    lines = [f"{name}: not measured: {why}" for name, why in result["skipped"].items()]
    for one in result["rounds"]:
        for what, told in one["errors"].items():
            why = f"{told['failed']} failed: {', '.join(told['why'])}"
            lines.append(f"{one['gateway']}, round {one['round'] + 1}, {what}: {why}")
    return "".join(f'<p class="note">{escape.escape(line)}</p>' for line in lines)


def html(result):
    host, rounds = result["host"], 1 + max((one["round"] for one in result["rounds"]), default=-1)
    versions = ", ".join(f"{name}: {version}" for name, version in result["versions"].items())
    about = (
        f"{result['when']}; {host['cpu']}, {host['cores']} cores, Linux {host['kernel']}, load "
        f"{host['load']:.1f}; {rounds} rounds, runs of {result['seconds']:g} s. {versions}"
    )
    plots = "".join(
        f"<h2>{escape.escape(figure)}</h2>{plot(result, figure)}" for figure in figures(result)
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Gateways compared</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style><h1>Gateways compared</h1>"
        f'<p class="note">{escape.escape(about)}</p>'
        '<p class="note">Medians with half of the width of a 95 % interval; lower is better but '
        "for requests/s. Where the core was not busy the load generator was the limit: the rate of "
        "a full core is then reckoned from the CPU per request.</p>"
        f"{failures(result)}{table(result)}{plots}</html>"
    )
