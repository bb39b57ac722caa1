//! Commands and flags of measuring.

use std::path::PathBuf;

use caravan_learn::dbpg::Straggle;
use caravan_learn::sketch::Options;
use clap::{Args, Subcommand};

use super::values::{
    FilterList, count, count_to, factor, large_count, non_negative, parse_size, parse_values,
    pauses, seconds, spells, up_to,
};
use crate::measure::consistency::rows::SetUp;
use crate::measure::fabric::judge::Least;
use crate::measure::failover::fall::Fall;
use crate::measure::load::Arrivals;
use crate::measure::load::rates::{Rate, Skew};
use crate::measure::subject::Op;
use crate::measure::verbs::kinds::{Measure, Op as VerbsOp, WINDOW_MAX};

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
    /// All workers at a rate that answers do not change (open loop), keys by popularity
    Load(LoadArgs),
    /// Every link between hosts: a matrix of latency and bandwidth, and which links are slow
    Fabric(FabricArgs),
    /// The cost of each wait policy: two cores, one shared core, bursts after idle times
    Wait(WaitArgs),
    /// The RDMA device itself, as perftest measures it: no van, no servers
    Verbs(VerbsArgs),
    /// The cost of a server thread, or its memory, on the wrong NUMA node
    Placement,
    /// Kills servers of tables with replicas: how long until pushes to their ranges go on
    Failover(FailoverArgs),
    /// Inserts into count-min sketches on the servers: how many a second, in how many bits
    Sketch(SketchArgs),
    /// Training on simulated clusters of many workers: time, idle share and bytes by delay, filters
    /// and stragglers
    Scale(ScaleArgs),
    /// Consistency models among stragglers: time against sparsity, workers and features, beside
    /// that of schedules without messages; simulated, unless --van names the van of real processes
    Consistency(ConsistencyArgs),
    /// Latency, bandwidth and rate on every van that works here, or on the one named by --van
    All(AllArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    pub(crate) requests: Requests,
    /// Timed requests a row; by default fewer the larger they are
    #[arg(long, value_name = "N", value_parser = large_count(), conflicts_with = "duration")]
    pub(crate) iterations: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WindowArgs {
    #[command(flatten)]
    pub(crate) requests: Requests,
    /// Most requests in flight
    #[arg(long, value_name = "W", value_parser = count_to(4096))]
    pub(crate) window: Option<u32>,
    /// Timed requests a row; by default fewer the larger they are
    #[arg(long, value_name = "N", value_parser = large_count(), conflicts_with = "duration")]
    pub(crate) iterations: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LoadArgs {
    /// Rates of all workers together, separated by commas: closed (as fast as answers come), shares
    /// of that as 80%, requests a second as 20k
    #[arg(long, value_name = "RATES", value_delimiter = ',', default_value = "closed,50%,80%,95%")]
    pub(crate) rate: Vec<Rate>,
    /// Seconds of each rate
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    pub(crate) duration: f64,
    /// How requests of an open loop follow each other
    #[arg(long, value_enum, default_value = "random")]
    pub(crate) arrivals: Arrivals,
    /// Share of requests that push; the others pull
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = up_to(1.0))]
    pub(crate) pushes: f64,
    /// Keys of a request, which share its values evenly
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count())]
    pub(crate) keys: u32,
    /// Value payloads of one request, separated by commas: 8, 64, 1KiB, 4MiB; multiples of 4 bytes
    /// a key
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "64", value_parser = parse_size)]
    pub(crate) sizes: Vec<usize>,
    /// Keys of the table [default: 65536, fewer of large values]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=TABLE_KEYS_MAX))]
    pub(crate) table_keys: Option<u64>,
    /// How popular keys are: uniform, or zipf:S; or new, for pushes of keys that no request has
    /// named, each of which makes a row
    #[arg(long, value_name = "SKEW", default_value = "zipf:1.05")]
    pub(crate) skew: Skew,
    /// Most requests in flight, of each worker; more that are due wait, and their time counts
    #[arg(long, value_name = "W", default_value_t = 64, value_parser = count_to(4096))]
    pub(crate) window: u32,
    /// Seed of times and keys
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// The most keys of a table that `bench load` fills.
const TABLE_KEYS_MAX: u64 = 1_000_000_000;

#[derive(Debug, Clone, Args)]
pub(crate) struct FabricArgs {
    /// Seconds of each link for latency, and as many again for bandwidth
    #[arg(long, value_name = "S", default_value_t = 0.05, value_parser = seconds)]
    pub(crate) duration: f64,
    /// How often every link is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count_to(1000))]
    pub(crate) rounds: u32,
    /// Values of a push that measures bandwidth: a multiple of 4 bytes
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = parse_values)]
    pub(crate) size: usize,
    /// Ends with status 1 if a link carries less than this share of the median, as 90%, or GB/s
    #[arg(long, value_name = "LEAST")]
    pub(crate) fail_below: Option<Least>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WaitArgs {
    /// Clusters for each policy and scene, of which a row holds the medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count())]
    pub(crate) rounds: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct FailoverArgs {
    /// Servers that fall, each of a cluster of its own
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count_to(100_000))]
    pub(crate) count: u32,
    /// Whether their processes are killed or stopped
    #[arg(long, value_enum, default_value = "kill")]
    pub(crate) fall: Fall,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SketchArgs {
    /// Seconds of inserts
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    pub(crate) duration: f64,
    /// Inserts that are sent together
    #[arg(long, default_value_t = 65536, value_name = "N", value_parser = count())]
    pub(crate) batch: u32,
    /// Cells of each server thread
    #[arg(long, default_value_t = 1 << 20, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) cells: u64,
    /// Hash functions
    #[arg(long, default_value_t = 4, value_name = "K", value_parser = count_to(Options::HASHES_MAX.into()))]
    pub(crate) hashes: u32,
    /// Keys that are drawn
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1..=TABLE_KEYS_MAX))]
    pub(crate) table_keys: u64,
    /// How popular keys are: uniform, or zipf:S
    #[arg(long, value_name = "SKEW", default_value = "zipf:1.05")]
    pub(crate) skew: Skew,
    /// Seed of the keys
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ScaleArgs {
    /// Workers of each simulated cluster, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "16,64,256", value_parser = count_to(1024))]
    pub(crate) nodes: Vec<u32>,
    /// Delays to train with, separated by commas
    #[arg(long, value_name = "T", value_delimiter = ',', default_value = "4")]
    pub(crate) delay: Vec<u32>,
    /// Filters to train with, separated by commas: lists as of train dbpg --filters, with + between
    /// names
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "kkt")]
    pub(crate) filters: Vec<FilterList>,
    /// Every worker computes FACTOR times as long in spells of SPELL ms, EVERY ms from each other,
    /// both on average
    #[arg(long, value_name = "FACTOR:EVERY:SPELL", default_value = "1:0:0", value_parser = spells)]
    pub(crate) straggle: [f64; 3],
    /// Share of workers that compute FACTOR times as long all the time
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = up_to(1.0))]
    pub(crate) always_slow: f64,
    /// Seed of the data, the order of blocks and the network
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Rows of generated clicks
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = large_count())]
    pub(crate) rows: u64,
    /// Rows that each of them stands for in the charge for computing
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
    /// Trains by the second-order method in place of the published one
    #[arg(long)]
    pub(crate) newton: bool,
    #[command(flatten)]
    pub(crate) network: SimulatedNetwork,
    /// Only compares the charge for computing with its time here
    #[arg(long)]
    pub(crate) calibrate: bool,
}

/// A simulated network and its machines.
#[derive(Debug, Clone, Args)]
pub(crate) struct SimulatedNetwork {
    /// Rate of a network card in each direction, in Gbit/s; 0 for no limit
    #[arg(long, value_name = "G", default_value_t = 10.0, value_parser = non_negative)]
    pub(crate) gbit: f64,
    /// Shortest one-way latency, in microseconds
    #[arg(long, value_name = "US", default_value_t = 25.0, value_parser = up_to(MICROS_MAX))]
    pub(crate) latency_us: f64,
    /// How much longer the longest latency is, relatively
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = up_to(1000.0))]
    pub(crate) jitter: f64,
    /// Processor time of a frame on either side, in microseconds
    #[arg(long, value_name = "US", default_value_t = 1.0, value_parser = up_to(MICROS_MAX))]
    pub(crate) overhead_us: f64,
    /// Processor time of each byte of it, in nanoseconds, its handling included
    #[arg(long, value_name = "NS", default_value_t = 1.5, value_parser = up_to(1e6))]
    pub(crate) overhead_ns_per_byte: f64,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ConsistencyArgs {
    /// What is varied, separated by commas
    #[arg(
        long,
        value_enum,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "sparsity,workers,features"
    )]
    pub(crate) set_up: Vec<SetUp>,
    /// Iterations of each worker
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count_to(100_000))]
    pub(crate) iterations: u32,
    /// Share of its iterations, 0 to 1, in which a worker computes for up to MS ms longer
    #[arg(long, value_name = "SHARE:MS", default_value = "0.05:100", value_parser = pauses)]
    pub(crate) straggle: Straggle,
    /// The last worker computes FACTOR times as long all the time
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    pub(crate) slowest: f64,
    /// Clocks by which readers may be ahead under SSP and SparseSSP
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) staleness: u32,
    /// Clocks more under SparseSSP, for readers whose keys no slower worker touches
    #[arg(long, value_name = "SP", default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) speculation: u32,
    /// Sparsity: shares of the table's keys that an iteration touches, separated by commas
    #[arg(long, value_name = "SHARES", value_delimiter = ',', default_value = "1e-6,1e-5,1e-4,1e-3", value_parser = up_to(0.1))]
    pub(crate) sparsity: Vec<f64>,
    /// Sparsity: workers
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = count_to(1024))]
    pub(crate) sparse_nodes: u32,
    /// Sparsity: keys of the table
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=SPARSE_KEYS_MAX))]
    pub(crate) dimensions: u64,
    /// Sparsity: what a worker computes in an iteration, in ms
    #[arg(long, value_name = "MS", default_value_t = 10.0, value_parser = up_to(1e6))]
    pub(crate) compute_ms: f64,
    /// Workers: their numbers, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "6,12,24,40", value_parser = count_to(1024))]
    pub(crate) nodes: Vec<u32>,
    /// Features: their numbers, separated by commas, for each of 16, 24 and 40 workers
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "960,3840,15360,61440", value_parser = count_to(10_000_000))]
    pub(crate) features: Vec<u32>,
    /// Seed of keys, pauses and the network
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Also draws the rows into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) network: SimulatedNetwork,
}

/// The most keys of the table of `bench consistency`.
const SPARSE_KEYS_MAX: u64 = 1_000_000_000;

#[derive(Debug, Clone, Args)]
pub(crate) struct AllArgs {
    /// Kinds of requests, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) op: Vec<Op>,
    /// Seconds of each row, its floor included, instead of a number of requests
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) duration: Option<f64>,
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
    #[arg(long, value_name = "N", value_parser = large_count().range(1..=100_000_000))]
    pub(crate) iterations: Option<u64>,
    /// Bandwidth: most messages in flight [default: 128, fewer of large ones]
    #[arg(long, value_name = "W", value_parser = count_to(WINDOW_MAX as usize))]
    pub(crate) window: Option<u32>,
    /// Bandwidth: messages posted at one doorbell
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count_to(16))]
    pub(crate) list: u32,
    /// Messages of at most so many bytes go inside the work request, if the device can; 0 for none
    #[arg(long, value_name = "BYTES", default_value_t = 220, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) inline: u32,
    /// Answers at this address, host or host:port, until a signal stops it
    #[arg(long, value_name = "ADDRESS", conflicts_with = "connect")]
    pub(crate) listen: Option<String>,
    /// Measures against the process that listens there, instead of one on this machine
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) connect: Option<String>,
}

/// The requests to the servers.
#[derive(Debug, Clone, Args)]
pub(crate) struct Requests {
    /// Kinds of requests, separated by commas [default: push,pull]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) op: Vec<Op>,
    /// Keys of a request, which share its values evenly
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count())]
    pub(crate) keys: u32,
    /// Whether a list of keys is sent once and then named; it matters from 32 keys on
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) key_cache: bool,
    /// Value payloads of one request, separated by commas: 8, 64, 1KiB, 4MiB; multiples of 4 bytes
    /// a key
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<usize>,
    /// Seconds of each row, its floor included, instead of a number of requests
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) duration: Option<f64>,
    /// Copies of each shard on other servers; so many may be lost. It needs more --servers than
    /// that
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(crate) replicas: u32,
    /// Answers before the copies have what was pushed: what a server has answered and not passed on
    /// is lost with it
    #[arg(long, requires = "replicas")]
    pub(crate) asynchronous: bool,
    /// Makes every request take so much longer, in percent, on purpose: for tests of `compare`
    #[arg(long, hide = true, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) slower: u32,
}
