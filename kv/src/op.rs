//! The operation that a request asks for: the `op` byte of its header.

/// Who asks a server thread for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// Whoever has a lane.
    Anybody,
    /// Workers and drivers.
    Client,
    /// Server threads, of each other.
    Server,
    /// It is in answers alone.
    Nobody,
}

/// Defines [`Op`] from the name, the number and the asker of each operation.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $number:literal by $asker:ident,)*) => {
        /// Operations of the key-value layer.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Op {
            $($(#[$doc])* $name = $number,)*
        }

        impl Op {
            pub(crate) fn from_raw(raw: u8) -> Option<Op> {
                Some(match raw {
                    $($number => Op::$name,)*
                    _ => return None,
                })
            }

            pub(crate) fn asker(self) -> Asker {
                match self {
                    $(Op::$name => Asker::$asker,)*
                }
            }
        }
    };
}

operations! {
    Push = 1 by Anybody,
    Pull = 2 by Anybody,
    PushPull = 3 by Anybody,
    /// Table 0 asks the first server thread for the number of a table with the specification in the
    /// values, as JSON; its answer is [`Created`](crate::map::Created). Owners of its shards are
    /// told of the number by [`Numbered`](crate::map::Numbered).
    Create = 4 by Anybody,
    /// The table's handle defines the values.
    Command = 5 by Anybody,
    /// The keys of an earlier request with this timestamp, whose signature the server did not know.
    /// The server asks for them by a failure with this operation.
    Keys = 6 by Anybody,
    /// The answer's values are the server thread's [`Cost`](crate::Cost) so far, as JSON.
    Cost = 7 by Anybody,
    /// Drops the table. The answer's values are the server threads to which shards of it have moved
    /// from there, as JSON, or nothing. As the operation of a failure: the table of the request was
    /// dropped.
    Drop = 8 by Anybody,
    /// The values are a namespace. The answer's values are the number and the specification of each
    /// table within, as JSON.
    Tables = 9 by Anybody,
    /// The sender takes part in the table from the header's clock on. The answer's values are its
    /// clock there, `u64`.
    Join = 10 by Anybody,
    /// The sender has finished its iterations below the header's clock. The values say below which
    /// iteration it has announced its requests, `u64`.
    Clock = 11 by Anybody,
    /// The sender takes part no longer.
    Leave = 12 by Anybody,
    /// The values are the new bound of the table's model, `u64`.
    Bound = 13 by Anybody,
    /// The shard of the range is to move to another server thread.
    Move = 14 by Anybody,
    /// A failure: the request comes back, since its shard has moved. A worker sends it again. Of a
    /// shard with copies it comes without anything: the worker has kept it.
    Moved = 15 by Nobody,
    /// Nothing but an answer: the worker has heard everything from before.
    Mark = 16 by Anybody,
    /// From the owner of a shard to a newcomer: it will come.
    Take = 17 by Server,
    /// Rows of it. The command marks the last ones of a shard that moves, and those that were
    /// overwritten.
    Rows = 18 by Server,
    /// A push to it, which the owner has applied.
    Forward = 19 by Server,
    /// The newcomer is to own it, by the epoch in the header's clock. Its answer says that it does,
    /// a failure that its copy is not whole.
    Own = 20 by Server,
    /// It does not come.
    Abandon = 21 by Server,
    /// How fresh a shard is under its table's model.
    Fresh = 22 by Anybody,
    /// A [`Wish`](crate::checkpoint::Wish) of a client that writes or restores a checkpoint.
    Checkpoint = 23 by Anybody,
    /// What the sender knows of the server threads, as JSON
    /// ([`Membership`](crate::membership::Membership)).
    Membership = 24 by Client,
    /// From a thread of a shard's chain to the next one: follow. The answer's value says whether
    /// that has a whole copy. As the operation of a failure: the record comes from a thread which
    /// the one that was asked does not follow.
    Follow = 25 by Server,
    /// An answer to a forwarded request, which names its shard by the range: all copies behind the
    /// sender of the request have it; or, as a failure, why there is none any more. Forwarded:
    /// nothing but a record.
    Record = 26 by Nobody,
    /// The copy is whole. The values say what was applied of whom.
    Whole = 27 by Server,
    /// A failure: the server thread that asked counts as lost or has left, or the one that was
    /// asked leaves.
    Lost = 28 by Nobody,
    /// Forwarded: a request that was refused, so that no copy takes it for
    /// one that was applied.
    Refused = 29 by Nobody,
    /// The server thread is to take no shard from now on, as it will leave the cluster. The values
    /// are the thread that gets its place, as JSON; the answer's are
    /// [`Retired`](crate::map::Retired).
    Retire = 30 by Client,
    /// The answer's values are the server thread's [`Copies`](crate::Copies), as JSON.
    Copies = 31 by Client,
    /// The answer's values are what the server thread serves of each table
    /// ([`Served`](crate::server::Served)), by number, as JSON.
    Served = 32 by Client,
}

/// Bit of the operation: the values are a block.
pub(crate) const FILTERED: u8 = 0x80;

/// Bit of the operation of a push that ends its worker's iteration: the worker has finished all
/// iterations up to the header's clock.
pub(crate) const FINISHES: u8 = 0x40;

/// Bit beside [`FINISHES`]: the worker has announced its requests as far ahead as the table's model
/// looks.
pub(crate) const DISCLOSES: u8 = 0x20;

/// All bits beside the number of an operation.
pub(crate) const BITS: u8 = FILTERED | FINISHES | DISCLOSES;

/// The name of the operation of a request, by the `op` byte of its header.
pub(crate) fn name(raw: u8) -> String {
    match Op::from_raw(raw & !BITS) {
        Some(op) => format!("{op:?}").to_lowercase(),
        None => format!("operation {raw}"),
    }
}

impl Op {
    pub(crate) fn pushes(self) -> bool {
        matches!(self, Op::Push | Op::PushPull)
    }

    pub(crate) fn pulls(self) -> bool {
        matches!(self, Op::Pull | Op::PushPull)
    }

    /// Whether servers answer it with text or other bytes that a worker keeps as they come.
    pub(crate) fn has_replies(self) -> bool {
        use Op::*;
        matches!(
            self,
            Create
                | Command
                | Cost
                | Drop
                | Tables
                | Join
                | Fresh
                | Checkpoint
                | Retire
                | Copies
                | Served
        )
    }

    /// Whether servers answer it with nothing but that it was executed.
    pub(crate) fn is_bare(self) -> bool {
        matches!(self, Op::Push | Op::Clock | Op::Leave | Op::Bound)
    }

    /// What a worker asks for by it, in messages to people.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Op::Push => "a push",
            Op::Pull => "a pull",
            Op::PushPull => "a push-pull",
            Op::Create => "to create a table",
            Op::Command => "a command",
            Op::Cost => "its cost",
            Op::Drop => "to drop a table",
            Op::Tables => "its tables",
            Op::Join => "to join a table",
            Op::Clock => "a clock",
            Op::Leave => "to leave a table",
            Op::Bound => "another bound",
            Op::Move => "to move a shard",
            Op::Fresh => "how fresh a table is",
            Op::Checkpoint => "a part of a checkpoint",
            Op::Retire => "to take no more shards",
            Op::Copies => "how far its copies are",
            Op::Served => "what it serves of each table",
            _ => "a request",
        }
    }
}
