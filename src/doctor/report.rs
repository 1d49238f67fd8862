//! The report: lines for people, or one JSON object.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Finding, Level};

/// What was found on a host.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of their areas.
    pub findings: Vec<Finding>,
}

const LEVELS: [Level; 4] = [Level::Ok, Level::Unknown, Level::Warn, Level::Fail];

impl Level {
    /// As printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Unknown => "unknown",
            Level::Warn => "warn",
            Level::Fail => "fail",
        }
    }
}

impl Report {
    pub(super) fn of(findings: Vec<Finding>) -> Report {
        Report { findings }
    }

    /// How many findings are at a level.
    #[must_use]
    pub fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    /// One line a finding, below it what mends it; a heading an area; the sum at the end.
    #[must_use]
    pub fn text(&self) -> String {
        let width = self.findings.iter().map(|finding| finding.name.chars().count()).max();
        let width = width.unwrap_or(0).min(40);
        let (mut text, mut area) = (String::new(), "");
        for finding in &self.findings {
            if finding.area != area {
                area = finding.area;
                let _ = writeln!(text, "{area}");
            }
            let Finding { name, level, says, mend, .. } = finding;
            let _ = writeln!(text, "  {:<8} {name:<width$}  {says}", level.name());
            if let Some(mend) = mend {
                let _ = writeln!(text, "  {:<8} {:<width$}  mend: {mend}", "", "");
            }
        }
        let counts = LEVELS.map(|level| format!("{} {}", self.count(level), level.name()));
        let _ = writeln!(text, "\n{}", counts.join(", "));
        text
    }

    /// `{"findings": [{"area", "name", "level", "says", "mend"}], "ok": n, "unknown": n, ..}`.
    #[must_use]
    pub fn json(&self) -> Value {
        let finding = |finding: &Finding| {
            let Finding { area, name, level, says, mend } = finding;
            json!({
                "area": area, "name": name, "level": level.name(), "says": says, "mend": mend,
            })
        };
        let findings: Vec<_> = self.findings.iter().map(finding).collect();
        let mut object = json!({ "findings": findings });
        if let Some(object) = object.as_object_mut() {
            for level in LEVELS {
                object.insert(level.name().to_owned(), self.count(level).into());
            }
        }
        object
    }
}
