//! The sheet of `plan cost --documents`: what the two documents say of money, reckoned anew, with
//! their slips named.

use super::sheet::{Cell, Sheet, Table, number, words};

/// The documents' figures, reckoned anew.
#[must_use]
pub fn sheet() -> Sheet {
    let mut sheet = Sheet {
        command: "plan cost --documents",
        title: "plan cost --documents: what the two documents say of money, reckoned anew".into(),
        ..Sheet::default()
    };
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
    sheet.tables.push(slips());
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

/// Dollars of the API for a million tokens of which a share are answers.
fn api(share: f64) -> f64 {
    2.5 * (1.0 - share) + 10.0 * share
}

/// Dollars of the API a year for so many million tokens a day.
fn year(mtok_day: f64, share: f64) -> f64 {
    mtok_day * 365.0 * api(share)
}

/// Million tokens a day that so many dollars of the API a year are.
fn volume(dollars: f64, share: f64) -> f64 {
    dollars / 365.0 / api(share)
}

fn slips() -> Table {
    let mut rows = blueprint();
    rows.extend(article());
    Table {
        key: "slips",
        title: "The slips".to_owned(),
        columns: vec![
            ("what", "what"),
            ("said", "the document"),
            ("reckoned", "reckoned"),
            ("how", "how"),
        ],
        rows: rows.into_iter().map(|row| row.map(words).to_vec()).collect(),
        bars: None,
    }
}

fn slip(what: &str, said: &str, reckoned: String, how: &str) -> [String; 4] {
    [what.to_owned(), said.to_owned(), reckoned, how.to_owned()]
}

fn blueprint() -> Vec<[String; 4]> {
    let k = |share: f64| format!("${:.0} k", year(100.0, share) / 1e3);
    let volumes = |dollars: f64| {
        let [all_output, all_input, mixed] = [1.0, 0.0, MIX].map(|share| volume(dollars, share));
        format!("{all_output:.0} M to {all_input:.0} M, {mixed:.0} M at 3:1")
    };
    let years = format!("{} to {}, {} at 3:1", k(0.0), k(1.0), k(MIX));
    let hour = format!("${:.2}", OWN_YEAR / 8760.0 / 8.0);
    vec![
        slip("API, 100 M tokens a day", "$1.12 M a year", years, "volume x 365 x price"),
        slip("volume of $1.12 M a year", "> 100 M a day", volumes(1.12e6), "$ / 365 / price"),
        slip("break-even of $319 k", "100 M a day", volumes(OWN_YEAR), "the same"),
        slip("GPU-hour of $319 k, 8 GPUs", "-", hour, "$319 k / 8,760 h / 8"),
    ]
}

fn article() -> Vec<[String; 4]> {
    const FLEET_HOUR: f64 = 2600.0;
    let fleet_year = FLEET_HOUR * 8760.0 / 1e6;
    let a_million = FLEET_HOUR / 3600.0 / (1.5e6 / 60.0) * 1e6;
    let for_nine = FLEET_HOUR / 3600.0 / 9.0 * 1e3;
    let each = 5000.0 * 300.0 / 64.0 / 1e3;
    let of = |what: &str, said: &str, reckoned: String, how: &str| slip(what, said, reckoned, how);
    vec![
        of("the article's fleet", "$2,600/h", format!("${fleet_year:.2} M a year"), "x 8,760 h"),
        of("20 % of it", "$12.5 M", format!("${:.2} M", fleet_year * 0.2), "$12.5 M are 55 %"),
        of("a GPU-hour of it", "-", format!("${:.2}", FLEET_HOUR / 80.0), "ten times market"),
        of(
            "1.5 M output tokens a minute",
            "< $9, < $0.80 a million",
            format!("${a_million:.1} a million"),
            "$2,600 / 3,600 s / 25,000 tok/s",
        ),
        of(
            "output for $9 a million",
            "1.5 M a minute",
            format!("{for_nine:.0} k tok/s"),
            "it means 1.5 M a second",
        ),
        of(
            "a replica's output at 5,000 rps",
            "-",
            format!("{each:.1} k tok/s"),
            "5,000 x 300 / 64: no GPU makes it",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_slips_are_named_with_the_right_figures() {
        let text = sheet().text();
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
        let json = sheet().json();
        assert_eq!(json["tables"]["tco"][1]["saving_percent"], -99.8);
        assert_eq!(json["tables"]["tco"][4]["saving_percent"], 71.5);
    }
}
