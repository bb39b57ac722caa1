//! Memory use of this process.

/// This process's id and its [`peak_rss_mib`]. Both are 0 for a node of a simulated network, which
/// has no process of its own, and whose messages must be the same in every run.
pub fn process() -> (u32, f64) {
    if caravan_kv::node::is_simulated() { (0, 0.0) } else { (std::process::id(), peak_rss_mib()) }
}

/// Bytes in MiB, rounded so.
pub(crate) fn mib(bytes: u64, round: impl Fn(f64) -> f64) -> String {
    format!("{} MiB", round(bytes as f64 / f64::from(1 << 20)))
}

/// Peak resident set of this process, in MiB; 0 if the system does not report it.
pub fn peak_rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
