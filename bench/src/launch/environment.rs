//! Where a launcher of the cluster has put this process: its rank among the processes of a job, and
//! from it the role, the scheduler's address and the number of the job. Read from the variables of
//! ps-lite, OpenMPI, PMIx, MPICH, Slurm and Kubernetes, the first that are there.
//!
//! Process 0 is the scheduler, the next ones are the servers, the rest the workers.

use std::net::IpAddr;

use caravan_kv::JobRole;
use caravan_kv::config::{is_address, join_host};

use super::hosts::expand_slurm;

/// What a process can know of its surroundings.
pub(super) struct Environment<'a> {
    /// Looks up a variable of the environment.
    pub(super) var: &'a dyn Fn(&str) -> Option<String>,
    /// The name of this host.
    pub(super) hostname: String,
    /// The text of /etc/hosts, where Kubernetes writes a pod's full name.
    pub(super) known_hosts: String,
    /// The process that started this one.
    pub(super) parent: u32,
}

impl Environment<'_> {
    fn var(&self, name: &str) -> Option<String> {
        (self.var)(name).filter(|value| !value.is_empty())
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        let parsed = self.var(name).map(|value| {
            value.parse().map_err(|_| format!("{name}={value} is no number; unset it or mend it"))
        });
        parsed.transpose()
    }
}

/// This process in its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assignment {
    /// What has started the job.
    pub(super) by: &'static str,
    pub(super) slot: Slot,
    /// The host where the scheduler listens, if that can be known.
    pub(super) root: Option<String>,
    /// Its port, if that is given.
    pub(super) port: Option<u16>,
    /// Text that all processes of this job know, and no other job on these hosts.
    pub(super) job: Option<String>,
    /// The address of this node, if that is given.
    pub(super) host: Option<String>,
}

/// How the role of a process is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Slot {
    /// By its rank among all processes, whose number may be known.
    Rank { rank: usize, size: Option<usize> },
    /// It is given, with the numbers of workers and servers; the scheduler chooses ranks.
    Role { role: JobRole, workers: Option<usize>, servers: Option<usize> },
}

impl Assignment {
    fn new(by: &'static str, rank: usize, size: Option<usize>) -> Assignment {
        let slot = Slot::Rank { rank, size };
        Assignment { by, slot, root: None, port: None, job: None, host: None }
    }

    /// Whether nothing was started beside this process: it is no part of a job, however it was
    /// started, and neither is what inherits its variables.
    fn is_alone(&self) -> bool {
        matches!(self.slot, Slot::Rank { size: Some(1), .. })
    }

    /// The place of a process, if it is one of several that were started together.
    ///
    /// # Errors
    /// The variable that is wrong.
    pub(super) fn find(of: &Environment<'_>) -> Result<Option<Assignment>, String> {
        let finders = [ps_lite, open_mpi, mpich, slurm, kubernetes];
        for find in finders {
            if let Some(place) = find(of)?.filter(|place| !place.is_alone()) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Its role, and its rank among the nodes of that role if that is known.
    ///
    /// # Errors
    /// If the number of processes is not that of the job, with the number to ask for.
    pub(super) fn role(
        &self,
        servers: usize,
        workers: usize,
    ) -> Result<(JobRole, Option<usize>), String> {
        let (rank, size) = match self.slot {
            Slot::Role { role, .. } => return Ok((role, None)),
            Slot::Rank { rank, size } => (rank, size),
        };
        let needed = 1 + servers + workers;
        if size.is_some_and(|size| size != needed) || rank >= needed {
            let started =
                size.map_or(format!("process {rank}"), |size| format!("{size} processes"));
            return Err(format!(
                "{} has started {started}; a scheduler, {servers} servers and {workers} workers are {needed}: \
                 start so many, say --servers and --workers, or --hosts localhost to launch all of them here",
                self.by
            ));
        }
        Ok(match rank {
            0 => (JobRole::Scheduler, None),
            _ if rank <= servers => (JobRole::Server, Some(rank - 1)),
            _ => (JobRole::Worker, Some(rank - 1 - servers)),
        })
    }

    /// The scheduler's address.
    ///
    /// # Errors
    /// If it cannot be known, with the variable that gives it.
    pub(super) fn scheduler(&self) -> Result<String, String> {
        let root = self.root.as_ref().ok_or_else(|| {
            format!(
                "{} does not say where process 0 runs: set CARAVAN_SCHEDULER=HOST:PORT, with its \
                 address and a free port",
                self.by
            )
        })?;
        let job = self.job.as_deref().unwrap_or_default();
        let port = self.port.unwrap_or_else(|| PORTS_FROM + (hash(job) % PORTS) as u16);
        let address = join_host(root, port);
        is_address(&address).then_some(address.clone()).ok_or(address)
    }

    /// The number of the job.
    pub(super) fn job_number(&self) -> u64 {
        self.job.as_deref().map_or(0, hash)
    }
}

/// Ports of schedulers whose port nobody has chosen: below those that Linux gives to connections.
const PORTS_FROM: u16 = 11_000;
const PORTS: u64 = 20_000;

/// FNV-1a: the same number for the same text in every process of a job.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The variables that ps-lite's tracker sets.
fn ps_lite(of: &Environment<'_>) -> Result<Option<Assignment>, String> {
    let Some(role) = of.var("DMLC_ROLE") else { return Ok(None) };
    let role = JobRole::named(&role)
        .ok_or_else(|| format!("DMLC_ROLE={role} is not scheduler, server or worker"))?;
    let workers = of.number("DMLC_NUM_WORKER")?;
    let servers = of.number("DMLC_NUM_SERVER")?;
    Ok(Some(Assignment {
        by: "ps-lite's tracker (DMLC_ROLE)",
        slot: Slot::Role { role, workers, servers },
        root: of.var("DMLC_PS_ROOT_URI"),
        port: of.number("DMLC_PS_ROOT_PORT")?,
        job: of.var("DMLC_PS_ROOT_PORT").map(|port| format!("dmlc {port}")),
        host: of.var("DMLC_NODE_HOST"),
    }))
}

/// OpenMPI: within Slurm it starts its daemons by srun, so it comes before Slurm.
fn open_mpi(of: &Environment<'_>) -> Result<Option<Assignment>, String> {
    let Some(rank) = of.number("OMPI_COMM_WORLD_RANK")? else { return Ok(None) };
    let size = of.number("OMPI_COMM_WORLD_SIZE")?;
    let is_one_host = size.is_some() && of.number("OMPI_COMM_WORLD_LOCAL_SIZE")? == size;
    let first = slurm_first(of, "SLURM_JOB_NODELIST")?;
    // Without Slurm, process 0 normally runs beside mpirun.
    let beside = || of.var("OMPI_MCA_orte_hnp_uri").as_deref().and_then(address_of_mpirun);
    let job = of.var("PMIX_NAMESPACE").or_else(|| of.var("OMPI_MCA_orte_hnp_uri"));
    Ok(Some(Assignment {
        root: if is_one_host { Some(LOOPBACK.to_owned()) } else { first.or_else(beside) },
        job: job.map(|job| format!("ompi {job}")),
        ..Assignment::new("OpenMPI (OMPI_COMM_WORLD_RANK)", rank, size)
    }))
}

const LOOPBACK: &str = "127.0.0.1";

/// The first address in `1719664640.0;tcp://192.0.2.2,198.51.100.2:34555;tcp6://…`.
fn address_of_mpirun(uri: &str) -> Option<String> {
    let tcp = uri.split(';').find_map(|part| part.strip_prefix("tcp://"))?;
    let (hosts, _port) = tcp.rsplit_once(':')?;
    let first: IpAddr = hosts.split(',').next()?.parse().ok()?;
    Some(first.to_string())
}

/// MPICH's Hydra, and whatever else speaks PMI or PMIx, as srun --mpi=pmi2 does.
fn mpich(of: &Environment<'_>) -> Result<Option<Assignment>, String> {
    let by_pmi = of.number("PMI_RANK")?;
    let Some(rank) = by_pmi.or(of.number("PMIX_RANK")?) else { return Ok(None) };
    // srun sets these beside its own, which say more. Hydra starts its daemons by srun.
    let is_hydra = of.var("MPI_LOCALNRANKS").is_some();
    if !is_hydra && let Some(place) = slurm(of)? {
        return Ok(Some(place));
    }
    let size = of.number("PMI_SIZE")?;
    let is_one_host = size.is_some() && of.number("MPI_LOCALNRANKS")? == size;
    let first = slurm_first(of, "SLURM_JOB_NODELIST")?;
    // Hydra names no job. Its processes on one host have one parent.
    let job = match is_one_host {
        true => Some(format!("pmi {}", of.parent)),
        false => of.var("PMIX_NAMESPACE").or_else(|| of.var("SLURM_JOB_ID")),
    };
    let root = if is_one_host { Some(LOOPBACK.to_owned()) } else { first };
    Ok(Some(Assignment { root, job, ..Assignment::new("MPICH (PMI_RANK)", rank, size) }))
}

/// A task of srun. The batch script itself is none.
fn slurm(of: &Environment<'_>) -> Result<Option<Assignment>, String> {
    let Some(step) = of.var("SLURM_STEP_ID") else { return Ok(None) };
    let Some(rank) = of.number("SLURM_PROCID")? else { return Ok(None) };
    let is_one_host = of.number("SLURM_STEP_NUM_NODES")? == Some(1);
    let first = slurm_first(of, "SLURM_STEP_NODELIST")?;
    let job = of.var("SLURM_JOB_ID").unwrap_or_default();
    let restarts = of.var("SLURM_RESTART_COUNT").unwrap_or_default();
    Ok(Some(Assignment {
        root: if is_one_host { Some(LOOPBACK.to_owned()) } else { first },
        job: Some(format!("slurm {job}.{step}.{restarts}")),
        ..Assignment::new("Slurm (SLURM_PROCID)", rank, of.number("SLURM_STEP_NUM_TASKS")?)
    }))
}

fn slurm_first(of: &Environment<'_>, list: &str) -> Result<Option<String>, String> {
    let Some(nodes) = of.var(list) else { return Ok(None) };
    let names = expand_slurm(&nodes).map_err(|why| format!("{list}={nodes}: {why}"))?;
    Ok(names.into_iter().next())
}

/// A pod of an indexed Job, of a StatefulSet with a headless service, or of a LeaderWorkerSet.
fn kubernetes(of: &Environment<'_>) -> Result<Option<Assignment>, String> {
    if let Some(rank) = of.number("LWS_WORKER_INDEX")? {
        let root = of.var("LWS_LEADER_ADDRESS");
        let job = root.clone().map(|leader| format!("lws {leader}"));
        let size = of.number("LWS_GROUP_SIZE")?;
        return Ok(Some(Assignment {
            root,
            job,
            ..Assignment::new("a LeaderWorkerSet (LWS_WORKER_INDEX)", rank, size)
        }));
    }
    let set = of.hostname.split('.').next().and_then(|name| name.rsplit_once('-'));
    let root = set.and_then(|(set, _)| pod_zero(of, set));
    let job = set.map(|(set, _)| format!("pods {set}"));
    if let Some(rank) = of.number("JOB_COMPLETION_INDEX")? {
        return Ok(Some(Assignment {
            root,
            job,
            ..Assignment::new("an indexed Job (JOB_COMPLETION_INDEX)", rank, None)
        }));
    }
    let ordinal = set.and_then(|(_, ordinal)| ordinal.parse().ok());
    match (ordinal, &root, of.var("KUBERNETES_SERVICE_HOST")) {
        // Other pods have neither a number nor a full name.
        (Some(rank), Some(_), Some(_)) => {
            Ok(Some(Assignment { root, job, ..Assignment::new("a StatefulSet", rank, None) }))
        }
        _ => Ok(None),
    }
}

/// The full name of pod 0 in a set. A pod knows its own from /etc/hosts if it has a subdomain, that
/// is, a headless service.
fn pod_zero(of: &Environment<'_>, set: &str) -> Option<String> {
    let own = of.hostname.split('.').next()?;
    let names = of.known_hosts.lines().flat_map(str::split_whitespace);
    let mut subdomains = names.filter_map(|name| name.strip_prefix(own)?.strip_prefix('.'));
    subdomains.next().map(|subdomain| format!("{set}-0.{subdomain}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// The place of a process with these variables, given as `NAME=value` words.
    fn find(words: &str, hostname: &str, known_hosts: &str) -> Result<Option<Assignment>, String> {
        let vars: Vec<(&str, &str)> =
            words.split_whitespace().map(|word| word.split_once('=').unwrap()).collect();
        let var = |name: &str| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let (hostname, known_hosts) = (hostname.to_owned(), known_hosts.to_owned());
        Assignment::find(&Environment { var: &var, hostname, known_hosts, parent: 77 })
    }

    fn found(words: &str) -> Assignment {
        find(words, "n1", "").unwrap().expect(words)
    }

    const SLURM: &str = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_JOB_NODELIST=n[1-9] \
        SLURM_STEP_NODELIST=n[2-3] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4";

    #[test]
    fn a_process_by_itself_has_no_place() {
        for words in [
            "",
            "HOME=/root",
            // A batch script, and a shell of salloc.
            "SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_JOB_NODELIST=n[1-2]",
            "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n[1-2] SLURM_NNODES=2",
            // What inherits the variables of one process that has none beside it.
            "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_NODES=1 \
             SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NODELIST=n1",
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_SIZE=1",
            "PMI_RANK=0 PMI_SIZE=1 MPI_LOCALNRANKS=1",
            "LWS_WORKER_INDEX=0 LWS_GROUP_SIZE=1",
            // A pod of a Deployment.
            "KUBERNETES_SERVICE_HOST=10.0.0.1",
            "DMLC_ROLE=",
        ] {
            assert_eq!(find(words, "web-7d4b9-xk2lp", "10.1.0.5 web-7d4b9-xk2lp"), Ok(None));
        }
    }

    #[test]
    fn tasks_of_slurm_have_a_rank_a_root_and_a_job() {
        let place = found(&format!("{SLURM} SLURM_PROCID=3"));
        assert_eq!(place.slot, Slot::Rank { rank: 3, size: Some(4) });
        assert_eq!(place.root.as_deref(), Some("n2"), "the first host of the step");
        assert_eq!(place.role(1, 2), Ok((JobRole::Worker, Some(1))));
        assert!(place.scheduler().unwrap().starts_with("n2:"));
        // All tasks agree, and another step does not.
        let other = found(&format!("{SLURM} SLURM_PROCID=0"));
        assert_eq!(other.scheduler(), place.scheduler());
        assert_eq!(other.job_number(), place.job_number());
        assert_eq!(other.role(1, 2), Ok((JobRole::Scheduler, None)));
        let step = found("SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=0 SLURM_STEP_NUM_NODES=1");
        assert_ne!(step.job_number(), place.job_number());
        assert!(step.scheduler().unwrap().starts_with("127.0.0.1:"));
    }

    #[test]
    fn openmpi_comes_before_the_slurm_that_runs_its_daemons() {
        let vars = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=1 \
            PMIX_RANK=1 PMIX_NAMESPACE=1719664641 \
            OMPI_MCA_orte_hnp_uri=1719664640.0;tcp://192.0.2.2,198.51.100.2:34555;tcp6://[fd00::2]:37341";
        let place = found(vars);
        assert_eq!(
            (place.by, place.root.as_deref()),
            ("OpenMPI (OMPI_COMM_WORLD_RANK)", Some("192.0.2.2"))
        );
        assert_eq!(place.slot, Slot::Rank { rank: 1, size: Some(3) });
        let within = found(&format!("{vars} {SLURM} SLURM_PROCID=0"));
        assert_eq!(within.slot, Slot::Rank { rank: 1, size: Some(3) });
        assert_eq!(within.root.as_deref(), Some("n1"));
        let local = found(
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=3 \
             PMIX_NAMESPACE=5",
        );
        assert_eq!(local.root.as_deref(), Some(LOOPBACK));
    }

    #[test]
    fn mpich_knows_one_host_and_asks_for_the_scheduler_of_several() {
        let local = found("PMI_RANK=2 PMI_SIZE=3 MPI_LOCALNRANKS=3 MPI_LOCALRANKID=2");
        assert_eq!(local.role(1, 1), Ok((JobRole::Worker, Some(0))));
        assert!(local.scheduler().unwrap().starts_with("127.0.0.1:"));
        let spread = found("PMI_RANK=2 PMI_SIZE=3 MPI_LOCALNRANKS=1");
        assert!(spread.scheduler().unwrap_err().contains("CARAVAN_SCHEDULER=HOST:PORT"));
        // Under Slurm, Hydra's own rank counts where the two differ.
        let within =
            found(&format!("PMI_RANK=2 PMI_SIZE=3 MPI_LOCALNRANKS=1 {SLURM} SLURM_PROCID=1"));
        assert_eq!((within.by, within.root.as_deref()), ("MPICH (PMI_RANK)", Some("n1")));
        let srun = found(&format!("PMI_RANK=1 PMI_SIZE=4 {SLURM} SLURM_PROCID=1"));
        assert_eq!((srun.by, srun.root.as_deref()), ("Slurm (SLURM_PROCID)", Some("n2")));
        let pmix = found(&format!("PMIX_RANK=1 {SLURM} SLURM_PROCID=1"));
        assert_eq!(pmix.by, "Slurm (SLURM_PROCID)");
    }

    #[test]
    fn pods_find_pod_zero() {
        let known = "127.0.0.1 localhost\n10.1.0.7 push-2.peers.lab.svc.cluster.local push-2\n";
        let job = find("JOB_COMPLETION_INDEX=2", "push-2", known).unwrap().unwrap();
        assert_eq!(job.root.as_deref(), Some("push-0.peers.lab.svc.cluster.local"));
        assert_eq!(job.role(1, 1), Ok((JobRole::Worker, Some(0))));
        assert!(job.role(1, 0).unwrap_err().contains("start so many"));
        let pods = "KUBERNETES_SERVICE_HOST=10.0.0.1";
        let set = find(pods, "push-2", known).unwrap().unwrap();
        assert_eq!((set.by, &set.root, &set.job), ("a StatefulSet", &job.root, &job.job));
        assert_eq!(find(pods, "push-2", "10.1.0.7 push-2"), Ok(None), "no headless service");
        let lonely = find("JOB_COMPLETION_INDEX=2", "push-2", "").unwrap().unwrap();
        assert!(lonely.scheduler().unwrap_err().contains("CARAVAN_SCHEDULER"));
        let group = found("LWS_WORKER_INDEX=1 LWS_GROUP_SIZE=3 LWS_LEADER_ADDRESS=lead.svc");
        assert_eq!(group.role(1, 1), Ok((JobRole::Server, Some(0))));
        assert!(group.scheduler().unwrap().starts_with("lead.svc:"));
    }

    #[test]
    fn ps_lite_gives_the_role_and_the_port() {
        let place = found(
            "DMLC_ROLE=server DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=3 DMLC_PS_ROOT_URI=192.0.2.1 \
             DMLC_PS_ROOT_PORT=9091 DMLC_NODE_HOST=192.0.2.5 SLURM_STEP_ID=0 SLURM_PROCID=0",
        );
        assert_eq!(place.role(9, 9), Ok((JobRole::Server, None)));
        assert_eq!(place.scheduler().unwrap(), "192.0.2.1:9091");
        assert_eq!(place.host.as_deref(), Some("192.0.2.5"));
        let slot = Slot::Role { role: JobRole::Server, workers: Some(2), servers: Some(3) };
        assert_eq!(place.slot, slot);
    }

    #[test]
    fn wrong_variables_are_named() {
        for (words, part) in [
            ("DMLC_ROLE=master", "DMLC_ROLE=master"),
            ("OMPI_COMM_WORLD_RANK=x", "OMPI_COMM_WORLD_RANK=x"),
            ("PMI_RANK=-1", "PMI_RANK=-1"),
            ("SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NODELIST=n[1-", "SLURM_STEP_NODELIST"),
            ("JOB_COMPLETION_INDEX=none", "JOB_COMPLETION_INDEX"),
        ] {
            assert!(find(words, "n1", "").unwrap_err().contains(part), "{words}");
        }
        let place = found(&format!("{SLURM} SLURM_PROCID=0"));
        let error = place.role(2, 2).unwrap_err();
        assert!(error.contains("4 processes") && error.contains("are 5"), "{error}");
        assert!(error.contains("SLURM_PROCID") && error.contains("--hosts"), "{error}");
    }
}
