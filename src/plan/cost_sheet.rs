//! The sheets of `plan cost`: one of any fleet, and that of the documents with their slips named.

use super::cost::{MONTH_DAYS, Question};
use super::sheet::{Cell, Sheet, Table, number, words};

/// All that `plan cost` says of a checked question.
#[must_use]
pub fn sheet(asked: &Question) -> Sheet {
    let mut sheet = Sheet {
        command: "plan cost",
        title: format!(
            "plan cost: {:.1} M tokens a day, {:.0} % of them answers, over {} months",
            asked.tokens_day / 1e6,
            asked.output_share * 100.0,
            asked.months
        ),
        ..Sheet::default()
    };
    inputs(asked, &mut sheet);
    results(asked, &mut sheet);
    sheet.tables.push(months(asked));
    remarks(asked, &mut sheet);
    sheet
}

fn inputs(asked: &Question, sheet: &mut Sheet) {
    let mut input = |key, label, unit, value: f64, digits: usize, source: &str| {
        sheet.input((key, label, unit), number(value, digits), source);
    };
    input("tokens_day", "tokens", "a day", asked.tokens_day, 0, "--tokens-day");
    let share = asked.output_share;
    input("output_share", "answers", "of them", share, 3, "--output-share");
    input("api_input", "API, input", "$/M tok", asked.api_input, 2, "--api-input");
    input("api_output", "API, output", "$/M tok", asked.api_output, 2, "--api-output");
    input("gpu_hour", "GPU", "$/h", asked.gpu_hour, 2, "--gpu-hour");
    let gpus = asked.gpus_a_replica;
    input("gpus", "GPUs", "a replica", gpus, 0, "--gpus");
    if let Some(tps) = asked.replica_tps {
        let source = "--replica-tps, within the limits: `plan capacity`, `bench`";
        input("replica_tps", "output of a replica", "tok/s", tps, 0, source);
    }
    input("spare", "spare replicas", "", asked.spare, 0, "--spare");
    input("peak", "peak", "x mean", asked.peak, 2, "--peak");
    input("other_month", "other cost", "$/month", asked.other_month, 0, "--other-month");
    input("setup", "setup", "$", asked.setup, 0, "--setup");
    input("growth", "growth", "a month", asked.growth, 3, "--growth");
}

fn results(asked: &Question, sheet: &mut Sheet) {
    let mut result = |key, label, unit, value: Cell, how: String| {
        sheet.result((key, label, unit), value, how);
    };
    let replicas = asked.replicas_for(asked.tokens_day);
    let peak = asked.peak_tps(asked.tokens_day);
    let how = match (asked.replicas, asked.replica_tps) {
        (Some(_), _) => "--replicas".to_owned(),
        (None, Some(tps)) => {
            format!("{peak:.0} output tok/s at the peak / {tps:.0}, rounded up, + spare")
        }
        (None, None) => String::new(),
    };
    result("replicas", "replicas", "", number(replicas, 0), how);
    if let Some(tps) = asked.replica_tps {
        let mean = peak / asked.peak / (replicas * tps) * 100.0;
        let how = "mean output / what all replicas make".to_owned();
        result("load_percent", "mean load", "%", number(mean, 1), how);
    }
    let (year_api, year_own) =
        (asked.tokens_day * 365.0 * asked.api_price() / 1e6, asked.own_day(replicas) * 365.0);
    let how = format!(
        "{} x {:.3} + {} x {:.3}",
        asked.api_input,
        1.0 - asked.output_share,
        asked.api_output,
        asked.output_share
    );
    let price = number(asked.api_price(), 3);
    result("api_dollars_m", "API, mixed", "$/M tok", price, how);
    let how = "fleet a day / tokens a day".to_owned();
    let price = number(asked.own_price(), 3);
    result("own_dollars_m", "self-hosted, mixed", "$/M tok", price, how);
    let output = asked.tokens_day * asked.output_share;
    let how = "fleet a day / answer tokens a day".to_owned();
    let price = if output > 0.0 {
        number(asked.own_day(replicas) / output * 1e6, 3)
    } else {
        Cell::Nothing
    };
    result("own_output_dollars_m", "  a million answer tokens", "$/M tok", price, how);
    if let Some(price) = asked.full_load_price() {
        let how = "GPUs x price / 3,600 / output of a replica".to_owned();
        let key = "full_load_output_dollars_m";
        result(key, "  at full load always", "$/M tok", number(price, 3), how);
    }
    let how = "tokens a day x 365 x API, mixed".to_owned();
    result("api_year", "API", "$/year", number(year_api, 0), how);
    let how =
        format!("{replicas:.0} x {} x {} x 8,760 h + other", asked.gpus_a_replica, asked.gpu_hour);
    result("own_year", "self-hosted", "$/year", number(year_own, 0), how);
    let saving = number((1.0 - year_own / year_api) * 100.0, 1);
    let how = "1 - self-hosted / API, without setup and growth".to_owned();
    result("saving_percent", "saving", "%", saving, how);
    let (even, how) = match asked.break_even() {
        Some((volume, replicas)) => (
            number(volume, 0),
            format!("a day of {replicas:.0} replicas = a day of the API, and they carry it"),
        ),
        None => (Cell::Nothing, "never: at full load the fleet is dearer than the API".to_owned()),
    };
    result("break_even_tokens_day", "break-even", "tok/day", even, how);
    let month = asked.table().into_iter().find(|month| month.own_sum <= month.api_sum);
    let how = format!("first month whose sums meet, of {}", asked.months);
    let month = month.map_or(Cell::Nothing, |month| number(f64::from(month.number), 0));
    result("break_even_month", "setup earned back", "month", month, how);
}

fn months(asked: &Question) -> Table {
    let row = |month: super::cost::Month| {
        vec![
            number(f64::from(month.number), 0),
            number(month.tokens_day / 1e6, 1),
            number(month.replicas, 0),
            number(month.api, 0),
            number(month.own, 0),
            number(month.api_sum, 0),
            number(month.own_sum, 0),
            number(month.api_sum - month.own_sum, 0),
        ]
    };
    Table {
        key: "months",
        title: format!("Month by month, in dollars (a month has {MONTH_DAYS:.2} days)"),
        columns: vec![
            ("month", "month"),
            ("mtok_day", "M tok/day"),
            ("replicas", "replicas"),
            ("api", "API"),
            ("own", "self-hosted"),
            ("api_sum", "API, sum"),
            ("own_sum", "self-hosted, sum"),
            ("saved", "saved"),
        ],
        rows: asked.table().into_iter().map(row).collect(),
        bars: Some(7),
    }
}

fn remarks(asked: &Question, sheet: &mut Sheet) {
    if asked.break_even().is_none() {
        sheet.warnings.push(
            "It never pays: what a replica makes when it is full costs more than the API asks. Look \
             for a cheaper GPU-hour, a smaller or quantized model, more hits in the cache."
                .to_owned(),
        );
    } else if asked.replica_tps.is_none() {
        sheet.warnings.push(
            "Without --replica-tps it is not known whether these replicas carry the volume, nor \
             whether they carry the break-even."
                .to_owned(),
        );
    }
    if asked.peak <= 1.0 && asked.replica_tps.is_some() {
        sheet.warnings.push(
            "--peak 1 means traffic that is the same by day and night; most is not: 2 to 4 times \
             the mean is usual, and idle replicas cost as much as busy ones."
                .to_owned(),
        );
    }
    sheet.notes.push(
        "Prompts and answers share a replica: take --replica-tps at the traffic's own lengths and \
         hit ratio. Above the break-even the next replica may make the fleet dearer again for a \
         while: its cost is a staircase."
            .to_owned(),
    );
}

/// The documents' figures, reckoned anew.
#[must_use]
pub fn documents() -> Sheet {
    let mut sheet = Sheet {
        command: "plan cost --documents",
        title: "plan cost --documents: what the two documents say of money, reckoned anew".into(),
        ..Sheet::default()
    };
    let api = |share: f64| 2.5 * (1.0 - share) + 10.0 * share;
    let year = |mtok_day: f64, share: f64| mtok_day * 365.0 * api(share);
    let volume = |dollars: f64, share: f64| dollars / 365.0 / api(share);
    sheet.input(("api_input", "API, input", "$/M tok"), number(2.5, 2), "the blueprint (GPT-4o)");
    sheet.input(("api_output", "API, output", "$/M tok"), number(10.0, 2), "the same");
    let source = "the blueprint: what its cluster costs";
    sheet.input(("own_year", "self-hosted", "$/year"), number(OWN_YEAR, 0), source);
    let source = "one answer token for three of the prompt; the blueprint names no mix";
    sheet.input(("output_share", "answers", "of all"), number(MIX, 2), source);
    let rows = [20.0, 100.0, 200.0, 500.0, 701.4].map(|mtok| {
        let cost = year(mtok, MIX);
        let saving = (1.0 - OWN_YEAR / cost) * 100.0;
        let each = OWN_YEAR / 365.0 / mtok;
        let cells = [(mtok, 1), (year(mtok, 0.0), 0), (cost, 0), (year(mtok, 1.0), 0)];
        let mut row: Vec<Cell> = cells.map(|(value, digits)| number(value, digits)).to_vec();
        row.extend([number(OWN_YEAR, 0), number(each, 2), number(saving, 1)]);
        row.push(number(mtok * 1e6 * MIX / 86_400.0, 0));
        row
    });
    sheet.tables.push(Table {
        key: "tco",
        title: "Twelve months, in dollars, by M tokens a day (the blueprint's empty table 5.3)"
            .into(),
        columns: vec![
            ("mtok_day", "M tok/day"),
            ("api_all_input", "API, all input"),
            ("api_mixed", "API, 3:1"),
            ("api_all_output", "API, all output"),
            ("own", "self-hosted"),
            ("own_dollars_m", "own $/M tok"),
            ("saving_percent", "saving %, 3:1"),
            ("output_tps", "output tok/s"),
        ],
        rows: rows.to_vec(),
        bars: Some(6),
    });
    sheet.tables.push(slips(&year, &volume));
    sheet.notes.push(
        "So `71 % above 100 M tokens a day` does not hold at the blueprint's own prices: at 100 M \
         the cluster costs twice the API. `plan cost` finds the break-even of any inputs."
            .to_owned(),
    );
    sheet
}

/// What the blueprint's cluster costs a year, and the mix taken for it.
const OWN_YEAR: f64 = 319_000.0;
const MIX: f64 = 0.25;

type OfMix<'a> = &'a dyn Fn(f64, f64) -> f64;

fn slips(year: OfMix<'_>, volume: OfMix<'_>) -> Table {
    let fleet_year = 2600.0 * 8760.0;
    let tps = 1.5e6 / 60.0;
    let a_million = |dollars_hour: f64, tps: f64| dollars_hour / 3600.0 / tps * 1e6;
    let slip = |what: &str, said: &str, reckoned: String, how: &str| {
        vec![words(what), words(said), words(reckoned), words(how)]
    };
    let m = |dollars: f64| format!("${:.2} M", dollars / 1e6);
    let k = |dollars: f64| format!("${:.0} k", dollars / 1e3);
    let rows = vec![
        slip(
            "API, 100 M tokens a day",
            "$1.12 M a year",
            format!(
                "{} to {}, {} at 3:1",
                k(year(100.0, 0.0)),
                k(year(100.0, 1.0)),
                k(year(100.0, MIX))
            ),
            "volume x 365 x price",
        ),
        slip(
            "volume of $1.12 M a year",
            "> 100 M a day",
            format!(
                "{:.0} M to {:.0} M, {:.0} M at 3:1",
                volume(1.12e6, 1.0),
                volume(1.12e6, 0.0),
                volume(1.12e6, MIX)
            ),
            "dollars / 365 / price",
        ),
        slip(
            "break-even of $319 k",
            "100 M a day",
            format!(
                "{:.0} M to {:.0} M, {:.0} M at 3:1",
                volume(OWN_YEAR, 1.0),
                volume(OWN_YEAR, 0.0),
                volume(OWN_YEAR, MIX)
            ),
            "the same",
        ),
        slip(
            "GPU-hour of $319 k, 8 GPUs",
            "-",
            format!("${:.2}", OWN_YEAR / 8760.0 / 8.0),
            "$319 k / 8,760 h / 8",
        ),
        slip("the article's fleet", "$2,600/h", format!("{} a year", m(fleet_year)), "x 8,760 h"),
        slip("  20 % of it", "$12.5 M a year", m(fleet_year * 0.2), "$12.5 M are 55 %"),
        slip(
            "  a GPU-hour of it",
            "-",
            format!("${:.2}", 2600.0 / 80.0),
            "80 A100: ten times market",
        ),
        slip(
            "  its output, 1.5 M tokens a minute",
            "< $9 and < $0.80 a million",
            format!("${:.1} a million", a_million(2600.0, tps)),
            "$2,600 / 3,600 s / 25,000 tok/s",
        ),
        slip(
            "  output for $9 a million",
            "1.5 M a minute",
            format!("{:.0} k tok/s", 2600.0 / 3600.0 / 9.0 * 1e3),
            "meant is 1.5 M a second",
        ),
        slip(
            "  output of a replica for 5,000 rps",
            "-",
            format!("{:.1} k tok/s", 5000.0 * 300.0 / 64.0 / 1e3),
            "5,000 x 300 / 64: no GPU makes it",
        ),
    ];
    Table {
        key: "slips",
        title: "The slips".to_owned(),
        columns: vec![
            ("what", "what"),
            ("said", "the document"),
            ("reckoned", "reckoned"),
            ("how", "how"),
        ],
        rows,
        bars: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_slips_are_named_with_the_right_figures() {
        let text = documents().text();
        for told in [
            "$91 k to $365 k, $160 k at 3:1",
            "307 M to 1227 M, 701 M at 3:1",
            "87 M to 350 M, 200 M at 3:1",
            "$4.55",
            "$22.78 M a year",
            "$4.56 M",
            "$32.50",
            "$28.9 a million",
            "80 k tok/s",
            "23.4 k tok/s",
        ] {
            assert!(text.contains(told), "{told}\n{text}");
        }
        let json = documents().json();
        assert_eq!(json["tables"]["tco"][1]["saving_percent"], -99.8);
        assert_eq!(json["tables"]["tco"][4]["saving_percent"], 71.5);
    }

    #[test]
    fn a_fleet_that_never_pays_says_so() {
        let asked = Question {
            tokens_day: 1e6,
            output_share: 0.5,
            api_input: 0.1,
            api_output: 0.1,
            gpu_hour: 4.0,
            gpus_a_replica: 1.0,
            replica_tps: Some(100.0),
            replicas: None,
            spare: 0.0,
            peak: 2.0,
            other_month: 0.0,
            setup: 0.0,
            growth: 0.0,
            months: 12,
        };
        let sheet = sheet(&asked);
        assert!(sheet.warnings[0].contains("never pays"));
        assert!(sheet.json()["results"]["break_even_tokens_day"]["value"].is_null());
        let dear = Question { api_output: 100.0, ..asked };
        assert!(super::sheet(&dear).of("break_even_tokens_day").is_some_and(|v| v < 5e6));
    }
}
