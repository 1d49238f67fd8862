//! What a calculator says: inputs with their source, figures with their formula, tables, notes.
//! One content, three forms: text, JSON, HTML (`page`). A number is rounded once, here, so that
//! the forms agree to the digit.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

/// A number of a sheet, with the digits after the point that mean something; or words.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A number and its digits after the point.
    Number(f64, usize),
    /// Words.
    Text(String),
    /// Nothing to say.
    Nothing,
}

impl Cell {
    /// As people read it: thousands apart.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Cell::Number(value, digits) if value.is_finite() => thousands(*value, *digits),
            Cell::Text(text) => text.clone(),
            Cell::Number(..) | Cell::Nothing => "-".to_owned(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Cell::Number(value, digits) if value.is_finite() => {
                // As the text is: what lies halfway goes to the same side in each form.
                let rounded = format!("{value:.digits$}").parse().unwrap_or(*value);
                // Nobody wants to read -0.
                let rounded = if rounded == 0.0 { 0.0 } else { rounded };
                // Whole numbers stay whole for readers that tell the two apart.
                if *digits == 0 && rounded.abs() < 9e15 {
                    json!(rounded as i64)
                } else {
                    json!(rounded)
                }
            }
            Cell::Text(text) => json!(text),
            Cell::Number(..) | Cell::Nothing => Value::Null,
        }
    }

    /// The number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Cell::Number(value, _) => Some(*value),
            Cell::Text(_) | Cell::Nothing => None,
        }
    }
}

/// A number with `digits` after the point.
#[must_use]
pub fn number(value: f64, digits: usize) -> Cell {
    Cell::Number(value, digits)
}

/// Words.
#[must_use]
pub fn words(text: impl Into<String>) -> Cell {
    Cell::Text(text.into())
}

/// An input or a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its name in the JSON, with its unit.
    pub key: &'static str,
    /// What it is, for people.
    pub label: &'static str,
    /// How much.
    pub value: Cell,
    /// Its unit, for people.
    pub unit: &'static str,
    /// The formula with its numbers, or where the input comes from.
    pub how: String,
}

/// Rows under named columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its name in the JSON.
    pub key: &'static str,
    /// What it shows.
    pub title: String,
    /// Name in the JSON and heading of each column.
    pub columns: Vec<(&'static str, &'static str)>,
    /// Its rows, as many cells as columns each.
    pub rows: Vec<Vec<Cell>>,
    /// A column drawn as bars in the HTML.
    pub bars: Option<usize>,
}

/// All that a calculator says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sheet {
    /// The command, as `plan size`.
    pub command: &'static str,
    /// One line: what was asked.
    pub title: String,
    /// What went in, with sources.
    pub inputs: Vec<Figure>,
    /// What came out, with formulas.
    pub results: Vec<Figure>,
    /// More of it.
    pub tables: Vec<Table>,
    /// What should not be overlooked.
    pub warnings: Vec<String>,
    /// What else is worth knowing: the slips of the documents, the limits of the model.
    pub notes: Vec<String>,
}

impl Sheet {
    /// Adds an input: where it comes from is `source`.
    pub fn input(
        &mut self,
        (key, label, unit): (&'static str, &'static str, &'static str),
        value: Cell,
        source: impl Into<String>,
    ) {
        self.inputs.push(Figure { key, label, value, unit, how: source.into() });
    }

    /// Adds a result: `how` is its formula with the numbers.
    pub fn result(
        &mut self,
        (key, label, unit): (&'static str, &'static str, &'static str),
        value: Cell,
        how: impl Into<String>,
    ) {
        self.results.push(Figure { key, label, value, unit, how: how.into() });
    }

    /// The number of a result.
    #[must_use]
    pub fn of(&self, key: &str) -> Option<f64> {
        self.results.iter().find(|figure| figure.key == key)?.value.number()
    }

    /// For people at a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.title);
        for (heading, figures) in [("inputs", &self.inputs), ("results", &self.results)] {
            figures_text(heading, figures, &mut out);
        }
        for table in &self.tables {
            table.write_text(&mut out);
        }
        if !self.warnings.is_empty() || !self.notes.is_empty() {
            out.push('\n');
        }
        for warning in &self.warnings {
            wrap("warning: ", warning, &mut out);
        }
        for note in &self.notes {
            wrap("note: ", note, &mut out);
        }
        out
    }

    /// One object; the names are a contract with scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let sourced = |figures: &[Figure], name: &str| {
            let one = |f: &Figure| {
                let told = json!({ "value": f.value.json(), "unit": f.unit, name: f.how });
                (f.key.to_owned(), told)
            };
            Value::Object(figures.iter().map(one).collect())
        };
        let mut object = Map::new();
        object.insert("command".to_owned(), json!(self.command));
        object.insert("title".to_owned(), json!(self.title));
        object.insert("inputs".to_owned(), sourced(&self.inputs, "source"));
        object.insert("results".to_owned(), sourced(&self.results, "formula"));
        let tables = self.tables.iter().map(|table| (table.key.to_owned(), table.json()));
        object.insert("tables".to_owned(), Value::Object(tables.collect()));
        object.insert("warnings".to_owned(), json!(self.warnings));
        object.insert("notes".to_owned(), json!(self.notes));
        Value::Object(object)
    }
}

impl Table {
    fn json(&self) -> Value {
        let row = |cells: &Vec<Cell>| {
            let named = self.columns.iter().zip(cells);
            Value::Object(named.map(|((key, _), cell)| ((*key).to_owned(), cell.json())).collect())
        };
        Value::Array(self.rows.iter().map(row).collect())
    }

    fn write_text(&self, out: &mut String) {
        let texts: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
        let width = |column: usize, heading: &str| {
            let cells = texts.iter().filter_map(|row| row.get(column));
            cells.map(|t| t.chars().count()).chain([heading.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> =
            self.columns.iter().enumerate().map(|(i, (_, heading))| width(i, heading)).collect();
        let _ = write!(out, "\n{}\n", self.title);
        let headings = self.columns.iter().map(|(_, heading)| (*heading).to_owned()).collect();
        for row in [headings].iter().chain(&texts) {
            let mut line = String::from("  ");
            for (i, (text, &width)) in row.iter().zip(&widths).enumerate() {
                // The first column names the row; words read from the left, numbers from the right.
                if i == 0 || self.is_words(i) {
                    let _ = write!(line, "{text:<width$}  ");
                } else {
                    let _ = write!(line, "{text:>width$}  ");
                }
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }

    /// Whether a column holds words.
    #[must_use]
    pub fn is_words(&self, column: usize) -> bool {
        self.rows.iter().any(|row| matches!(row.get(column), Some(Cell::Text(_))))
    }
}

fn figures_text(heading: &str, figures: &[Figure], out: &mut String) {
    if figures.is_empty() {
        return;
    }
    let _ = write!(out, "\n{heading}\n");
    let value = |f: &Figure| format!("{} {}", f.value.text(), f.unit).trim_end().to_owned();
    let labels = figures.iter().map(|f| f.label.chars().count()).max().unwrap_or(0);
    let values = figures.iter().map(|f| value(f).chars().count()).max().unwrap_or(0);
    for f in figures {
        let _ = writeln!(out, "  {:<labels$}  {:>values$}   {}", f.label, value(f), f.how);
    }
}

/// A paragraph of at most 100 columns, later lines set in.
fn wrap(head: &str, text: &str, out: &mut String) {
    let mut line = String::from(head);
    for word in text.split_whitespace() {
        if line.chars().count() + word.chars().count() >= 100 {
            let _ = writeln!(out, "{}", line.trim_end());
            line = " ".repeat(head.len());
        }
        let _ = write!(line, "{word} ");
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

/// A number with its thousands apart.
fn thousands(value: f64, digits: usize) -> String {
    let plain = format!("{:.digits$}", value.abs());
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let negative = value < 0.0 && plain.bytes().any(|b| (b'1'..=b'9').contains(&b));
    let mut out = String::from(if negative { "-" } else { "" });
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart_and_the_json_has_the_same_digits() {
        let told = [
            (1_234_567.0, 0, "1,234,567"),
            (1.342_177, 2, "1.34"),
            (-999.5, 1, "-999.5"),
            (-0.001, 1, "0.0"),
            (123.0, 0, "123"),
            (f64::INFINITY, 1, "-"),
            (2.5, 0, "2"),
            (-159_176.5, 0, "-159,176"),
            (0.125, 2, "0.12"),
        ];
        for (value, digits, text) in told {
            let cell = number(value, digits);
            assert_eq!(cell.text(), text);
            let back = cell.json().as_f64().map_or("-".to_owned(), |v| thousands(v, digits));
            assert_eq!(back, text);
        }
        assert_eq!(number(414.0, 0).json().to_string(), "414");
    }

    #[test]
    fn the_forms_hold_the_same() {
        let mut sheet = Sheet { command: "plan x", title: "x of y".into(), ..Sheet::default() };
        sheet.input(("a_gb", "a", "GB"), number(84.0, 1), "the data sheet");
        sheet.result(("b", "bees", ""), number(5.25, 2), "a / 16");
        sheet.tables.push(Table {
            key: "rows",
            title: "Rows".into(),
            columns: vec![("name", "name"), ("n", "n")],
            rows: vec![vec![words("one"), number(1.0, 0)], vec![words("two"), Cell::Nothing]],
            bars: None,
        });
        sheet.warnings.push("long ".repeat(40));
        let (text, json) = (sheet.text(), sheet.json());
        assert!(text.contains("84.0 GB   the data sheet") && text.contains("5.25   a / 16"));
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert_eq!(json["inputs"]["a_gb"]["source"], "the data sheet");
        assert_eq!(json["results"]["b"]["value"], 5.25);
        assert_eq!(json["tables"]["rows"][0]["n"], 1);
        assert_eq!(json["tables"]["rows"][1]["n"], Value::Null);
        assert_eq!(sheet.of("b"), Some(5.25));
    }
}
