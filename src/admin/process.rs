//! What the process takes of the host, as every Prometheus client library tells it, and what each
//! core does. Reads `/proc/self`; where it cannot be read, nothing is told.

use super::exposition::Page;
use super::server::View;
use crate::runtime::clock;

/// Ticks of a second in `/proc` (`USER_HZ`, the same on every architecture of ours).
const TICKS: f64 = 100.0;

pub(super) fn process(page: &mut Page, view: &View) {
    let cpu = "expedite_core_cpu_seconds_total";
    page.family(cpu, "counter", "CPU time of a core's thread: its share of a second is its load.");
    for (core, shard) in view.shards.iter().enumerate() {
        let seconds = shard.cpu_ns.get() as f64 / 1e9;
        page.value(cpu, &[("core", &core.to_string())], seconds);
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    if let Some((seconds, threads)) = stat(&read("/proc/self/stat")) {
        let name = "process_cpu_seconds_total";
        page.family(name, "counter", "CPU time of the process.");
        page.value(name, &[], seconds);
        page.family("process_threads", "gauge", "Threads of the process.");
        page.value("process_threads", &[], threads);
    }
    let status = read("/proc/self/status");
    let kinds = [
        ("process_resident_memory_bytes", "VmRSS:", "Memory in use."),
        ("process_resident_memory_max_bytes", "VmHWM:", "Most memory that was in use."),
        ("process_virtual_memory_bytes", "VmSize:", "Addresses in use."),
    ];
    for (name, line, help) in kinds {
        if let Some(bytes) = kilobytes(&status, line) {
            page.family(name, "gauge", help);
            page.value(name, &[], bytes * 1024);
        }
    }
    let started = (clock::unix_ms().saturating_sub(clock::now_ms())) as f64 / 1e3;
    page.family("process_start_time_seconds", "gauge", "Its start, since 1970.");
    page.value("process_start_time_seconds", &[], started);
}

/// CPU time in seconds and the number of threads, of `/proc/PID/stat` (proc_pid_stat(5)): fields
/// 14, 15 and 20, counted behind the name, which may hold anything.
fn stat(text: &str) -> Option<(f64, u64)> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(((number(11)? + number(12)?) as f64 / TICKS, number(17)?))
}

/// A line of `/proc/self/status` (proc_pid_status(5)).
pub(super) fn kilobytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_read() {
        let text = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 12 1 2";
        assert_eq!(stat(text), Some((3.0, 9)));
        assert_eq!(stat("7 (a"), None);
        assert_eq!(kilobytes("VmHWM:\t  20 kB\nVmRSS:\t  12 kB\n", "VmRSS:"), Some(12));
        assert_eq!(kilobytes("", "VmRSS:"), None);
    }
}
