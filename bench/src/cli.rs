//! Every command and flag, and nothing else: names are a contract with scripts.

mod learn;

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use caravan_kv::ClusterConfig;
use caravan_kv::config::is_address;
use caravan_kv::node::Numa;
use caravan_learn::dbpg::Filters;
use caravan_van::Wait;
use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use self::learn::*;
use crate::floor::Answerer;
use crate::scale::parse_straggle;
use crate::subject::Op;
use crate::units::{parse_size, parse_wait};
use crate::verbs;

/// Moves parameters: push and pull over RDMA, io_uring, shared memory or TCP, and what trains on it.
#[derive(Debug, Parser)]
#[command(name = "caravan", version, max_term_width = 100, subcommand_required = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command. Those that are not given are taken from the environment, which kv alone reads.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// What carries the messages [default: auto] [env: CARAVAN_VAN]
    #[arg(long, global = true, value_enum)]
    pub(crate) van: Option<VanChoice>,
    /// One JSON object a line on standard output, and nothing else there
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Tiny inputs, no claims: only shows that it runs
    #[arg(long, global = true)]
    pub(crate) smoke: bool,
    /// Worker processes of the cluster [default: 1] [env: CARAVAN_WORKERS]
    #[arg(long, global = true, value_name = "N", value_parser = count_to(ClusterConfig::NODES_MAX))]
    pub(crate) workers: Option<u32>,
    /// Server processes of the cluster [default: 1] [env: CARAVAN_SERVERS]
    #[arg(long, global = true, value_name = "N", value_parser = count_to(ClusterConfig::NODES_MAX))]
    pub(crate) servers: Option<u32>,
    /// Threads of each server [default: 1] [env: CARAVAN_THREADS]
    #[arg(long, global = true, value_name = "N", value_parser = count_to(ClusterConfig::THREADS_MAX))]
    pub(crate) threads: Option<u32>,
    /// Runs the whole cluster as threads of this process
    #[arg(long, global = true)]
    pub(crate) in_process: bool,
    /// Starts no nodes: waits at CARAVAN_SCHEDULER for servers and workers that are started elsewhere
    #[arg(long, global = true, conflicts_with = "in_process")]
    pub(crate) external: bool,
    /// What an idle thread does: spin, yield, adaptive or block [default: adaptive] [env: CARAVAN_WAIT]
    #[arg(long, global = true, value_name = "POLICY", value_parser = parse_wait)]
    pub(crate) wait: Option<Wait>,
    /// Pins server threads to cores, the default [env: CARAVAN_PIN=1]
    #[arg(long, global = true, conflicts_with = "no_pin")]
    pub(crate) pin: bool,
    /// Leaves server threads to the kernel [env: CARAVAN_PIN=0]
    #[arg(long, global = true)]
    pub(crate) no_pin: bool,
    /// NUMA node of server threads and their memory: a number, near-nic, or any [default: near-nic] [env: CARAVAN_NUMA_NODE]
    #[arg(long, global = true, value_name = "NODE", value_parser = numa)]
    pub(crate) numa_node: Option<Numa>,
}

fn numa(text: &str) -> Result<Numa, String> {
    text.parse().map_err(|error: caravan_kv::Error| error.to_string())
}

/// A van by name, or the best one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VanChoice {
    /// The fastest that works here
    Auto,
    /// Verbs: InfiniBand and RoCE
    Rdma,
    /// TCP through io_uring
    Uring,
    /// Shared memory, between processes of one machine
    Shm,
    /// TCP through plain sockets, everywhere
    Tcp,
    /// A simulated network in simulated time
    Sim,
}

impl VanChoice {
    /// As in a row.
    pub(crate) fn name(self) -> &'static str {
        match self {
            VanChoice::Auto => "auto",
            VanChoice::Rdma => "rdma",
            VanChoice::Uring => "uring",
            VanChoice::Shm => "shm",
            VanChoice::Tcp => "tcp",
            VanChoice::Sim => "sim",
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measures push and pull against a floor measured in the same run
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Trains a model on the embedded cluster
    #[command(subcommand)]
    Train(TrainCommand),
    /// Scores examples with a trained model
    Predict(Predict),
    /// Writes synthetic data
    #[command(subcommand)]
    Generate(GenerateCommand),
    /// Runs the scheduler of a cluster
    Scheduler(Role),
    /// Runs one server of a cluster
    Server(Role),
    /// Runs one worker of a cluster
    Worker(Role),
    /// Says which vans work on this machine, and for each that doesn't, why and what to do; draws what runs where
    Doctor(DoctorArgs),
    /// The other process of a floor, or of `bench verbs`
    #[command(hide = true)]
    Floor(FloorArgs),
}

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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
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
    #[arg(long, value_name = "FACTOR:EVERY:SPELL", default_value = "1:0:0", value_parser = parse_straggle)]
    pub(crate) straggle: [f64; 3],
    /// Share of workers that compute FACTOR times as long all the time
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = up_to(1.0))]
    pub(crate) always_slow: f64,
    /// Draws the data, the order of blocks, and all that the network does
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Rows of generated clicks
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
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
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
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

/// Which filters a simulated training has on, and how that is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FilterList {
    pub(crate) name: String,
    pub(crate) filters: Filters,
}

impl FromStr for FilterList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(FilterList { name: text.to_owned(), filters: filters(&text.replace('+', ","))? })
    }
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
    pub(crate) op: Vec<verbs::Op>,
    /// What is measured, separated by commas [default: both]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) measure: Vec<verbs::Measure>,
    /// Message sizes, separated by commas: 8, 64, 1KiB, 4MiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<usize>,
    /// Timed messages a row; by default fewer the larger they are
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,
    /// Bandwidth: most messages under way [default: 128, fewer of large ones]
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..=i64::from(verbs::WINDOW_MAX)))]
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

#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorArgs {
    /// Draws another machine than this one: a file that `lstopo --of xml` wrote, or hwloc's synthetic notation, as
    /// "pack:2 [numa(memory=8GB)] core:4 pu:2"
    #[arg(long, value_name = "FILE|WORDS")]
    pub(crate) topology: Option<String>,
}

/// What the parent of an answering process tells it.
#[derive(Debug, Clone, Args)]
pub(crate) struct FloorArgs {
    /// What it answers
    #[arg(value_enum, default_value_t = Answerer::Socket)]
    pub(crate) answerer: Answerer,
    /// Where it listens
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub(crate) host: IpAddr,
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

/// One role of a cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct Role {
    /// Where the scheduler listens, as host:port [env: CARAVAN_SCHEDULER]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) scheduler: Option<String>,
    /// Address of this node, which its peers can reach [env: CARAVAN_HOST]
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,
    /// Number of the job, hexadecimal [env: CARAVAN_JOB]
    #[arg(long, value_name = "HEX", value_parser = hexadecimal)]
    pub(crate) job: Option<u64>,
    /// Place among the nodes of this role; the scheduler chooses one if not given
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<usize>,
}

fn address(text: &str) -> Result<String, String> {
    let fits = is_address(text).then(|| text.to_owned());
    fits.ok_or_else(|| {
        format!("{text:?} is no address; it takes host:port, with a port below 65536")
    })
}

fn hexadecimal(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|_| format!("{text:?} is not a hexadecimal number"))
}

fn count() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

fn count_to(most: usize) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=most as i64)
}

fn filters(text: &str) -> Result<Filters, String> {
    text.parse().map_err(|error: caravan_kv::Error| error.to_string())
}

fn non_negative(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("{text:?} is not a number of 0 or more"))
}

fn up_to(most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = non_negative(text).ok().filter(|number| *number <= most);
        number.ok_or_else(|| format!("{text:?} is not a number of 0 to {most}"))
    }
}

/// The most of what `bench scale` takes in microseconds: a second.
const MICROS_MAX: f64 = 1e6;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn documented_lines_are_read() {
        for line in [
            "caravan bench latency --van tcp --op pull --keys 1 --sizes 8,64,1KiB --iterations 10",
            "caravan --json bench bandwidth --op push-pull --sizes 64KiB,1MiB,4MiB --window 8",
            "caravan bench rate --van uring --sizes 8,64 --window 64 --smoke",
            "caravan bench all --json --wait adaptive",
            "caravan bench wait --van tcp --rounds 5 --json",
            "caravan bench scale --nodes 16,256 --delay 0,4 --filters none,kkt+key-cache,all --straggle 4:40:10 --always-slow 0.1 --json",
            "caravan train dbpg --data a b --test c --lambda 0.5 --workers 2 --servers 2 --van tcp --delay 2 --blocks 8 --order random --seed 3 --learning-rate 0.5 --epsilon 1e-5 --model m --model-format binary",
            "caravan train dbpg --data a --lambda 10,3,1 --l2 0.5 --intercept --positive-weight 4 --warm-start m --model n.bin --plot p.svg",
            "caravan train dbpg --data a --lambda 1 --lambda-path 10 --model m",
            "caravan train dbpg --data a --lambda 1 --resume m --delay 0..8 --block-ratio 2.5 --prior 3,10..20",
            "caravan train dbpg --data a --lambda 1 --tail-frequency 4 --countmin-k 3 --countmin-ratio 1.5 --filters kkt,skip=0.5,significant=2",
            "caravan predict --model m --data a b --out p",
            "caravan generate clicks out --rows 10 --format keys",
            "caravan scheduler --host 0.0.0.0",
            "caravan server --scheduler host:7000 --threads 4",
            "caravan worker --rank 0 --job beef",
            "caravan doctor --json",
            "caravan doctor --topology two.xml --threads 4 --numa-node 1",
            "caravan bench placement --van tcp --no-pin --smoke",
            "caravan server --scheduler host:7000 --pin --numa-node near-nic",
            "caravan floor --wait spin",
            "caravan floor verbs --host 192.0.2.1",
            "caravan bench verbs --device mlx5_0 --op send,write,write-imm,read --sizes 8,1MiB --iterations 10 --window 16 --list 16 --json",
            "caravan bench verbs --listen 192.0.2.1:18600",
            "caravan bench verbs --connect 192.0.2.1 --measure latency --inline 0",
        ] {
            parse(line).expect(line);
        }
        let cli = parse("caravan bench latency --sizes 8,1KiB --op push,pull").unwrap();
        let Command::Bench(BenchCommand::Latency(args)) = cli.command else { panic!() };
        assert_eq!(args.requests.sizes, [8, 1024]);
        assert_eq!(args.requests.op, [Op::Push, Op::Pull]);
    }

    #[test]
    fn every_training_flag_is_in_the_table_of_the_readme() {
        let readme = include_str!("../../README.md");
        let rows: Vec<&str> = readme.lines().filter(|line| line.starts_with("| `--")).collect();
        let mut command = Cli::command();
        command.build();
        let train = command.find_subcommand("train").unwrap().find_subcommand("dbpg").unwrap();
        let own = train.get_arguments().filter(|flag| !flag.is_global_set());
        let flags: Vec<String> =
            own.filter_map(|flag| flag.get_long()).map(str::to_owned).collect();
        assert!(flags.len() > 15);
        for flag in flags.iter().filter(|flag| *flag != "help") {
            let named = rows.iter().any(|row| row.contains(&format!("`--{flag}")));
            assert!(named, "--{flag} is not in the table under Training");
        }
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in [
            "caravan",
            "caravan bench",
            "caravan fly",
            "caravan bench latency --van carrier-pigeon",
            "caravan bench latency --sizes 8,big",
            "caravan bench latency --sizes 0",
            "caravan bench latency --op pop",
            "caravan bench latency --keys 0",
            "caravan bench rate --window 0",
            "caravan bench wait --rounds 0",
            "caravan bench rate --iterations 0",
            "caravan bench scale --nodes 0",
            "caravan bench scale --straggle 4",
            "caravan bench scale --straggle 4:0.0001:0.0001",
            "caravan bench scale --stands-for 1e300",
            "caravan bench scale --latency-us 1e300",
            "caravan bench scale --overhead-us 1e300",
            "caravan bench scale --always-slow 2",
            "caravan bench scale --filters kkt+wall",
            "caravan bench verbs --op push",
            "caravan bench verbs --list 17",
            "caravan bench verbs --window 0",
            "caravan bench verbs --listen a --connect b",
            "caravan doctor --workers 0",
            "caravan doctor --workers 10001",
            "caravan doctor --servers 10001",
            "caravan doctor --threads 1025",
            "caravan doctor --numa-node nearby",
            "caravan doctor --pin --no-pin",
            "caravan doctor --wait never",
            "caravan worker --job xyz",
            "caravan worker --scheduler nonsense",
            "caravan server --scheduler host:99999",
            "caravan train dbpg --data a",
            "caravan train dbpg --data a --lambda -1",
            "caravan train dbpg --data a --lambda NaN",
            "caravan train dbpg --data a --lambda 1,-1",
            "caravan train dbpg --data a --lambda 1 --delay 1..8",
            "caravan train dbpg --data a --lambda 1 --delay fast",
            "caravan train dbpg --data a --lambda 1 --prior 9..3",
            "caravan train dbpg --data a --lambda 1 --straggle 2:5",
            "caravan train dbpg --data a --lambda 1 --straggle 0.5",
            "caravan train dbpg --data a --lambda 1 --blocks 3 --block-ratio 2",
            "caravan train dbpg --data a --lambda 1 --lambda-path 1",
            "caravan train dbpg --data a --lambda 1 --positive-weight 0",
            "caravan train dbpg --data a --lambda 1 --l2 -1",
            "caravan train dbpg --data a --lambda 1 --resume m --model n",
            "caravan train dbpg --data a --lambda 1 --resume m --warm-start n",
            "caravan train dbpg --data a --lambda 1 --tail-frequency 255",
            "caravan train dbpg --data a --lambda 1 --countmin-k 0",
            "caravan train dbpg --data a --lambda 1 --countmin-ratio 0",
            "caravan train dbpg --data a --lambda 1 --filters all,significant=2",
            "caravan predict --data a",
        ] {
            assert_eq!(parse(line).expect_err(line).exit_code(), 2, "{line}");
        }
    }
}
