//! The map's entry of a shard: who is in its chain, and who joins it.

/// The number of a server.
pub type ServerId = u8;

/// A version of the map. The epoch of an entry is the version in which it changed last.
pub type Epoch = u8;

/// Most servers of a configuration.
pub const SERVERS_MAX: usize = 4;

/// The servers that have a shard, from the head to the tail.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Default)]
pub struct Chain {
    servers: [ServerId; SERVERS_MAX],
    length: u8,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.members().fmt(f)
    }
}

impl Chain {
    /// A chain of these servers.
    pub fn of(members: impl IntoIterator<Item = ServerId>) -> Chain {
        let mut chain = Chain::default();
        for server in members {
            chain.servers[usize::from(chain.length)] = server;
            chain.length += 1;
        }
        chain
    }

    /// Its servers, from the head on.
    pub fn members(&self) -> &[ServerId] {
        &self.servers[..usize::from(self.length)]
    }

    /// The server that takes requests, unless all are lost.
    pub fn head(&self) -> Option<ServerId> {
        self.members().first().copied()
    }

    /// The last follower, or the head where it is alone.
    pub fn tail(&self) -> Option<ServerId> {
        self.members().last().copied()
    }

    /// Whether a server is a member.
    pub fn has(&self, server: ServerId) -> bool {
        self.members().contains(&server)
    }

    /// The successor of a member.
    pub fn after(&self, server: ServerId) -> Option<ServerId> {
        let at = self.members().iter().position(|member| *member == server)?;
        self.members().get(at + 1).copied()
    }

    /// The predecessor of a member.
    pub fn before(&self, server: ServerId) -> Option<ServerId> {
        self.members().iter().copied().find(|member| self.after(*member) == Some(server))
    }

    /// The chain when a member is lost.
    #[must_use]
    pub fn without(&self, lost: ServerId) -> Chain {
        Chain::of(self.members().iter().copied().filter(|member| *member != lost))
    }

    /// The chain with another server in a member's place.
    #[must_use]
    pub fn replacing(&self, old: ServerId, new: ServerId) -> Chain {
        let replaced = |member: &ServerId| if *member == old { new } else { *member };
        Chain::of(self.members().iter().map(replaced))
    }

    /// The chain with a new last follower.
    #[must_use]
    pub fn extended(&self, follower: ServerId) -> Chain {
        Chain::of(self.members().iter().copied().chain([follower]))
    }
}

/// A server that gets a copy of the shard, and is no member yet.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
pub struct Join {
    /// Who joins.
    pub joiner: ServerId,
    /// The member that fills it: the tail, or the member that is moved.
    pub source: ServerId,
    /// Whether the joiner takes the place of its source. Otherwise it follows it.
    pub replaces: bool,
    /// Which transfer this is: the epoch of the entry that began it.
    pub transfer: Epoch,
}

/// What the map says of a shard. The scheduler owns it.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Default, Debug)]
pub struct Entry {
    /// The version of the map in which the entry changed last.
    pub epoch: Epoch,
    /// Who has the shard.
    pub chain: Chain,
    /// Who joins, one server at a time.
    pub join: Option<Join>,
}

impl Entry {
    /// Whether a server joins.
    pub fn is_joined_by(&self, server: ServerId) -> bool {
        self.join.is_some_and(|join| join.joiner == server)
    }

    /// Whether the entry names a server at all.
    pub fn names(&self, server: ServerId) -> bool {
        self.chain.has(server) || self.is_joined_by(server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_knows_its_neighbours() {
        let chain = Chain::of([2, 0, 3]);
        assert_eq!((chain.head(), chain.tail()), (Some(2), Some(3)));
        assert_eq!((chain.after(0), chain.before(0)), (Some(3), Some(2)));
        assert_eq!((chain.after(3), chain.before(2), chain.after(1)), (None, None, None));
        assert_eq!(chain.without(0), Chain::of([2, 3]));
        assert_eq!(chain.replacing(2, 1), Chain::of([1, 0, 3]));
        assert_eq!(chain.extended(1), Chain::of([2, 0, 3, 1]));
        assert_eq!(Chain::of([]).head(), None);
    }
}
