//! Choice of the vans of a cluster: each node lists its vans when it joins, and the scheduler finds
//! for each pair of nodes the first that both have. Where that is one for all pairs, every node has
//! a transport of that van; else, and where a node has several ports for it, every node has one of
//! several ([`caravan_van::MIXED`]).

use std::collections::BTreeSet;

use caravan_van::{Transport, Wait};
use serde::{Deserialize, Serialize};

use super::backend::{Opened, VANS, Van, address_of_ports, carrier, joined_address, mix};
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
    /// Ports that each of its threads uses at once.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) ports: usize,
}

fn one() -> usize {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_one(ports: &usize) -> bool {
    *ports == 1
}

/// The entries for the transports that one thread has opened.
pub(crate) fn candidates(opened: &[Opened]) -> Vec<Candidate> {
    let candidate = |(van, transport): &Opened| Candidate {
        van: *van,
        threads: match transport {
            Ok(ports) => Ok(vec![address_of_ports(ports)]),
            Err(error) => Err(with_sources(error)),
        },
        host: transport.as_ref().ok().and_then(|ports| ports.first()?.about().host.clone()),
        ports: transport.as_ref().map_or(1, Vec::len),
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
    let ports = |van| {
        let candidates = threads.iter().flatten().filter(move |candidate| candidate.van == van);
        candidates.map(|candidate| candidate.ports).max().unwrap_or(1)
    };
    vans.map(|van| Candidate {
        van,
        threads: of_each(van).map(|all| all.concat()),
        host: host(van),
        ports: ports(van),
    })
    .collect()
}

/// A node, for the choice.
pub(crate) struct Chooser<'a> {
    /// For people.
    pub(crate) name: String,
    /// Whether others connect to it.
    pub(crate) is_server: bool,
    /// All vans it was told to try.
    pub(crate) candidates: &'a [Candidate],
}

/// What the nodes of a cluster take.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    /// The vans of each node: one where all lanes are of one kind, else [`Van::Mixed`] and what it
    /// is made of, fastest first.
    pub(crate) vans: Vec<Vec<Van>>,
    /// Whether not all lanes are of one kind, or a node has several ports for them, so that every
    /// node has a transport of several vans.
    pub(crate) is_mixed: bool,
    /// How many pairs of nodes meet over each carrier.
    pub(crate) pairs: Vec<(&'static str, usize)>,
}

/// The vans of all nodes, if every pair that may have a lane finds one: the first that works for
/// both. A line for each van that is passed over names who lacks it and why.
pub(crate) fn choose(nodes: &[Chooser<'_>]) -> (Option<Choice>, Vec<String>) {
    let passed_over = passed_over(nodes);
    let mut pairs: Vec<(&'static str, usize)> = Vec::new();
    for (one, other) in may_meet(nodes) {
        let Some(carrier) = meet(one, other) else { return (None, passed_over) };
        match pairs.iter_mut().find(|(known, _)| *known == carrier) {
            Some((_, count)) => *count += 1,
            None => pairs.push((carrier, 1)),
        }
    }
    let is_met = |carrier: &str| pairs.iter().any(|(known, _)| *known == carrier);
    let has_ports =
        |one: &Candidate| one.ports > 1 && one.threads.is_ok() && is_met(carrier(one.van));
    let is_mixed =
        pairs.len() > 1 || nodes.iter().any(|node| node.candidates.iter().any(has_ports));
    let vans = nodes.iter().map(|node| match is_mixed {
        false => vans_of(node, is_met),
        // Sockets are there for lanes that do not come about otherwise.
        true => {
            let own = vans_of(node, |carrier| carrier == SOCKETS || is_met(carrier));
            [vec![Van::Mixed], own].concat()
        }
    });
    let vans = vans.collect();
    (Some(Choice { vans, is_mixed, pairs }), passed_over)
}

/// The vans of a server that joins a cluster whose nodes have chosen theirs, and its entry for
/// them.
///
/// # Errors
/// Why none of its vans works for the others.
pub(crate) fn choose_further(
    offered: &[Candidate],
    taken: &[Candidate],
) -> Result<(Vec<Van>, Candidate), String> {
    let working = || offered.iter().filter(|candidate| candidate.threads.is_ok());
    if taken.iter().any(|one| one.van == Van::Mixed) {
        let node = Chooser { name: String::new(), is_server: true, candidates: offered };
        let vans = vans_of(&node, |_| true);
        return match working().any(|one| carrier(one.van) == SOCKETS) {
            true => Ok(([vec![Van::Mixed], vans.clone()].concat(), joined(offered, &vans))),
            false => Err("it has no van for sockets, which lanes to all nodes can take".to_owned()),
        };
    }
    let suits = |own: &&Candidate| {
        let meets =
            |other: &Candidate| carrier(other.van) == carrier(own.van) && other.host == own.host;
        own.ports == 1 && taken.iter().all(meets)
    };
    let mut suiting: Vec<&Candidate> = working().filter(suits).collect();
    suiting.sort_by_key(|candidate| rank(candidate.van));
    match suiting.first() {
        Some(entry) => Ok((vec![entry.van], (*entry).clone())),
        None => {
            let names: BTreeSet<_> = taken.iter().map(|one| one.van.to_string()).collect();
            let names = Vec::from_iter(names).join(" and ");
            Err(format!("the cluster's nodes meet over {names}, which does not work for it there"))
        }
    }
}

/// The carrier of sockets.
const SOCKETS: &str = caravan_van::socket::CARRIER;

/// All pairs of nodes that may have a lane: one of the two is a server. A server alone is a pair
/// with itself, so that it has a van.
fn may_meet<'a, 'b>(
    nodes: &'a [Chooser<'b>],
) -> impl Iterator<Item = (&'a Chooser<'b>, &'a Chooser<'b>)> {
    let is_alone = nodes.len() == 1;
    nodes.iter().enumerate().flat_map(move |(at, one)| {
        let others = nodes.iter().skip(if is_alone { at } else { at + 1 });
        others.filter(|other| one.is_server || other.is_server).map(move |other| (one, other))
    })
}

/// The carrier of the first van of a node that works for both of two.
fn meet(one: &Chooser<'_>, other: &Chooser<'_>) -> Option<&'static str> {
    let candidates = one.candidates.iter().filter(|candidate| candidate.threads.is_ok());
    let mut in_order: Vec<_> = candidates.collect();
    in_order.sort_by_key(|candidate| rank(candidate.van));
    in_order.into_iter().map(|own| (carrier(own.van), own)).find_map(|(carrier, own)| {
        let theirs = working(other, carrier)?;
        (own.host == theirs.host).then_some(carrier)
    })
}

/// The entry of a node's first van of a carrier that works.
fn working<'a>(node: &Chooser<'a>, of: &str) -> Option<&'a Candidate> {
    let found = node.candidates.iter().filter(|one| carrier(one.van) == of && one.threads.is_ok());
    found.min_by_key(|one| rank(one.van))
}

/// The place of a van among all, fastest first.
fn rank(van: Van) -> usize {
    VANS.iter().position(|it| *it == van).unwrap_or(VANS.len())
}

/// A node's own vans that work, one of each carrier that is `wanted`, fastest first.
fn vans_of(node: &Chooser<'_>, wanted: impl Fn(&str) -> bool) -> Vec<Van> {
    let working = node.candidates.iter().filter(|candidate| candidate.threads.is_ok());
    let mut vans: Vec<Van> =
        working.map(|one| one.van).filter(|van| wanted(carrier(*van))).collect();
    vans.sort_by_key(|van| rank(*van));
    vans.dedup_by_key(|van| carrier(*van));
    vans
}

/// A line for each van before the first that all nodes have.
fn passed_over(nodes: &[Chooser<'_>]) -> Vec<String> {
    let is_known =
        |van: &Van| nodes.iter().any(|node| node.candidates.iter().any(|known| known.van == *van));
    let known = VANS.into_iter().chain([Van::Sim]).filter(is_known);
    known.map_while(|van| lacks(van, nodes)).collect()
}

/// The entry of a node that takes several vans: the addresses of its threads, each of which names
/// all of them.
pub(crate) fn joined(candidates: &[Candidate], vans: &[Van]) -> Candidate {
    let own: Vec<&Candidate> = vans
        .iter()
        .filter_map(|van| candidates.iter().find(|candidate| candidate.van == *van))
        .collect();
    let addresses = |candidate: &Candidate| candidate.threads.clone().unwrap_or_default();
    let threads = own.iter().map(|candidate| addresses(candidate).len()).max().unwrap_or(0);
    let of_thread = |thread: usize| {
        let vans = own.iter().filter_map(|candidate| {
            let addresses = candidate.threads.as_ref().ok()?;
            Some((candidate.van, candidate.host.as_deref(), addresses.get(thread)?.as_str()))
        });
        joined_address(vans)
    };
    let threads = (0..threads).map(of_thread).collect();
    Candidate { van: Van::Mixed, threads: Ok(threads), host: None, ports: 1 }
}

/// Which node lacks a van, and why.
fn lacks(van: Van, nodes: &[Chooser<'_>]) -> Option<String> {
    let of =
        |candidates: &[Candidate]| candidates.iter().position(|candidate| candidate.van == van);
    let first = nodes.iter().find_map(|node| {
        let candidate = &node.candidates[of(node.candidates)?];
        candidate.threads.is_ok().then_some((&node.name, &candidate.host))
    });
    let mut lacking = nodes.iter().filter_map(|Chooser { name, candidates, .. }| {
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
        Some((name, why))
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

/// The opened transports of the vans that were chosen as one; the others are closed.
pub(crate) fn take(
    opened: Vec<Opened>,
    van: Van,
    vans: &[Van],
    wait: Wait,
) -> Result<Box<dyn Transport>> {
    let mut opened = opened;
    let mut take = |van| match opened.iter().position(|(found, _)| *found == van) {
        Some(at) => opened.swap_remove(at).1,
        None => Err(Error::Config(format!(
            "the scheduler chose the {van} van, which this node did not offer"
        ))),
    };
    match van {
        Van::Mixed => {
            let members = vans.iter().map(|van| take(*van)).collect::<Result<Vec<_>>>()?;
            mix(members.into_iter().flatten().collect(), wait)
        }
        // The first port is the only one.
        van => match take(van)?.into_iter().next() {
            Some(only) => Ok(only),
            None => mix(Vec::new(), wait),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn works(van: Van) -> Candidate {
        Candidate { van, threads: Ok(vec![format!("{van} address")]), host: None, ports: 1 }
    }

    fn fails(van: Van, why: &str) -> Candidate {
        Candidate { van, threads: Err(why.to_owned()), host: None, ports: 1 }
    }

    /// The choice among nodes, the first `servers` of which are servers.
    fn among(servers: usize, nodes: &[&[Candidate]]) -> (Option<Choice>, Vec<String>) {
        let nodes = nodes.iter().enumerate().map(|(at, candidates)| Chooser {
            name: format!("node {at}"),
            is_server: at < servers,
            candidates,
        });
        choose(&nodes.collect::<Vec<_>>())
    }

    /// The vans of nodes of which all take one; all of them are servers.
    fn chosen(nodes: &[&[Candidate]]) -> (Option<Vec<Van>>, Vec<String>) {
        let (choice, lines) = among(nodes.len(), nodes);
        let vans = choice.map(|choice| {
            assert!(!choice.is_mixed, "{choice:?}");
            choice.vans.concat()
        });
        (vans, lines)
    }

    #[test]
    fn the_first_van_that_all_have_is_taken() {
        let all = VANS.map(works);
        assert_eq!(chosen(&[&all, &all, &all]), (Some(vec![VANS[0]; 3]), vec![]));
        let tcp = [works(Van::Tcp)];
        assert_eq!(chosen(&[&tcp, &tcp]), (Some(vec![Van::Tcp; 2]), vec![]));
        assert_eq!(chosen(&[&all]), (Some(vec![VANS[0]]), vec![]), "a server alone");
    }

    #[test]
    fn a_further_server_takes_a_van_that_all_others_meet() {
        let all = VANS.map(works);
        let chosen = |offered: &[Candidate], taken: &[Candidate]| {
            choose_further(offered, taken).map(|(vans, entry)| (vans, entry.van))
        };
        assert_eq!(chosen(&all, &[works(Van::Tcp)]), Ok((vec![Van::Uring], Van::Uring)));
        assert_eq!(chosen(&all[3..], &[works(Van::Uring)]), Ok((vec![Van::Tcp], Van::Tcp)));
        let mixed = chosen(&all, &[works(Van::Mixed)]).unwrap();
        assert_eq!((mixed.0[0], mixed.1), (Van::Mixed, Van::Mixed));
        let elsewhere = Candidate { host: Some("other".to_owned()), ..works(Van::Shm) };
        let error = chosen(&all, &[elsewhere]).unwrap_err();
        assert!(error.contains("meet over shm, which does not work"), "{error}");
        let error = chosen(&[works(Van::Shm)], &[works(Van::Mixed)]).unwrap_err();
        assert!(error.contains("no van for sockets"), "{error}");
    }

    #[test]
    fn each_node_takes_its_own_van_over_sockets() {
        let all = VANS.map(works);
        let all = &all[2..]; // as without shm and rdma
        let some = [fails(Van::Uring, "no ring"), works(Van::Tcp)];
        let (vans, said) = chosen(&[all, &some, all, &[works(Van::Tcp)]]);
        assert_eq!(vans, Some(vec![Van::Uring, Van::Tcp, Van::Uring, Van::Tcp]));
        assert_eq!(said, ["uring: not for node 1 and 1 more: no ring"]);
    }

    #[test]
    fn pairs_that_have_no_van_in_common_are_explained() {
        let broken = VANS.map(|van| fails(van, "broken"));
        let (vans, said) = chosen(&[&[works(Van::Rdma)], &broken, &VANS.map(works)]);
        assert_eq!(vans, None);
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
        // Workers have no lanes to each other.
        let (all, rdma, tcp) = (VANS.map(works), [works(Van::Rdma)], [works(Van::Tcp)]);
        assert!(among(1, &[&all, &rdma, &tcp]).0.is_some_and(|choice| choice.is_mixed));
        assert_eq!(among(2, &[&all, &rdma, &tcp]).0, None);
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

    /// The vans of a node on a host: shared memory there, and more.
    fn on(host: &str, more: &[Van]) -> Vec<Candidate> {
        let shm = Candidate { host: Some(host.to_owned()), ..works(Van::Shm) };
        [shm].into_iter().chain(more.iter().copied().map(works)).collect()
    }

    #[test]
    fn each_pair_takes_the_first_van_that_both_have() {
        let (here, there) = (on("here", &VANS[1..]), on("there", &VANS[1..]));
        let (choice, said) = among(2, &[&here, &there, &here, &there]);
        let choice = choice.unwrap_or_else(|| panic!("{said:?}"));
        assert!(choice.is_mixed);
        // Both pairs of servers and of workers are apart, and each worker is with one server.
        assert_eq!(choice.pairs, [("rdma", 3), ("shm", 2)]);
        assert_eq!(
            choice.vans,
            vec![vec![Van::Mixed, Van::Shm, Van::Rdma, Van::Uring]; 4],
            "in order"
        );
        assert!(said[0].starts_with("shm: not for node 1 and 1 more: it is not where node 0 is"));
        assert_eq!(said.len(), 1, "all have rdma");

        let bare = [fails(Van::Shm, "a sandbox forbids it"), works(Van::Tcp)];
        let (choice, said) = among(1, &[&here, &here, &bare]);
        let choice = choice.unwrap_or_else(|| panic!("{said:?}"));
        assert_eq!(choice.pairs, [("shm", 1), (SOCKETS, 1)]);
        let usual = vec![Van::Mixed, Van::Shm, Van::Uring];
        assert_eq!(choice.vans, [usual.clone(), usual, vec![Van::Mixed, Van::Tcp]]);
        assert!(said[0] == "shm: not for node 2: a sandbox forbids it", "{said:?}");
    }

    #[test]
    fn a_van_of_one_host_takes_both_to_be_there() {
        let (here, there) = (on("here", &[Van::Tcp]), on("there", &[Van::Tcp]));
        assert_eq!(chosen(&[&here, &here]).0, Some(vec![Van::Shm; 2]));
        let (vans, said) = chosen(&[&here, &there]);
        assert_eq!(vans, Some(vec![Van::Tcp; 2]), "the only pair");
        assert!(said[0].starts_with("shm: not for node 1: it is not where node 0 is"), "{said:?}");
        let (vans, said) = chosen(&[&here[..1], &there[..1]]);
        assert_eq!((vans, said.len()), (None, 1), "named, and still refused");
        assert_eq!(of_all(&[here.to_vec(), here.to_vec()])[0].host.as_deref(), Some("here"));
    }

    #[test]
    fn the_addresses_of_several_vans_are_joined_by_thread() {
        let two = |van: Van, host: Option<&str>| Candidate {
            van,
            threads: Ok(vec![format!("{van}:0"), format!("{van}:1")]),
            host: host.map(str::to_owned),
            ports: 1,
        };
        let own = [two(Van::Shm, Some("here")), fails(Van::Rdma, "no"), two(Van::Tcp, None)];
        let Candidate { van, threads, .. } = joined(&own, &[Van::Shm, Van::Tcp]);
        assert_eq!(van, Van::Mixed);
        if super::super::backend::is_built(Van::Mixed) {
            let threads = threads.unwrap_or_default();
            assert_eq!(threads.len(), 2);
            for (thread, address) in threads.iter().enumerate() {
                assert!(address.starts_with("shm@"), "{address}");
                assert!(
                    address.ends_with(&format!("=shm:{thread}|socket=tcp:{thread}")),
                    "{address}"
                );
            }
        }
    }

    #[test]
    fn a_node_with_several_ports_makes_the_cluster_a_mixed_one() {
        let two = Candidate { ports: 2, ..works(Van::Rdma) };
        let (one, both) = ([works(Van::Rdma), works(Van::Tcp)], [two.clone(), works(Van::Tcp)]);
        let vans = |servers, nodes: &[&[Candidate]]| among(servers, nodes).0.map(|it| it.vans);
        let mixed = vec![Van::Mixed, Van::Rdma, Van::Tcp];
        assert_eq!(vans(1, &[&one, &both]), Some(vec![mixed; 2]), "sockets stand behind");
        assert_eq!(vans(1, &[&one, &one]), Some(vec![vec![Van::Rdma]; 2]));
        assert_eq!(vans(1, &[&one[1..], &both]), Some(vec![vec![Van::Tcp]; 2]), "not by the ports");
        let named = vans(1, &[&both[..1], &both[..1]]);
        assert_eq!(named, Some(vec![vec![Van::Mixed, Van::Rdma]; 2]), "nothing stands behind");

        let address = Ok(vec!["10.0.0.1:7;10.0.1.1:7".to_owned()]);
        let own = [Candidate { threads: address, ..two.clone() }, works(Van::Tcp)];
        if super::super::backend::is_built(Van::Mixed) {
            let threads = joined(&own, &[Van::Rdma, Van::Tcp]).threads;
            let expected = "rdma=10.0.0.1:7|rdma=10.0.1.1:7|socket=tcp address";
            assert_eq!(threads, Ok(vec![expected.to_owned()]));
        }
        assert_eq!(of_all(&[one.to_vec(), both.to_vec()])[0].ports, 2);
        let told = serde_json::to_string(&two).unwrap_or_default();
        assert_eq!(serde_json::from_str::<Candidate>(&told).ok(), Some(two));
        let told = serde_json::to_string(&one[0]).unwrap_or_default();
        assert!(!told.contains("ports"), "{told}");
        assert_eq!(serde_json::from_str::<Candidate>(&told).ok().as_ref(), Some(&one[0]));
    }

    #[test]
    fn only_what_was_offered_can_be_taken() {
        let broken = || Err(Error::Config("broken".to_owned()));
        let text = |van| {
            let taken = take(vec![(Van::Uring, broken())], van, &[Van::Uring], Wait::Block);
            taken.err().map(|error| error.to_string())
        };
        assert_eq!(text(Van::Uring).as_deref(), Some("broken"));
        assert_eq!(text(Van::Mixed).as_deref(), Some("broken"));
        assert!(
            text(Van::Tcp).is_some_and(|text| text.contains("tcp van, which this node did not"))
        );
    }
}
