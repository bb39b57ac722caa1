//! Choice of the cluster's van: each node lists its vans when it joins, and the scheduler chooses
//! the first that all nodes have.

use caravan_van::Transport;
use serde::{Deserialize, Serialize};

use super::backend::{Opened, VANS, Van};
use crate::error::{Error, Result, with_sources};

/// A node's entry for one van.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Candidate {
    pub(crate) van: Van,
    /// Addresses of a server's threads, in order; or why the van does not work there.
    pub(crate) threads: Result<Vec<String>, String>,
    /// The node's host, for a van that does not leave the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
}

/// The entries for the transports that one thread has opened.
pub(crate) fn candidates(opened: &[Opened]) -> Vec<Candidate> {
    let candidate = |(van, transport): &Opened| Candidate {
        van: *van,
        threads: match transport {
            Ok(transport) => Ok(vec![transport.about().address.clone()]),
            Err(error) => Err(with_sources(error)),
        },
        host: transport.as_ref().ok().and_then(|van| van.about().host.clone()),
    };
    opened.iter().map(candidate).collect()
}

/// The entries of a node with several threads: a van works for the node if it works for each of
/// them.
pub(crate) fn of_all(threads: &[Vec<Candidate>]) -> Vec<Candidate> {
    let vans = threads.first().into_iter().flatten().map(|candidate| candidate.van);
    let of_each = |van| {
        let candidates = threads.iter().flatten().filter(move |candidate| candidate.van == van);
        candidates.map(|candidate| candidate.threads.clone()).collect::<Result<Vec<_>, _>>()
    };
    let host = |van| {
        let mut candidates = threads.iter().flatten().filter(move |candidate| candidate.van == van);
        candidates.find_map(|candidate| candidate.host.clone())
    };
    vans.map(|van| Candidate {
        van,
        threads: of_each(van).map(|all| all.concat()),
        host: host(van),
    })
    .collect()
}

/// The first van that all nodes have, and a line for each van passed over that names who lacks it
/// and why.
pub(crate) fn choose(nodes: &[(String, &[Candidate])]) -> (Option<Van>, Vec<String>) {
    let is_known = |van: &Van| {
        nodes.iter().any(|(_, candidates)| candidates.iter().any(|known| known.van == *van))
    };
    let mut passed_over = Vec::new();
    for van in VANS.into_iter().chain([Van::Sim]).filter(is_known) {
        match lacks(van, nodes) {
            None => return (Some(van), passed_over),
            Some(line) => passed_over.push(line),
        }
    }
    (None, passed_over)
}

/// Which node lacks a van, and why.
fn lacks(van: Van, nodes: &[(String, &[Candidate])]) -> Option<String> {
    let of =
        |candidates: &[Candidate]| candidates.iter().position(|candidate| candidate.van == van);
    let first = nodes.iter().find_map(|(node, candidates)| {
        let candidate = &candidates[of(candidates)?];
        candidate.threads.is_ok().then_some((node, &candidate.host))
    });
    let mut lacking = nodes.iter().filter_map(|(node, candidates)| {
        let why = match of(candidates).map(|at| &candidates[at]) {
            Some(Candidate { threads: Ok(_), host, .. }) => match first {
                Some((other, elsewhere)) if host != elsewhere => apart(other),
                _ => return None,
            },
            Some(Candidate { threads: Err(why), .. }) => why.clone(),
            None => {
                let names: Vec<_> = candidates.iter().map(|known| known.van.to_string()).collect();
                format!("it was told to use {}", names.join(" or "))
            }
        };
        Some((node, why))
    });
    let (node, why) = lacking.next()?;
    let more = match lacking.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("{van}: not for {node}{more}: {why}"))
}

/// Why a van that does not leave the host cannot connect a node to `other`.
fn apart(other: &str) -> String {
    format!(
        "it is not where {other} is: another host or user, or a container with a network of its own"
    )
}

/// The opened transport of the van that was chosen; the others are closed.
pub(crate) fn take(opened: Vec<Opened>, van: Van) -> Result<Box<dyn Transport>> {
    let chosen =
        opened.into_iter().find_map(|(found, transport)| (found == van).then_some(transport));
    chosen.unwrap_or_else(|| {
        Err(Error::Config(format!(
            "the scheduler chose the {van} van, which this node did not offer"
        )))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn works(van: Van) -> Candidate {
        Candidate { van, threads: Ok(vec![format!("{van} address")]), host: None }
    }

    fn fails(van: Van, why: &str) -> Candidate {
        Candidate { van, threads: Err(why.to_owned()), host: None }
    }

    fn chosen(nodes: &[&[Candidate]]) -> (Option<Van>, Vec<String>) {
        let named = nodes.iter().enumerate().map(|(at, known)| (format!("node {at}"), *known));
        choose(&named.collect::<Vec<_>>())
    }

    #[test]
    fn the_first_van_that_all_have_is_taken() {
        let all = VANS.map(works);
        assert_eq!(chosen(&[&all, &all, &all]), (Some(VANS[0]), vec![]));
        assert_eq!(chosen(&[&[works(Van::Tcp)], &[works(Van::Tcp)]]), (Some(Van::Tcp), vec![]));
    }

    #[test]
    fn a_van_that_one_lacks_is_passed_over_and_the_node_named() {
        let all = VANS.map(works);
        let all = &all[1..]; // as without shm
        let mut some = all.to_vec();
        some[0] = fails(Van::Rdma, "no device");
        let (van, said) = chosen(&[all, &some, all, &some, &some]);
        assert_eq!(van, Some(Van::Uring));
        assert_eq!(said, ["rdma: not for node 1 and 2 more: no device"]);
        // One node was told which van to use.
        let (van, said) = chosen(&[&some, &[works(Van::Tcp)], all]);
        assert_eq!(van, Some(Van::Tcp));
        assert_eq!(
            said,
            [
                "rdma: not for node 0 and 1 more: no device",
                "uring: not for node 1: it was told to use tcp"
            ]
        );
    }

    #[test]
    fn without_a_common_van_every_one_is_explained() {
        let broken = VANS.map(|van| fails(van, "broken"));
        let (van, said) = chosen(&[&[works(Van::Rdma)], &broken, &VANS.map(works)]);
        assert_eq!(van, None);
        let expected = [
            "shm: not for node 0 and 1 more: it was told to use rdma",
            "rdma: not for node 1: broken",
            "uring: not for node 0 and 1 more: it was told to use rdma",
            "tcp: not for node 0 and 1 more: it was told to use rdma",
        ];
        assert_eq!(said, expected);
        let said = chosen(&[&[works(Van::Rdma)], &[works(Van::Tcp)]]).1;
        assert_eq!(said.len(), 2, "nobody spoke of uring");
        assert_eq!(chosen(&[&[], &VANS.map(works)]).0, None);
    }

    #[test]
    fn a_node_has_what_all_its_threads_have() {
        let one = [works(Van::Uring), works(Van::Tcp)].to_vec();
        let mut other = one.clone();
        other[0] = fails(Van::Uring, "too many rings");
        let all = of_all(&[one.clone(), other, one]);
        assert_eq!(all[0], fails(Van::Uring, "too many rings"));
        assert_eq!(
            all[1],
            Candidate { threads: Ok(vec!["tcp address".into(); 3]), ..works(Van::Tcp) }
        );
        assert_eq!(of_all(&[]), []);
    }

    #[test]
    fn a_van_of_one_host_takes_all_to_be_there() {
        let at = |host: &str| {
            [Candidate { host: Some(host.to_owned()), ..works(Van::Shm) }, works(Van::Tcp)]
        };
        let (here, there) = (at("here"), at("there"));
        assert_eq!(chosen(&[&here, &here]).0, Some(Van::Shm));
        let (van, said) = chosen(&[&here, &there, &here]);
        assert_eq!(van, Some(Van::Tcp));
        assert!(said[0].starts_with("shm: not for node 1: it is not where node 0 is"), "{said:?}");
        let (van, said) = chosen(&[&here[..1], &there[..1]]);
        assert_eq!((van, said.len()), (None, 1), "named, and still refused");
        assert_eq!(of_all(&[here.to_vec(), here.to_vec()])[0].host.as_deref(), Some("here"));
    }

    #[test]
    fn only_what_was_offered_can_be_taken() {
        let broken = || Err(Error::Config("broken".to_owned()));
        let text =
            |van| take(vec![(Van::Uring, broken())], van).err().map(|error| error.to_string());
        assert_eq!(text(Van::Uring).as_deref(), Some("broken"));
        assert!(
            text(Van::Tcp).is_some_and(|text| text.contains("tcp van, which this node did not"))
        );
    }
}
