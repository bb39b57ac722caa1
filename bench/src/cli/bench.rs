//! Commands and flags of measuring.

use clap::{Args, Subcommand};

use super::values::{FilterList, count, large_count, non_negative, parse_size, spells, up_to};
use crate::measure::subject::Op;
use crate::measure::verbs::side::{Measure, Op as VerbsOp, WINDOW_MAX};

/// The most that `bench scale` takes in microseconds: a second.
const MICROS_MAX: f64 = 1e6;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Round trip of one request in flight
    Latency(LatencyArgs),
    /// Large requests, a window of them in flight
    Bandwidth(WindowArgs),
    /// Small requests a second, a window of them in flight
    Rate(WindowArgs),
    /// What each wait policy costs: two cores, one shared core, bursts after idle times
    Wait(WaitArgs),
    /// The RDMA device itself, as perftest measures it: no van, no servers
    Verbs(VerbsArgs),
    /// What it costs when a server thread, or its memory, is on the wrong NUMA node
    Placement,
    /// Training on simulated clusters of many workers: time, idle share and bytes by delay, filters and stragglers
    Scale(ScaleArgs),
    /// Latency, bandwidth and rate on every van that works here, or on the one named by --van
    All(AllArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    pub(crate) requests: Requests,
    /// Timed requests a row; by default fewer the larger they are
    #[arg(long, value_name = "N", value_parser = large_count())]
    pub(crate) iterations: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WindowArgs {
    #[command(flatten)]
    pub(crate) requests: Requests,
    /// Most requests in flight
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) window: Option<u32>,
    /// Timed requests a row; by default fewer the larger they are
    #[arg(long, value_name = "N", value_parser = large_count())]
    pub(crate) iterations: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WaitArgs {
    /// Clusters for each policy and scene, of which a row holds the medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count())]
    pub(crate) rounds: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ScaleArgs {
    /// Workers of each simulated cluster, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "16,64,256", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) nodes: Vec<u32>,
    /// Delays to train with, separated by commas
    #[arg(long, value_name = "T", value_delimiter = ',', default_value = "4")]
    pub(crate) delay: Vec<u32>,
    /// Filters to train with, separated by commas: each a list as of train dbpg --filters, with + between its names
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "kkt")]
    pub(crate) filters: Vec<FilterList>,
    /// Every worker computes FACTOR times as long in spells of SPELL ms, EVERY ms from each other, both on average
    #[arg(long, value_name = "FACTOR:EVERY:SPELL", default_value = "1:0:0", value_parser = spells)]
    pub(crate) straggle: [f64; 3],
    /// Share of workers that compute FACTOR times as long all the time
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = up_to(1.0))]
    pub(crate) always_slow: f64,
    /// Draws the data, the order of blocks, and all that the network does
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Rows of generated clicks
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = large_count())]
    pub(crate) rows: u64,
    /// How many rows each of them stands for where computing is charged
    #[arg(long, value_name = "N", default_value_t = 400.0, value_parser = up_to(1e9))]
    pub(crate) stands_for: f64,
    /// Weight of the L1 norm
    #[arg(long, value_name = "L", default_value_t = 10.0, value_parser = non_negative)]
    pub(crate) lambda: f64,
    /// Blocks of features
    #[arg(long, value_name = "B", default_value_t = 100, value_parser = count())]
    pub(crate) blocks: u32,
    /// How far above the optimum a run ends, relatively
    #[arg(long, value_name = "E", default_value_t = 1e-3, value_parser = non_negative)]
    pub(crate) target: f64,
    /// Passes over the data, at most
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = large_count())]
    pub(crate) passes: u64,
    /// What a network card carries in each direction, in Gbit/s; 0 for any amount
    #[arg(long, value_name = "G", default_value_t = 10.0, value_parser = non_negative)]
    pub(crate) gbit: f64,
    /// Shortest one-way latency, in microseconds
    #[arg(long, value_name = "US", default_value_t = 25.0, value_parser = up_to(MICROS_MAX))]
    pub(crate) latency_us: f64,
    /// The longest is so much longer, relatively
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = up_to(1000.0))]
    pub(crate) jitter: f64,
    /// What a frame takes a processor, on either side, in microseconds
    #[arg(long, value_name = "US", default_value_t = 1.0, value_parser = up_to(MICROS_MAX))]
    pub(crate) overhead_us: f64,
    /// And each byte of it, in nanoseconds, what is made of it included
    #[arg(long, value_name = "NS", default_value_t = 1.5, value_parser = up_to(1e6))]
    pub(crate) overhead_ns_per_byte: f64,
    /// Only compares what computing is charged with what it takes here
    #[arg(long)]
    pub(crate) calibrate: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AllArgs {
    /// What the requests do, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) op: Vec<Op>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct VerbsArgs {
    /// RDMA device, as `caravan doctor` names it [default: the first with an active port]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// How messages are moved, separated by commas [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) op: Vec<VerbsOp>,
    /// What is measured, separated by commas [default: both]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) measure: Vec<Measure>,
    /// Message sizes, separated by commas: 8, 64, 1KiB, 4MiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<usize>,
    /// Timed messages a row; by default fewer the larger they are
    #[arg(long, value_name = "N", value_parser = large_count())]
    pub(crate) iterations: Option<u64>,
    /// Bandwidth: most messages under way [default: 128, fewer of large ones]
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..=i64::from(WINDOW_MAX)))]
    pub(crate) window: Option<u32>,
    /// Bandwidth: messages posted at one doorbell
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) list: u32,
    /// Messages of at most so many bytes go inside the work request, where the device can; 0 for none
    #[arg(long, value_name = "BYTES", default_value_t = 220, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) inline: u32,
    /// Answers at this address, host or host:port, until it is stopped
    #[arg(long, value_name = "ADDRESS", conflicts_with = "connect")]
    pub(crate) listen: Option<String>,
    /// Measures against whoever listens there, instead of a process on this machine
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) connect: Option<String>,
}

/// What is asked of the servers.
#[derive(Debug, Clone, Args)]
pub(crate) struct Requests {
    /// What the requests do, separated by commas [default: push,pull]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) op: Vec<Op>,
    /// Keys a request; its values are shared out evenly among them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count())]
    pub(crate) keys: u32,
    /// Whether a list of keys is sent once and named from then on; it needs 32 keys to matter
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) key_cache: bool,
    /// Value payloads of one request, separated by commas: 8, 64, 1KiB, 4MiB; multiples of 4 bytes a key
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<usize>,
}
