//! What pages with figures are made of: their beginning with its style, and pieces of inline SVG.
//! Nothing is fetched from elsewhere. Light or dark as the reader's system has it.

use std::fmt::Write as _;

/// Told apart by most eyes (Okabe and Ito), repeated when there are more curves.
pub(crate) const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#8c8c00"];
/// Size of a chart of curves.
pub(crate) const WIDTH: f64 = 560.0;
pub(crate) const HEIGHT: f64 = 300.0;

/// Colours of the page and of what is not data in a chart.
const THEME: &str = ":root{color-scheme:light dark;--back:#fff;--ink:#1b1b1b;--faint:#ddd;\
--rule:#ccc;--limit:#b00}\n\
@media(prefers-color-scheme:dark){:root{--back:#16181c;--ink:#e4e4e4;--faint:#3a3f47;\
--rule:#4a4f57;--limit:#ff6b6b}}\n";

/// The beginning of a page, up to and with its heading.
pub(crate) fn open(title: &str, heading: &str) -> String {
    let (title, heading) = (escape(title), escape(heading));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{THEME}\
         body{{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1180px;\
         padding:0 1em;background:var(--back);color:var(--ink)}}\n\
         table{{border-collapse:collapse}}th,td{{text-align:right;padding:.2em .7em;\
         border-bottom:1px solid var(--rule)}}\
         th:first-child,td:first-child,.words{{text-align:left}}\n\
         .wide{{overflow-x:auto}}.warning{{border-left:4px solid #d55e00;padding-left:.7em}}\n\
         .charts{{display:flex;flex-wrap:wrap;gap:1em}}svg{{max-width:100%;height:auto}}\
         svg text{{font-family:system-ui,sans-serif;font-size:12px;fill:var(--ink)}}\n\
         td:has(.swatch){{white-space:nowrap}}\
         .swatch{{display:inline-block;width:.8em;height:.8em;margin-right:.5em}}\n\
         </style></head><body>\n<h1>{heading}</h1>\n"
    )
}

/// The beginning of a chart of the usual size, with its title.
pub(crate) fn frame(title: &str, out: &mut String) {
    let _ = writeln!(
        out,
        "<svg role=\"img\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">\
         <title>{0}</title><text x=\"8\" y=\"18\" font-weight=\"bold\">{0}</text>",
        escape(title)
    );
}

/// A straight line; `colour` as CSS has it.
pub(crate) fn line(from: (f64, f64), to: (f64, f64), colour: &str, out: &mut String) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" style=\"stroke:{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

/// Words that begin at a place.
pub(crate) fn text(at: (f64, f64), words: &str, out: &mut String) {
    let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", at.0, at.1, escape(words));
}

/// Text as it stands in HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
