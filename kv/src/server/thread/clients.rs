//! Whose lane is whose: the node at the other end of each.

use caravan_van::PeerId;

use crate::server::tables::Client;

/// Stands for the node of a lane that is gone; no node has this id.
const NOBODY: u32 = u32::MAX;

/// By peer, the node of its hello; [`NOBODY`] without a lane.
#[derive(Default)]
pub(super) struct Clients {
    nodes: Vec<u32>,
}

impl Clients {
    /// Remembers whose lane this is.
    #[cold]
    pub(super) fn greet(&mut self, peer: PeerId, node: u32) {
        let index = peer.0 as usize;
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, NOBODY);
        }
        self.nodes[index] = node;
    }

    /// The client at the other end of a lane.
    #[inline(always)]
    pub(super) fn at(&self, peer: PeerId) -> Client {
        Client { peer, node: self.nodes.get(peer.0 as usize).copied().unwrap_or(NOBODY) }
    }

    /// Whether the lane has a node: it said hello, and was not given up.
    pub(super) fn knows(&self, peer: PeerId) -> bool {
        self.at(peer).node != NOBODY
    }

    /// Number of lanes that have a node.
    pub(super) fn lanes(&self) -> usize {
        self.nodes.iter().filter(|node| **node != NOBODY).count()
    }

    /// Forgets a lane. Returns its node if it was the node's last one.
    pub(super) fn forget(&mut self, peer: PeerId) -> Option<u32> {
        let node = self.at(peer).node;
        if let Some(place) = self.nodes.get_mut(peer.0 as usize) {
            *place = NOBODY;
        }
        (node != NOBODY && !self.nodes.contains(&node)).then_some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_gone_with_its_last_lane() {
        let mut clients = Clients::default();
        clients.greet(PeerId(3), 7);
        clients.greet(PeerId(1), 7);
        clients.greet(PeerId(0), 8);
        assert_eq!(clients.at(PeerId(3)).node, 7);
        assert!(!clients.knows(PeerId(2)));
        assert_eq!(clients.lanes(), 3);
        assert_eq!(clients.forget(PeerId(2)), None, "a lane that never said hello");
        assert_eq!(clients.forget(PeerId(9)), None, "a lane past all others");
        assert_eq!(clients.forget(PeerId(3)), None, "lane 1 is left");
        assert_eq!(clients.forget(PeerId(3)), None, "forgotten already");
        assert_eq!(clients.forget(PeerId(1)), Some(7));
        assert_eq!(clients.forget(PeerId(0)), Some(8));
        assert_eq!(clients.lanes(), 0);
    }
}
