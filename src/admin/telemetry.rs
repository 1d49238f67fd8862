//! The metrics of the access log and of what goes to a collector.

use super::exposition::Page;
use super::server::View;

pub(super) fn telemetry(page: &mut Page, view: &View) {
    let lines = view.access.as_ref().map(|log| log.counts()).unwrap_or_default();
    let name = "expedite_access_lines_total";
    page.family(name, "counter", "Lines of the access log by what became of them.");
    let results =
        [("written", lines.written), ("dropped", lines.dropped), ("failed", lines.failed)];
    for (result, n) in results {
        page.value(name, &[("result", result)], n);
    }
    let traces = view.traces.as_deref();
    let name = "expedite_otel_up";
    page.family(name, "gauge", "The collector took the last batch; none without a collector.");
    if let Some(traces) = traces {
        page.value(name, &[], u8::from(traces.is_up()));
    }
    let name = "expedite_otel_exported_total";
    page.family(name, "counter", "Spans and copies of usage records by what became of them.");
    let counts = traces.map(|traces| (traces.spans(), traces.logs())).unwrap_or_default();
    for (signal, counts) in [("spans", counts.0), ("logs", counts.1)] {
        let results = [
            ("exported", counts.exported),
            ("dropped", counts.dropped),
            ("refused", counts.refused),
        ];
        for (result, n) in results {
            page.value(name, &[("signal", signal), ("result", result)], n);
        }
    }
}
