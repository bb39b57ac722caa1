//! Hands requests and answers from node to node.
//!
//! Every node has a lane to the scheduler and to no other, so that any node can ask any other
//! without lanes of their own. The exchange knows who owes whom an answer. A node gets its
//! envelopes in batches, the next one when it has taken the last; a slow node therefore holds up
//! nobody else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::super::control::{Body, Envelope};
use super::super::group::NodeName;

/// Most bytes of the envelopes that wait for a node.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// About the number of bytes from which on a batch is full.
const BATCH_BYTES: usize = 64 << 10;

/// Most answers that a node may wait for.
const AWAITED_MAX: usize = 1_000_000;

/// Bit of a batch's number, which no task's has.
const BATCH: u64 = 1 << 63;

/// Who owes whom an answer.
#[derive(Serialize, Deserialize)]
struct Debt {
    asker: NodeName,
    /// The asker's number of the request.
    id: u64,
    of: NodeName,
}

/// The envelopes for a node.
#[derive(Default, Serialize, Deserialize)]
struct Mailbox {
    envelopes: VecDeque<Envelope>,
    bytes: usize,
    /// Number of the batch that the node has not taken yet.
    sent: Option<u64>,
}

impl Mailbox {
    fn push(&mut self, envelope: Envelope) {
        self.bytes += envelope.bytes();
        self.envelopes.push_back(envelope);
    }

    fn batch(&mut self) -> Vec<Envelope> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && let Some(envelope) = self.envelopes.pop_front()
        {
            bytes += envelope.bytes();
            batch.push(envelope);
        }
        self.bytes -= bytes;
        batch
    }
}

/// Envelopes for a node.
pub(super) struct Batch {
    /// Its number, by which the node says that it has taken it.
    pub(super) number: u64,
    pub(super) to: NodeName,
    pub(super) envelopes: Vec<Envelope>,
}

/// What a node asks of others.
pub(super) struct Question {
    pub(super) asker: NodeName,
    pub(super) id: u64,
    pub(super) handler: String,
    pub(super) command: i32,
    pub(super) body: Body,
}

/// All envelopes under way.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Exchange {
    count: u64,
    batches: u64,
    debts: BTreeMap<u64, Debt>,
    /// By node, the number of answers that it waits for.
    #[serde(with = "super::super::pairs")]
    awaited: BTreeMap<NodeName, usize>,
    #[serde(with = "super::super::pairs")]
    mailboxes: BTreeMap<NodeName, Mailbox>,
}

impl Exchange {
    /// Hands a request to these nodes.
    ///
    /// # Errors
    /// The reason why there are too many already.
    pub(super) fn ask(
        &mut self,
        question: &Question,
        nodes: &BTreeSet<NodeName>,
    ) -> Result<(), String> {
        let Question { asker, id, handler, command, body } = question;
        let awaited = self.awaited.entry(*asker).or_default();
        if *awaited + nodes.len() > AWAITED_MAX {
            return Err(format!("it waits for {awaited} answers; it may for {AWAITED_MAX}"));
        }
        *awaited += nodes.len();
        for &of in nodes {
            self.count += 1;
            let number = self.count;
            self.debts.insert(number, Debt { asker: *asker, id: *id, of });
            let mailbox = self.mailboxes.entry(of).or_default();
            if mailbox.bytes > WAITING_BYTES_MAX {
                let why = format!("{} bytes wait for it already", mailbox.bytes);
                self.settle(number, Err(why));
                continue;
            }
            let (handler, body) = (handler.clone(), body.clone());
            mailbox.push(Envelope::Request {
                number,
                from: *asker,
                handler,
                command: *command,
                body,
            });
        }
        Ok(())
    }

    /// Hands the answer of a node to whoever asked; the asker may be gone.
    ///
    /// # Errors
    /// The reason why it is not that node's to answer.
    pub(super) fn answer(
        &mut self,
        from: NodeName,
        number: u64,
        outcome: Result<Body, String>,
    ) -> Result<(), String> {
        if self.debts.get(&number).is_none_or(|debt| debt.of != from) {
            return Err(format!("request {number} was answered already, or never asked of it"));
        }
        self.settle(number, outcome);
        Ok(())
    }

    fn settle(&mut self, number: u64, outcome: Result<Body, String>) {
        let Some(Debt { asker, id, of }) = self.debts.remove(&number) else { return };
        // No awaited answers means that the asker is gone.
        let Some(awaited) = self.awaited.get_mut(&asker) else { return };
        *awaited -= 1;
        let envelope = Envelope::Answer { id, from: of, outcome };
        self.mailboxes.entry(asker).or_default().push(envelope);
    }

    /// Hands a node an envelope that nobody awaits an answer to.
    pub(super) fn tell(&mut self, node: NodeName, envelope: Envelope) {
        self.mailboxes.entry(node).or_default().push(envelope);
    }

    /// Answers for a node that is lost what it owes, and forgets its envelopes.
    pub(super) fn lose(&mut self, node: NodeName, reason: &str) {
        self.awaited.remove(&node);
        self.mailboxes.remove(&node);
        let owes = |(number, debt): (&u64, &Debt)| (debt.of == node).then_some(*number);
        let owed: Vec<u64> = self.debts.iter().filter_map(owes).collect();
        for number in owed {
            self.settle(number, Err(format!("it was lost: {reason}")));
        }
        self.mailboxes.remove(&node); // what it owed itself
    }

    /// The next batch of envelopes for a node that has taken the last one.
    pub(super) fn next(&mut self) -> Option<Batch> {
        let is_due = |mailbox: &Mailbox| mailbox.sent.is_none() && !mailbox.envelopes.is_empty();
        let (&to, mailbox) = self.mailboxes.iter_mut().find(|(_, mailbox)| is_due(mailbox))?;
        self.batches += 1;
        let number = BATCH | self.batches;
        mailbox.sent = Some(number);
        Some(Batch { number, to, envelopes: mailbox.batch() })
    }

    /// Records that a node has taken its batch of this number; returns false if it has none.
    pub(super) fn taken(&mut self, node: NodeName, number: u64) -> bool {
        let mailbox = self.mailboxes.get_mut(&node);
        let sent = mailbox.and_then(|mailbox| mailbox.sent.take_if(|sent| *sent == number));
        sent.is_some()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const SERVERS: [NodeName; 2] = [NodeName::Server(0), NodeName::Server(1)];
    const WORKER: NodeName = NodeName::Worker(0);

    fn question(id: u64, bytes: usize) -> Question {
        let body = Body(vec![7; bytes]);
        Question { asker: WORKER, id, handler: "r".to_owned(), command: 1, body }
    }

    /// The numbers of the requests of a batch.
    fn numbers(batch: &[Envelope]) -> Vec<u64> {
        let number = |envelope: &Envelope| match envelope {
            Envelope::Request { number, .. } => *number,
            _ => panic!("no request"),
        };
        batch.iter().map(number).collect()
    }

    fn answers(batch: Vec<Envelope>) -> Vec<(u64, NodeName, Result<Body, String>)> {
        let answer = |envelope| match envelope {
            Envelope::Answer { id, from, outcome } => (id, from, outcome),
            _ => panic!("no answer"),
        };
        batch.into_iter().map(answer).collect()
    }

    #[test]
    fn an_answer_counts_once_and_from_whom_was_asked() {
        let mut exchange = Exchange::default();
        exchange.ask(&question(5, 1), &SERVERS.into()).unwrap();
        let Batch { to, envelopes, .. } = exchange.next().unwrap();
        assert_eq!((to, numbers(&envelopes)), (SERVERS[0], vec![1]));
        assert_eq!(exchange.next().unwrap().to, SERVERS[1]);
        assert!(exchange.answer(SERVERS[1], 1, Ok(Body(vec![]))).is_err(), "it is another's");
        exchange.answer(SERVERS[0], 1, Ok(Body(vec![1]))).unwrap();
        let why = exchange.answer(SERVERS[0], 1, Ok(Body(vec![2]))).unwrap_err();
        assert!(why.contains("answered already"), "{why}");
        let Batch { to, envelopes, .. } = exchange.next().unwrap();
        assert_eq!((to, answers(envelopes)), (WORKER, vec![(5, SERVERS[0], Ok(Body(vec![1])))]));
    }

    #[test]
    fn a_node_takes_one_batch_at_a_time() {
        let mut exchange = Exchange::default();
        for id in 0..3 {
            exchange.ask(&question(id, BATCH_BYTES / 2), &SERVERS.into()).unwrap();
        }
        let [first, second] = [(); 2].map(|()| exchange.next().unwrap());
        assert_eq!(numbers(&first.envelopes), [1, 3]);
        assert_eq!(numbers(&second.envelopes), [2, 4]);
        assert!(exchange.next().is_none());
        assert!(!exchange.taken(first.to, second.number) && exchange.taken(first.to, first.number));
        assert_eq!(numbers(&exchange.next().unwrap().envelopes), [5]);
    }

    #[test]
    fn who_is_lost_owes_and_hears_nothing() {
        let mut exchange = Exchange::default();
        exchange.ask(&question(1, 1), &[SERVERS[0], WORKER].into()).unwrap();
        exchange.lose(SERVERS[0], "gone");
        let Batch { to, envelopes, .. } = exchange.next().unwrap();
        assert_eq!((to, envelopes.len()), (WORKER, 2));
        exchange.lose(WORKER, "gone as well");
        assert!(exchange.next().is_none() && exchange.debts.is_empty());
    }

    #[test]
    fn a_node_that_takes_nothing_is_not_sent_more_and_more() {
        let mut exchange = Exchange::default();
        let fit = WAITING_BYTES_MAX / (1 << 20) + 1;
        for id in 0..fit as u64 {
            exchange.ask(&question(id, 1 << 20), &[SERVERS[0]].into()).unwrap();
        }
        let first = exchange.next().unwrap();
        assert_eq!((first.to, first.envelopes.len()), (SERVERS[0], 1));
        let second = exchange.next().unwrap();
        let refused = answers(second.envelopes);
        assert_eq!((second.to, refused.len()), (WORKER, 1));
        assert!(refused[0].2.as_ref().unwrap_err().contains("wait for it"), "{refused:?}");
    }
}
