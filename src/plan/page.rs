//! A sheet as one HTML page, in the style of the replay's report: tables, and bars in inline SVG.

use std::fmt::Write as _;

use super::sheet::{Cell, Figure, Sheet, Table};
use super::svg::{COLOURS, WIDTH, escape, open, text};

/// Height of a bar with its gap.
const BAR: f64 = 26.0;
/// Where bars begin, and the room behind the longest for its number.
const BARS_X: f64 = 230.0;
const NUMBER_WIDTH: f64 = 90.0;
/// Letters of a row's name that fit before its bar.
const NAME_LETTERS: usize = 34;

/// The page.
#[must_use]
pub fn page(sheet: &Sheet) -> String {
    let title = format!("expedite {}", sheet.command);
    let mut out = open(&title, &sheet.title);
    for warning in &sheet.warnings {
        let _ = writeln!(out, "<p class=\"warning\">{}</p>", escape(warning));
    }
    figures("Inputs", "source", &sheet.inputs, &mut out);
    figures("Results", "formula", &sheet.results, &mut out);
    for table in &sheet.tables {
        rows(table, &mut out);
        if let Some(column) = table.bars {
            bars(table, column, &mut out);
        }
    }
    for note in &sheet.notes {
        let _ = writeln!(out, "<p>{}</p>", escape(note));
    }
    out.push_str("</body></html>\n");
    out
}

fn figures(heading: &str, how: &str, figures: &[Figure], out: &mut String) {
    if figures.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "<h2>{heading}</h2>\n<div class=\"wide\"><table><thead><tr><th></th><th></th><th></th>\
         <th class=\"words\">{how}</th></tr></thead><tbody>"
    );
    for figure in figures {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=\"words\">{}</td><td class=\"words\">{}</td></tr>",
            escape(figure.label.trim()),
            escape(&figure.value.text()),
            escape(figure.unit),
            escape(&figure.how)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn class(table: &Table, column: usize) -> &'static str {
    if table.is_words(column) { " class=\"words\"" } else { "" }
}

fn rows(table: &Table, out: &mut String) {
    let _ =
        writeln!(out, "<h2>{}</h2>\n<div class=\"wide\"><table><thead><tr>", escape(&table.title));
    for (column, (_, heading)) in table.columns.iter().enumerate() {
        let _ = write!(out, "<th{}>{}</th>", class(table, column), escape(heading));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(out, "<td{}>{}</td>", class(table, column), escape(&cell.text()));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// A column as bars; what is below 0 in another colour.
fn bars(table: &Table, column: usize, out: &mut String) {
    let value = |row: &Vec<Cell>| row.get(column).and_then(Cell::number).filter(|v| v.is_finite());
    let most = table.rows.iter().filter_map(value).fold(1e-9, |most: f64, v| most.max(v.abs()));
    let height = 40.0 + BAR * table.rows.len() as f64;
    let heading = table.columns.get(column).map_or("", |(_, heading)| heading);
    let _ = writeln!(
        out,
        "<svg role=\"img\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\
         <title>{0}</title><text x=\"8\" y=\"18\" font-weight=\"bold\">{0}</text>",
        escape(heading)
    );
    let [plus, minus] = [COLOURS.first(), COLOURS.get(1)].map(|c| c.copied().unwrap_or("#000"));
    for (i, row) in table.rows.iter().enumerate() {
        let top = 32.0 + BAR * i as f64;
        let name = row.first().map(Cell::text).unwrap_or_default();
        let short: String = name.chars().take(NAME_LETTERS).collect();
        text((8.0, top + BAR * 0.55), &short, out);
        let number = value(row).unwrap_or(0.0);
        let width = (WIDTH - BARS_X - NUMBER_WIDTH) * number.abs() / most;
        let fill = if number < 0.0 { minus } else { plus };
        let _ = writeln!(
            out,
            "<rect x=\"{BARS_X}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
             fill=\"{fill}\"/>",
            BAR * 0.7
        );
        let told = row.get(column).map(Cell::text).unwrap_or_default();
        text((BARS_X + width + 6.0, top + BAR * 0.55), &told, out);
    }
    out.push_str("</svg>\n");
}

#[cfg(test)]
mod tests {
    use super::super::sheet::{number, words};
    use super::*;

    #[test]
    fn the_page_has_every_number_of_the_sheet_and_nothing_from_elsewhere() {
        let mut sheet = Sheet { command: "plan x", title: "a < b".into(), ..Sheet::default() };
        sheet.input(("a", "a", "GB"), number(84.0, 1), "the \"sheet\"");
        sheet.result(("b", "b", ""), number(-1234.5, 1), "a & b");
        sheet.warnings.push("<script>".into());
        sheet.tables.push(Table {
            key: "t",
            title: "T".into(),
            columns: vec![("name", "name"), ("n", "n")],
            rows: vec![
                vec![words("one"), number(7.25, 2)],
                vec![words("two"), number(-3.0, 0)],
                vec![words("three"), Cell::Nothing],
            ],
            bars: Some(1),
        });
        let page = page(&sheet);
        for told in ["a &lt; b", "84.0", "-1,234.5", "a &amp; b", "<td>7.25</td>", "<td>-3</td>"] {
            assert!(page.contains(told), "{told}\n{page}");
        }
        assert!(!page.contains("<script") && !page.contains("http"));
        assert_eq!(page.matches("<rect").count(), 3);
        assert!(page.contains("width=device-width") && page.ends_with("</html>\n"));
    }
}
