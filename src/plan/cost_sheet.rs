//! The sheet of `plan cost`.

use super::cost::{MONTH_DAYS, Question};
use super::sheet::{Cell, Sheet, Table, number};

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
    let carried = if asked.replica_tps.is_some() { "which they carry" } else { "if they carry it" };
    let (even, how) = match asked.break_even() {
        Some((volume, replicas)) => (
            number(volume, 0),
            format!("a day of {replicas:.0} replica(s) = a day of the API, {carried}"),
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
            "It never pays: what a replica makes when it is full costs more than the API asks. \
             Look for a cheaper GPU-hour, a smaller or quantized model, more hits in the cache."
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

#[cfg(test)]
mod tests {
    use super::*;

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
