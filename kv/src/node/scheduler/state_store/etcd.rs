//! States in an etcd, by the JSON that it speaks over HTTP.
//!
//! A state is written only where the last one of this scheduler is still there. So when another
//! scheduler has gone on with the cluster, this one finds out before anybody hears of it again.
//!
//! An etcd takes 1.5 MB at once, and a state has all envelopes that are under way. So it lies in
//! pieces: the first at the job's key, behind a line that says what belongs to it, the others below
//! that key, at places that no other state has. These are written before the first.

use std::ops::Range;
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use ureq::Agent;

use super::{Failure, Kept};

/// How long a call may take.
const CALL_MAX: Duration = Duration::from_secs(2);

/// How long an etcd may answer nothing, as while it chooses another leader.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Pause before a call is made again.
const PAUSE: Duration = Duration::from_millis(200);

/// Bytes of a state in one value.
const PIECE: usize = 1 << 20;

/// The first line of the first piece.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Head {
    bytes: usize,
    /// Of the whole state.
    crc32c: u32,
}

impl Head {
    fn of(state: &[u8]) -> Head {
        Head { bytes: state.len(), crc32c: crc_fast::crc32_iscsi(state) }
    }
}

/// The key of a job's scheduler in an etcd.
pub(super) struct Etcd {
    agent: Agent,
    /// Addresses of its members.
    members: Vec<String>,
    key: String,
    /// Of the last state of this scheduler; 0 before there is one.
    revision: u64,
}

impl Etcd {
    /// Takes the key of a job, at members whose addresses commas separate.
    ///
    /// # Errors
    /// Why the etcd does not answer.
    pub(super) fn open(members: &str, job: u64) -> Kept<Etcd> {
        let config = Agent::config_builder();
        let config = config.timeout_global(Some(CALL_MAX)).http_status_as_error(false).build();
        let key = format!("caravan/{job:x}/scheduler");
        let members = members.split(',').map(|it| it.trim_end_matches('/').to_owned()).collect();
        let etcd = Etcd { agent: config.into(), members, key, revision: 0 };
        etcd.look(&etcd.key).map(|_| etcd)
    }

    /// The last state that was kept, if there is one.
    ///
    /// # Errors
    /// Why the etcd does not answer, or what it has is none.
    pub(super) fn load(&mut self) -> Kept<Option<Vec<u8>>> {
        let Some((revision, value)) = self.look(&self.key)? else { return Ok(None) };
        let line = value.iter().position(|byte| *byte == b'\n').unwrap_or(value.len());
        let (head, first) = value.split_at(line);
        let head: Head = serde_json::from_slice(head)?;
        let mut state = first.get(1..).unwrap_or_default().to_vec();
        let pieces = self.pieces(head).start;
        for piece in 1.. {
            let Some((_, more)) = self.look(&format!("{pieces}{piece}"))? else { break };
            state.extend(more);
        }
        if Head::of(&state) != head {
            return Err(format!("its value of {} is damaged", self.key).into());
        }
        self.revision = revision;
        Ok(Some(state))
    }

    /// Keeps a state.
    ///
    /// # Errors
    /// Why the etcd refuses it; that another scheduler has written one.
    pub(super) fn save(&mut self, state: &[u8]) -> Kept<()> {
        let head = Head::of(state);
        let pieces = self.pieces(head);
        let (first, rest) = state.split_at(state.len().min(PIECE));
        for (at, piece) in rest.chunks(PIECE).enumerate() {
            let put = put(&format!("{}{}", pieces.start, 1 + at), piece);
            if self.unless_changed(&[put])?["succeeded"] != true {
                return Err(OVERTAKEN.into());
            }
        }
        let mut value = serde_json::to_vec(&head)?;
        value.push(b'\n');
        value.extend(first);
        // Nobody needs the pieces of other states any more.
        let all = self.all();
        let below = delete(&(format!("{}/", all.start)..pieces.start));
        let above = delete(&(pieces.end..all.end));
        let done = self.unless_changed(&[put(&self.key, &value), below, above])?;
        self.revision = match done["succeeded"] == true {
            true => number(&done["header"]["revision"])?,
            // An earlier call may have written it whose answer did not come.
            false => match kept_in(&done["responses"][0]["response_range"])? {
                Some((revision, found)) if found == value => revision,
                _ => return Err(OVERTAKEN.into()),
            },
        };
        Ok(())
    }

    /// Removes the state.
    ///
    /// # Errors
    /// Why the etcd refuses it.
    pub(super) fn clear(&mut self) -> Kept<()> {
        self.unless_changed(&[delete(&self.all())]).map(drop)
    }

    /// The keys of the pieces of a state but for the first; their numbers follow.
    fn pieces(&self, Head { bytes, crc32c }: Head) -> Range<String> {
        let Etcd { key, .. } = self;
        let state = format!("{bytes:016x}-{crc32c:08x}");
        format!("{key}/{state}/")..format!("{key}/{state}0") // 0 follows / in ASCII
    }

    /// The key, and all keys below it.
    fn all(&self) -> Range<String> {
        self.key.clone()..format!("{}0", self.key)
    }

    /// The revision and the value of a key, if it has one.
    fn look(&self, key: &str) -> Kept<Option<(u64, Vec<u8>)>> {
        kept_in(&self.call("range", &json!({ "key": encode(key) }))?)
    }

    /// Does something if the last state of this scheduler is there; else that key is looked up.
    fn unless_changed(&self, what: &[Value]) -> Kept<Value> {
        let key = encode(&self.key);
        let is_last = json!({
            "key": key, "target": "MOD", "result": "EQUAL",
            "modRevision": self.revision.to_string(),
        });
        let look = json!({ "requestRange": { "key": key } });
        self.call("txn", &json!({ "compare": [is_last], "success": what, "failure": [look] }))
    }

    /// Calls the members in turn until one answers.
    fn call(&self, what: &str, body: &Value) -> Kept<Value> {
        let began = Instant::now();
        loop {
            let mut why = String::new();
            for member in &self.members {
                match self.call_member(member, what, body) {
                    Ok(answer) => return answer,
                    Err(error) => why = format!("{member} does not answer: {error}"),
                }
            }
            if began.elapsed() > SILENCE_MAX {
                return Err(why.into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The answer of a member, or why it refuses.
    ///
    /// # Errors
    /// If it does not answer, or cannot for now.
    fn call_member(&self, member: &str, what: &str, body: &Value) -> Result<Kept<Value>, String> {
        let called = self.agent.post(format!("{member}/v3/kv/{what}")).send_json(body);
        let mut answer = called.map_err(|error| error.to_string())?;
        let status = answer.status();
        let text = answer.body_mut().read_to_string().map_err(|error| error.to_string())?;
        match status.as_u16() {
            200 => Ok(serde_json::from_str(&text).map_err(Failure::from)),
            500.. => Err(format!("{status}: {text}")),
            // It has no room: its quota is used up.
            429 => Ok(Err(Failure::Full(format!("{member} says {status}: {text}")))),
            _ => Ok(Err(format!("{member} says {status}: {text}").into())),
        }
    }
}

/// Why a scheduler ends that finds another one's state.
const OVERTAKEN: &str = "another scheduler has gone on with this cluster";

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn put(key: &str, value: &[u8]) -> Value {
    json!({ "requestPut": { "key": encode(key), "value": encode(value) } })
}

fn delete(keys: &Range<String>) -> Value {
    let Range { start, end } = keys;
    json!({ "requestDeleteRange": { "key": encode(start), "range_end": encode(end) } })
}

/// The revision and the value in a list of what was found, unless that is empty.
fn kept_in(found: &Value) -> Kept<Option<(u64, Vec<u8>)>> {
    let Some(kept) = found["kvs"].get(0) else { return Ok(None) };
    let state = BASE64_STANDARD.decode(kept["value"].as_str().unwrap_or(""));
    let state = state.map_err(|error| error.to_string())?;
    Ok(Some((number(&kept["mod_revision"])?, state)))
}

fn number(value: &Value) -> Kept<u64> {
    let parsed = value.as_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| format!("{value} is no revision of an etcd").into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A real etcd.
    struct Member {
        process: Child,
        address: String,
        _folder: tempfile::TempDir,
    }

    impl Member {
        /// Starts the program that `ci/etcd` names.
        fn start() -> Option<Member> {
            let Ok(program) = std::env::var("CARAVAN_TEST_ETCD") else {
                println!("SKIPPED: CARAVAN_TEST_ETCD names no etcd (ci/etcd installs one)");
                return None;
            };
            let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let [address, peer] = [free(), free()].map(|it| format!("http://{it}"));
            let folder = tempfile::tempdir().unwrap();
            let mut etcd = Command::new(program);
            etcd.args(["--listen-client-urls", &address, "--advertise-client-urls", &address]);
            etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            etcd.args(["--initial-cluster", &format!("default={peer}")]);
            etcd.arg("--data-dir").arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
            Some(Member { process: etcd.spawn().unwrap(), address, _folder: folder })
        }

        fn open(&self) -> Etcd {
            Etcd::open(&self.address, 7).unwrap()
        }

        /// Number of keys that it has.
        fn keys(&self) -> u64 {
            let all = json!({ "key": encode("caravan"), "range_end": encode("caravao") });
            self.open().call("range", &all).unwrap()["count"]
                .as_str()
                .map_or(0, |count| count.parse().unwrap())
        }
    }

    impl Drop for Member {
        fn drop(&mut self) {
            self.process.kill().unwrap();
            self.process.wait().unwrap();
        }
    }

    fn state(bytes: usize, seed: u8) -> Vec<u8> {
        (0..bytes).map(|at| (at % 251) as u8 ^ seed).collect()
    }

    #[test]
    fn a_state_of_any_length_is_kept() {
        let Some(member) = Member::start() else { return };
        let mut etcd = member.open();
        assert_eq!(etcd.load(), Ok(None));
        for (seed, bytes) in [0, 1, PIECE, PIECE + 1, 5 * PIECE, 5 * PIECE, 7].iter().enumerate() {
            let state = state(*bytes, seed as u8);
            for _ in 0..2 {
                etcd.save(&state).unwrap();
                assert_eq!(member.open().load(), Ok(Some(state.clone())));
                assert_eq!(member.keys(), 1.max(bytes.div_ceil(PIECE)) as u64, "no piece is left");
            }
        }
        etcd.save(&state(3 * PIECE, 9)).unwrap();
        etcd.clear().unwrap();
        assert_eq!((member.open().load(), member.keys()), (Ok(None), 0));
    }

    #[test]
    fn a_state_is_whole_whichever_write_is_the_last() {
        let Some(member) = Member::start() else { return };
        let (old, new) = (state(3 * PIECE, 1), state(3 * PIECE, 2));
        member.open().save(&old).unwrap();
        // One that ends after two of its pieces.
        let mut cut_off = member.open();
        cut_off.load().unwrap();
        let pieces = cut_off.pieces(Head::of(&new)).start;
        for piece in 1..3 {
            let written = put(&format!("{pieces}{piece}"), &new[piece * PIECE..][..PIECE]);
            assert_eq!(cut_off.unless_changed(&[written]).unwrap()["succeeded"], true);
        }
        let mut next = member.open();
        assert_eq!(next.load(), Ok(Some(old)));
        next.save(&state(2 * PIECE, 3)).unwrap();
        assert_eq!(member.keys(), 2);
        // The one that was cut off wakes.
        assert_eq!(cut_off.save(&new), Err(OVERTAKEN.into()));
        assert_eq!(cut_off.save(&new[..9]), Err(OVERTAKEN.into()));
        assert_eq!(member.open().load(), Ok(Some(state(2 * PIECE, 3))));
    }

    #[test]
    fn a_damaged_state_is_refused() {
        let Some(member) = Member::start() else { return };
        let mut etcd = member.open();
        etcd.save(&state(2 * PIECE, 1)).unwrap();
        let piece = format!("{}1", etcd.pieces(Head::of(&state(2 * PIECE, 1))).start);
        for damage in [put(&piece, b"other"), delete(&(piece.clone()..format!("{piece}0")))] {
            etcd.unless_changed(&[damage]).unwrap();
            let why = member.open().load().unwrap_err().to_string();
            assert!(why.contains("caravan/7/scheduler is damaged"), "{why}");
        }
    }
}
