//! Every command and flag, and nothing else: names are a contract with scripts.

mod bench;
mod checkpoint;
pub(crate) mod ending;
pub(crate) mod interrupt;
mod learn;
mod sketch;
mod steps;
mod table;
pub(crate) mod values;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use caravan_kv::ClusterConfig;
use caravan_kv::node::Numa;
use caravan_van::Wait;
use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use self::bench::*;
pub(crate) use self::checkpoint::*;
pub(crate) use self::learn::*;
pub(crate) use self::sketch::*;
pub(crate) use self::steps::*;
pub(crate) use self::table::*;
use self::values::{address, count_to, etcd, hexadecimal, hosts, interval, numa, parse_wait};
use crate::floor::process::Answerer;
use crate::launch::hosts::HostList;
use crate::launch::hosts::Through;
use crate::report::Format;

/// Moves parameters: push and pull over RDMA, io_uring, shared memory or TCP, and what trains on
/// it.
#[derive(Debug, Parser)]
#[command(name = "caravan", version = env!("BUILD_VERSION"))]
#[command(max_term_width = 100, subcommand_required = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command. kv reads the environment for those that are not given.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// What carries the messages [default: auto] [env: CARAVAN_VAN]
    #[arg(long, global = true, value_enum)]
    pub(crate) van: Option<VanChoice>,
    /// One JSON object a line on standard output, and nothing else there
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The same rows as CSV: a line with the names before the first row of each kind
    #[arg(long, global = true, conflicts_with = "json")]
    pub(crate) csv: bool,
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
    /// Starts no nodes: waits at CARAVAN_SCHEDULER for servers and workers that others start
    #[arg(long, global = true, conflicts_with = "in_process")]
    pub(crate) external: bool,
    /// Runs servers and workers on these hosts, reached by ssh: A,B or A:4,user@B with slots
    #[arg(long, global = true, value_name = "HOSTS", value_parser = hosts, conflicts_with_all = ["in_process", "external"])]
    pub(crate) hosts: Option<HostList>,
    /// The same from a file with a host a line, as OpenMPI (A slots=4) or MPICH (A:4) reads it
    #[arg(long, global = true, value_name = "FILE", conflicts_with_all = ["hosts", "in_process", "external"])]
    pub(crate) hostfile: Option<PathBuf>,
    /// The remote shell for hosts, with its options
    #[arg(
        long,
        global = true,
        value_name = "WORDS",
        default_value = "ssh -o BatchMode=yes -o ConnectTimeout=10"
    )]
    pub(crate) ssh: String,
    /// Encrypts all that goes over sockets: the control plane, and data of uring and tcp
    /// [env: CARAVAN_ENCRYPT=1]
    #[arg(long, global = true)]
    pub(crate) encrypt: bool,
    /// Allows nodes that other hosts can reach to run without a secret: anybody who reaches them
    /// can join, read and end the job [env: CARAVAN_INSECURE=1]
    #[arg(long, global = true)]
    pub(crate) insecure: bool,
    /// What an idle thread does: spin, yield, adaptive or block [default: adaptive] [env:
    /// CARAVAN_WAIT]
    #[arg(long, global = true, value_name = "POLICY", value_parser = parse_wait)]
    pub(crate) wait: Option<Wait>,
    /// Pins server threads to cores, the default [env: CARAVAN_PIN=1]
    #[arg(long, global = true, conflicts_with = "no_pin")]
    pub(crate) pin: bool,
    /// Leaves server threads to the kernel [env: CARAVAN_PIN=0]
    #[arg(long, global = true)]
    pub(crate) no_pin: bool,
    /// NUMA node of server threads and their memory: a number, near-nic, or any
    /// [default: near-nic] [env: CARAVAN_NUMA_NODE]
    #[arg(
        long,
        global = true,
        value_name = "NODE",
        value_parser = numa,
        allow_negative_numbers = true
    )]
    pub(crate) numa_node: Option<Numa>,
    /// The job that `caravan submit` is to a running cluster.
    #[arg(skip)]
    pub(crate) job: Option<String>,
}

impl Common {
    /// How rows are written.
    pub(crate) fn format(&self) -> Format {
        match (self.json, self.csv) {
            (true, _) => Format::Json,
            (_, true) => Format::Csv,
            _ => Format::Text,
        }
    }
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
    /// Writes the rows of runs as one page: curves with the floor, distributions, comparison,
    /// machine
    Report(ReportArgs),
    /// Says what is slower in the second of two files of rows, beyond noise; status 1 if anything
    /// is
    Compare(CompareArgs),
    /// Checks recorded histories of a table against its consistency model
    CheckHistory(CheckHistory),
    /// Trains a model on a running cluster, as a job beside others
    Submit(SubmitArgs),
    /// Lists the jobs of a running cluster
    Status,
    /// Ends a job of a running cluster
    Cancel(CancelArgs),
    /// Shows what the nodes of a running cluster do: CPU, memory, bytes, messages, clocks
    Top(TopArgs),
    /// Moves shards of a running cluster's tables, so that server threads have keys evenly
    Rebalance(RebalanceArgs),
    /// Writes the tables of a running cluster to files, and restores them
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Writes rows of a running cluster's tables, and pushes such rows
    #[command(subcommand)]
    Table(TableCommand),
    /// Counts keys in sketches on the servers of a running cluster
    #[command(subcommand)]
    Sketch(SketchCommand),
    /// Starts a program as scheduler, servers and workers: here, on hosts, or in an allocation
    Launch(LaunchArgs),
    /// Runs the processes of a job on one host, for a launcher
    #[command(hide = true)]
    Agent(AgentArgs),
    /// Runs the scheduler of a cluster
    Scheduler(SchedulerRole),
    /// Runs one server of a cluster
    Server(ServerRole),
    /// Runs one worker of a cluster
    Worker(WorkerRole),
    /// Lists the vans that work on this machine, with a reason and a remedy for each that does not,
    /// and what hurts here; draws the layout
    Doctor(DoctorArgs),
    /// Writes the manual page, or those of all commands into a folder
    Man(ManArgs),
    /// Writes completions for a shell
    Completions(CompletionsArgs),
    /// The other process of a floor, or of `bench verbs`
    #[command(hide = true)]
    Floor(FloorArgs),
}

/// Files of rows, and the page of them.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReportArgs {
    /// Rows that runs have printed with --json; the first file is what others are compared with
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The page: one file of HTML that needs no network
    #[arg(long, value_name = "PAGE", default_value = "report.html")]
    pub(crate) out: PathBuf,
}

/// Two files of rows, of one or more runs each.
#[derive(Debug, Clone, Args)]
pub(crate) struct CompareArgs {
    /// Rows that runs have printed with --json, before a change
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,
    /// The same after it
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,
}

/// Histories that were recorded in CARAVAN_HISTORY.
#[derive(Debug, Clone, Args)]
pub(crate) struct CheckHistory {
    /// The histories of one table at all server threads
    #[arg(required = true, value_name = "FILE")]
    pub(crate) histories: Vec<PathBuf>,
}

/// What a running cluster is to train, with the flags of `caravan train`. CARAVAN_SCHEDULER,
/// CARAVAN_JOB and the secret name the cluster.
#[derive(Debug, Args)]
pub(crate) struct SubmitArgs {
    /// Name of the job, which no other has
    #[arg(value_name = "NAME")]
    pub(crate) job: String,
    #[command(subcommand)]
    pub(crate) train: TrainCommand,
}

/// A job that is to end. CARAVAN_SCHEDULER, CARAVAN_JOB and the secret name the cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct CancelArgs {
    /// Name of the job
    #[arg(value_name = "NAME")]
    pub(crate) job: String,
}

/// The tables of a running cluster whose shards are to move. CARAVAN_SCHEDULER, CARAVAN_JOB and the
/// secret name the cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct RebalanceArgs {
    /// Only tables within this namespace
    #[arg(long, default_value = "")]
    pub(crate) namespace: String,
    /// Only tables of this number
    #[arg(long)]
    pub(crate) table: Option<u32>,
    /// Server threads that are to have no shards afterwards, counted from 0 over all servers
    #[arg(long, value_delimiter = ',', value_name = "THREAD")]
    pub(crate) drain: Vec<usize>,
    /// Makes this server leave the cluster: its shards of all tables move to the others, those with
    /// copies get one more elsewhere, and it ends when no worker or driver has a lane to it any
    /// more
    #[arg(long, value_name = "RANK", conflicts_with_all = ["namespace", "table", "drain"])]
    pub(crate) leave: Option<usize>,
}

/// What to show of a running cluster. CARAVAN_SCHEDULER, CARAVAN_JOB and the secret name the
/// cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct TopArgs {
    /// Seconds between two looks; nodes tell something new with each heartbeat
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = interval)]
    pub(crate) interval: f64,
    /// Looks twice, an interval apart, prints that, and ends
    #[arg(long)]
    pub(crate) once: bool,
    /// Prints nothing, and serves metrics for Prometheus at this address, as host:port
    #[arg(long, value_name = "ADDRESS", value_parser = address, conflicts_with = "once")]
    pub(crate) serve: Option<String>,
}

/// Where manual pages go.
#[derive(Debug, Clone, Args)]
pub(crate) struct ManArgs {
    /// Folder for a page of each command; without one the main page goes to standard output
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// A program to launch.
#[derive(Debug, Clone, Args)]
pub(crate) struct LaunchArgs {
    /// The program and its arguments; it finds its role in CARAVAN_ROLE. `caravan` is this program
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AgentArgs {
    /// How the launcher has reached this host
    #[arg(value_enum)]
    pub(crate) through: Through,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorArgs {
    /// Draws another machine than this one: a file that `lstopo --of xml` wrote, or hwloc's
    /// synthetic notation, as "pack:2 [numa(memory=8GB)] core:4 pu:2"; needs the feature hwloc
    #[arg(long, value_name = "FILE|WORDS")]
    pub(crate) topology: Option<String>,
    /// Only the layout, for another process that libhwloc is not to take with it
    #[arg(long, hide = true, requires = "topology")]
    pub(crate) layout_only: bool,
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
    /// Its port; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
}

/// One role of a cluster.
#[derive(Debug, Clone, Default, Args)]
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

/// A scheduler, and where it keeps its state.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SchedulerRole {
    #[command(flatten)]
    pub(crate) role: Role,
    /// Folder for its state: killed and started again, it goes on with the cluster that runs;
    /// Ctrl-C ends the cluster, SIGTERM does not [env: CARAVAN_STATE]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) state: Option<PathBuf>,
    /// The same in an etcd, by the address of a member, or of several with commas: http://HOST:PORT
    /// [env: CARAVAN_STATE]
    #[arg(long, value_name = "ADDRESS", value_parser = etcd, conflicts_with = "state")]
    pub(crate) etcd: Option<PathBuf>,
}

/// A server, and when it comes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServerRole {
    #[command(flatten)]
    pub(crate) role: Role,
    /// Joins a cluster that is complete, beside its servers: tables that are there, or come later,
    /// give it shards by `caravan rebalance`
    #[arg(long, conflicts_with = "rank")]
    pub(crate) join: bool,
}

/// A worker, and what it may read.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WorkerRole {
    #[command(flatten)]
    pub(crate) role: Role,
    /// Folder below which all files and caches lie that it may be told of [default: the folder it
    /// is started in] [env: CARAVAN_DATA_ROOT]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_root: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::measure::subject::Op;

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
            "caravan bench failover --van tcp --fall stop --count 10 --json",
            "caravan bench load --van shm --rate closed --skew new --keys 1024 --sizes 32KiB",
            "caravan bench sketch --van shm --batch 1000 --cells 4096 --hashes 2 --skew uniform",
            "caravan bench scale --nodes 16,256 --delay 0,4 --filters none,kkt+key-cache,all --straggle 4:40:10 --always-slow 0.1 --json",
            "caravan train dbpg --data a b --test c --lambda 0.5 --workers 2 --servers 2 --van tcp --delay 2 --blocks 8 --order random --seed 3 --learning-rate 0.5 --epsilon 1e-5 --model m --model-format binary",
            "caravan train dbpg --data a --lambda 10,3,1 --l2 0.5 --intercept --positive-weight 4 --warm-start m --model n.bin --plot p.svg",
            "caravan train dbpg --data a --lambda 1 --lambda-path 10 --model m",
            "caravan train dbpg --data a --lambda 1 --resume m --save-every 3 --restarts 2 --replicas 1",
            "caravan train dbpg --data a --lambda 1 --resume m --delay 0..8 --block-ratio 2.5 --prior 3,10..20",
            "caravan train dbpg --data a --lambda 1 --tail-frequency 4 --countmin-k 3 --countmin-ratio 1.5 --filters kkt,skip=0.5,significant=2",
            "caravan predict --model m --data a b --out p",
            "caravan generate clicks out --rows 10 --format keys",
            "caravan scheduler --host 0.0.0.0",
            "caravan server --scheduler host:7000 --threads 4",
            "caravan server --scheduler host:7000 --join",
            "caravan worker --rank 0 --job beef",
            "caravan launch --workers 2 --servers 2 -- caravan bench latency --van tcp",
            "caravan launch --hostfile nodes.txt -- ./train --lr 0.1",
            "caravan bench latency --hosts A,user@B:2 --json",
            "caravan agent ssh",
            "caravan man --out pages",
            "caravan completions bash",
            "caravan worker --scheduler host:7000 --data-root /data",
            "caravan checkpoint create /data/checkpoints --namespace dbpg --json",
            "caravan checkpoint restore /data/checkpoints --number 3",
            "caravan checkpoint export /data/checkpoints --table 7",
            "caravan table export --table 7 --namespace dbpg --from 3 --to 9 --binary rows",
            "caravan table import --table 7 rows",
            "caravan sketch create --table 7 --cells 65536 --hashes 3 --value u32 --keys 1000000 --replicas 1",
            "caravan sketch insert --table 7 --batch 1000 pages.txt",
            "caravan sketch query --table 7 1 2 3",
            "caravan sketch merge --table 7 --into 8",
            "caravan train sgd --data a --read near:65536 --hint ps",
            "caravan train lda --data a --consistency ssp:1 --replicas 2",
            "caravan train kmeans --data a --replicas 1",
            "caravan scheduler --state /var/lib/caravan",
            "caravan scheduler --etcd http://a:2379,http://b:2379",
            "caravan train fm --data a --read first --hint hogwild --handle sgd",
            "caravan submit ads kmeans --data a --stages 1:10:5 --model m",
            "caravan submit clicks dbpg --data a --lambda 1 --json",
            "caravan status --json",
            "caravan cancel ads",
            "caravan top --interval 0.5 --once --json",
            "caravan top --serve 127.0.0.1:9400",
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

    const WRONG_LINES: &[&str] = &[
        "caravan",
        "caravan bench",
        "caravan fly",
        "caravan train sgd --data a --read far",
        "caravan train sgd --data a --hint fast",
        "caravan train mf --data a --replicas -1",
        "caravan train kmeans --data a --replicas -1",
        "caravan scheduler --etcd a:2379",
        "caravan scheduler --etcd http://a:2379 --state there",
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
        "caravan submit",
        "caravan submit ads",
        "caravan cancel",
        "caravan checkpoint create",
        "caravan checkpoint export /data/checkpoints",
        "caravan table export",
        "caravan table export --table 7 --from -1",
        "caravan sketch create --table 7 --hashes 31",
        "caravan sketch create --table 7 --value f32",
        "caravan sketch query --table 7 -1",
        "caravan launch",
        "caravan launch ./train",
        "caravan launch --hosts A, -- ./train",
        "caravan launch --hosts A --hostfile B -- ./train",
        "caravan bench latency --hosts=-l",
        "caravan bench latency --hosts A --external",
        "caravan doctor --workers 0",
        "caravan doctor --workers 10001",
        "caravan doctor --servers 10001",
        "caravan doctor --threads 1025",
        "caravan doctor --numa-node nearby",
        "caravan doctor --pin --no-pin",
        "caravan doctor --wait never",
        "caravan worker --job xyz",
        "caravan worker --scheduler nonsense",
        "caravan server --data-root /data",
        "caravan server --join --rank 3",
        "caravan worker --join",
        "caravan scheduler --join",
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
    ];

    #[test]
    fn wrong_lines_are_refused() {
        for line in WRONG_LINES {
            assert_eq!(parse(line).expect_err(line).exit_code(), 2, "{line}");
        }
    }
}
