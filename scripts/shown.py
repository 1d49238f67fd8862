"""What a page shows, held against the JSON that it is drawn from; for `scripts/check-pages`.

Each function takes what stood in the page and the JSON, and gives lines about what differs, with
how many values it compared. Forms are reckoned here anew, from the JSON alone. A number equals when
it is the JSON's, rounded to as many digits as the page shows.
"""

import decimal
import math

NONE = "–"
ROWS_MAX = 40
LETTERS_MAX = 400


class Compared:
    """Counts what was compared and keeps what differs."""

    def __init__(self):
        self.count, self.wrong = 0, []

    def equal(self, shown, wanted, what):
        self.count += 1
        if shown != wanted:
            line = f"{what}: shows {shown!r}, its JSON is {wanted!r}"
            self.wrong.append(line[:LETTERS_MAX])

    def row(self, shown, wanted, what):
        self.equal(len(shown), len(wanted), f"{what}, cells")
        for at, (one, other) in enumerate(zip(shown, wanted)):
            self.equal(one, other, f"{what}, cell {at + 1}")


def fixed(value, digits):
    """As JavaScript's `toFixed`: the nearer one, of two the larger."""
    step = decimal.Decimal(1).scaleb(-digits)
    return str(decimal.Decimal(value).quantize(step, decimal.ROUND_HALF_UP))


def num(value):
    return NONE if value is None else f"{math.floor(value + 0.5):,}"


def ms(value):
    if value is None:
        return NONE
    if value >= 10_000:
        return fixed(value / 1000, 1) + " s"
    return fixed(value, 0 if value >= 100 else 1 if value >= 1 else 3) + " ms"


def share(part, whole):
    return fixed(100 * part / whole, 1) + " %" if whole > 0 else NONE


def pairs(counts):
    return [f"{name} {num(count)}" for name, count in counts.items() if count]


def replica_row(pool, of):
    ramp = f", ramp {share(of['ramp'], 1)}" if of["ramp"] < 1 else ""
    used = NONE if of["kv_usage"] is None else share(of["kv_usage"], 1)
    counts = ("pending_prefill_tokens", "running", "waiting", "in_flight")
    hits = share(of["prefix_hit_tokens"], of["prefix_query_tokens"])
    begin = [of["id"], pool["name"], of["state"] + ramp, used, *(num(of[name]) for name in counts)]
    return [*begin, hits, ms(of["signal_age_ms"]), of["prefix_mode"] or NONE]


def tenant_row(of):
    most = "" if of["in_flight_max"] is None else f" of {num(of['in_flight_max'])}"
    left = "unlimited"
    if of["tokens_left"] is not None:
        left = f"{num(of['tokens_left'])} of {num(of['burst_tokens'])}"
    spent = [num(of["reserved_tokens"]), num(of["spent_tokens"]), left]
    rejects = [num(of["rejects"][kind]) for kind in ("tokens", "concurrency", "size")]
    return [of["id"], num(of["in_flight"]) + most, *spent, *rejects]


def queue_row(of):
    tokens = " / ".join(num(of["tokens"][kind]) for kind in ("input", "cached", "output"))
    waiting = [num(of["queue"]["requests"]), num(of["queue"]["tokens"])]
    hits = f"{num(of['hit_tokens']['actual'])} / {num(of['hit_tokens']['predicted'])}"
    ended = [", ".join(pairs(of[0])) or "0" for of in ([of["queue"]["shed"]], [of["outcomes"]])]
    return [of["name"], *waiting, ms(of["queue_wait_ms"]["p99"]), *ended, hits, tokens]


def latency_rows(status):
    times = [(f"pool {p['name']}", n.upper(), p[f"{n}_ms"]) for p in status["pools"]
             for n in ("ttft", "tpot")]
    stages = reversed(status["overhead_ms"].items())
    times += [("gateway", f"overhead, {stage}", of) for stage, of in stages]
    return [[of, what, *(ms(q[p]) for p in ("p50", "p95", "p99")), num(q["count"])]
            for of, what, q in times]


def decision_cells(of):
    """All but the time of day and the reason, which is words around numbers."""
    cached = f"{num(of['cached_tokens'])} of {num(of['request']['prompt_tokens'])}"
    rank = "" if of["rank"] is None else f" rank {of['rank']}"
    times = [ms(of["predicted_ttft_ms"]), ms(of["ttft_ms"])]
    return [of["request_id"], of["replica"] + rank, cached, *times]


def reason_numbers(of):
    """Costs that the reason must name, in the form that it names them in."""
    costs = [of["cost"], *(other["cost"] for other in of["runners_up"])]
    terms = [x for x in (of["terms"] or {}).values() if x is not None and abs(x) >= 5e-5]
    signed = lambda x: ("-" if x < 0 else "") + fixed(abs(x), 4)
    return [signed(x) for x in costs + terms if x is not None]


def facts(status, before):
    pools = status["pools"]
    replicas = [replica for pool in pools for replica in pool["replicas"]]
    ended = lambda of: sum(sum(pool["outcomes"].values()) for pool in of["pools"])
    output = lambda of: sum(pool["tokens"]["output"] for pool in of["pools"])
    seconds = (status["uptime_ms"] - before["uptime_ms"]) / 1000 if before else 0
    rate = lambda of: fixed((of(status) - of(before)) / seconds, 1) if seconds > 0 else NONE
    up = sum(replica["state"] == "up" for replica in replicas)
    shed = sum(sum(pool["queue"]["shed"].values()) for pool in pools)
    queued = sum(pool["queue"]["requests"] for pool in pools)
    counts = [f"{num(up)} / {num(len(replicas))}", num(status["requests_open"]), num(queued)]
    more = [num(shed), num(status["retries"]), num(status["client_connections"])]
    return [*counts, rate(ended), rate(output), *more]


def by_load(pool_and_replica):
    """In the page's order: what is not up first, then the busiest."""
    of = pool_and_replica[1]
    load = (0 if of["state"] == "up" else 1e15) + 1e4 * of["in_flight"]
    return -(load + of["pending_prefill_tokens"] + (of["kv_usage"] or 0))


def by_spending(of):
    rejects = of["rejects"]["tokens"] + of["rejects"]["concurrency"] + of["rejects"]["size"]
    return -(1e6 * of["in_flight"] + of["spent_tokens"] + 1e3 * rejects)


def status_page(page, status, before, decisions):
    """`page` has the cells of each table, the facts and the numbers of tiles."""
    compared = Compared()
    replicas = [(p, r) for p in status["pools"] for r in p["replicas"]]
    first = sorted(replicas, key=by_load)[:ROWS_MAX]
    tenants = sorted(status["tenants"], key=by_spending)[:ROWS_MAX]
    for name, wanted in (
        ("replicas", [replica_row(p, r) for p, r in first]),
        ("tenants", [tenant_row(of) for of in tenants]),
        ("latency", latency_rows(status)),
        ("queue", [queue_row(of) for of in status["pools"]]),
        ("decisions", [decision_cells(of) for of in decisions]),
    ):
        shown = page[name]
        if name == "decisions":
            for row, of in zip(shown, decisions):
                for number in reason_numbers(of):
                    compared.equal(number in row[6], True, f"{row[0]} says {number} in {row[6]!r}")
            shown = [[row[0], *row[2:6]] for row in shown]
        compared.equal(len(shown), len(wanted), f"{name}, rows")
        for at, (one, other) in enumerate(zip(shown, wanted)):
            compared.row(one, other, f"{name}, row {at + 1}")
    compared.row(page["facts"], facts(status, before), "facts")
    compared.row(page["tiles"], [len(p["replicas"]) for p in status["pools"]], "tiles")
    kv = lambda r: str(math.floor(100 * (r["kv_usage"] or 0) + 0.5))
    titles = [f"{r['id']}: {r['state']}, KV {kv(r)} %" for _, r in replicas]
    compared.row(page["titles"], titles, "tile")
    return compared


def cell(value, digits):
    """As a sheet prints it: thousands apart, a dash for nothing, words as they are."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,.{digits}f}"


def digits_of(text):
    return len(text.rpartition(".")[2]) if "." in text else 0


def sheet_page(page, sheet):
    """A calculator's page: its tables in order, and its bars."""
    compared = Compared()
    tables = list(page["tables"])
    for name in ("inputs", "results"):
        if not sheet[name]:
            continue
        shown, wanted = tables.pop(0), list(sheet[name].items())
        compared.equal(len(shown), len(wanted), f"{name}, rows")
        for row, (key, figure) in zip(shown, wanted):
            value = cell(figure["value"], digits_of(row[1]))
            how = figure.get("source", figure.get("formula"))
            compared.row(row[1:], [value, figure["unit"], how], f"{name}, {key}")
    compared.equal(len(tables), len(sheet["tables"]), "tables")
    for shown, (key, wanted) in zip(tables, sheet["tables"].items()):
        compared.equal(len(shown), len(wanted), f"{key}, rows")
        for at, (row, of) in enumerate(zip(shown, wanted)):
            values = [cell(v, digits_of(c)) for v, c in zip(of.values(), row)]
            compared.row(row, values, f"{key}, row {at + 1}")
    cells = {text for table in page["tables"] for row in table for text in row}
    for texts in page["drawn"]:
        for number in texts[2::2]:
            compared.equal(number in cells, True, f"{number} at a bar is in a table")
    return compared


def within(shown, value, per, unit):
    """May `shown` be the rounded number whose rounding to `unit` is `value`, times `per`?"""
    if value is None:
        return shown == "-"
    told = shown.removesuffix(" %")
    room = 0.5 * 10 ** -digits_of(told) + 0.5 * unit * per
    return abs(float(told) - value * per) <= room * (1 + 1e-9)


REPLAY = [
    *(("offered_rps", 1, 1e-4), ("good_rps", 1, 1e-4), ("capacity_rps", 1, 1e-4)),
    *(("ttft_p50_ms", 1, 1e-3), ("ttft_p99_ms", 1, 1e-3), ("ttft_ok_ratio", 100, 1e-4)),
    *(("tpot_p50_ms", 1, 1e-4), ("tpot_p95_ms", 1, 1e-4), ("tpot_ok_ratio", 100, 1e-4)),
    *(("hit_ratio", 100, 1e-4), ("shed", 1, 0), (None, 1, 0)),
    *(("kv_used_mean", 100, 1e-4), ("preemptions", 1, 0)),
]


def replay_page(page, outcomes):
    """The replay rounds its JSON by itself, so that the two are the same number, rounded twice."""
    compared = Compared()
    rows = page["tables"][0]
    compared.equal(len(rows), len(outcomes), "policies")
    for row, of in zip(rows, outcomes):
        compared.equal(row[0], of["policy"], "policy")
        compared.equal(len(row), len(REPLAY) + 1, "cells")
        for shown, (name, per, unit) in zip(row[1:], REPLAY):
            value = of[name] if name else of["failed"] + of["unfinished"]
            said = f"{of['policy']}, {name}: shows {shown}, its JSON is {value}"
            compared.equal(within(shown, value, per, unit), True, said)
    good = [of for texts in page["drawn"] for of in zip(texts[1::2], texts[2::2])]
    bars = {name: number for name, number in good if name in {of["policy"] for of in outcomes}}
    for of in outcomes:
        said = f"{of['policy']}: its bar says {bars.get(of['policy'])}, {of['good_rps']}"
        compared.equal(within(bars[of["policy"]], of["good_rps"], 1, 1e-4), True, said)
    return compared


def bench_page(page, result):
    """Cells say which number they show, by a JSON pointer."""
    compared = Compared()
    compared.equal(page["data"], result, "the JSON in the page")
    compared.equal(len(page["named"]) > 20, True, "cells with a number")
    for pointer, shown in page["named"]:
        value = result
        for key in pointer.split("/")[1:]:
            value = value[int(key)] if isinstance(value, list) else value[key]
        compared.equal(shown, f"{value:.{digits_of(shown)}f}", pointer)
    return compared


def compare_page(page, result):
    """Medians with their spread, to three digits or whole."""
    compared = Compared()
    names = list(result["table"])
    figures = list(dict.fromkeys(name for own in result["table"].values() for name in own))
    short = lambda x: f"{x:,.0f}" if abs(x) >= 100 else f"{x:.{1 if abs(x) >= 10 else 2}f}"
    told = lambda of: f"{short(of['median'])} ±{short(of['spread'])}" if of else ""
    rows = page["tables"][0][1:]
    compared.equal(len(rows), len(figures), "figures")
    for row, figure in zip(rows, figures):
        cells = [told(result["table"][name].get(figure)) for name in names]
        compared.row(row, [figure, *cells], figure)
    for texts, figure in zip(page["drawn"], figures):
        bars = [(name, of[figure]) for name, of in result["table"].items() if figure in of]
        compared.row(texts, [word for name, of in bars for word in (name, told(of))], figure)
    return compared
