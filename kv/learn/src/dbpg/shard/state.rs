//! The state of a shard as bytes: all in which it differs from a new one with the same options.

use caravan_kv::Refused;
use std::collections::BTreeMap;
use std::ops::Range;

use super::{Held, Lossy, Push, Shard, Task, charge};
use crate::copies::image::{self, Reader, Writer};
use crate::dbpg::coordinates::BlockSum;

pub(super) fn write(shard: &Shard, image: &mut Writer<'_>) {
    image.number(shard.memory.bytes() as u64);
    image.number(shard.keys_max as u64);
    image.time(shard.busy);
    shard.state.write(image);
    image.number(u64::from(!shard.ranges.is_empty()));
    image.number(shard.announced.len() as u64);
    for (worker, held) in &shard.announced {
        image.number((*worker).into());
        match held {
            Held::Keys(keys) => {
                image.number(0);
                image.list(keys);
            }
            Held::Positions(positions) => {
                image.number(1);
                image.list(positions);
            }
        }
    }
    image.real(shard.threshold);
    shard.lossy.write(image);
    image.list(shard.kept.as_flattened());
    image.list(&shard.gains);
    image.number(shard.clock);
    image.number(shard.tasks.len() as u64);
    shard.tasks.iter().for_each(|task| task.write(image));
}

/// Takes over the state that another shard has written, with the same options.
///
/// # Errors
/// The reason why it is none, or that there is no memory for it.
pub(super) fn read(shard: &mut Shard, bytes: &[u8]) -> Result<(), Refused> {
    let mut image = Reader::of(bytes);
    let most = usize::try_from(image.number()?).unwrap_or(usize::MAX);
    charge(shard.memory.set(most.max(bytes.len())))?;
    shard.keys_max = usize::try_from(image.number()?).unwrap_or(usize::MAX);
    shard.busy = image.time()?;
    shard.state.read(&mut image)?;
    let keys = shard.state.keys().len();
    let is_settled = image.number()? != 0;
    for _ in 0..image.count()? {
        let worker =
            image.number()?.try_into().map_err(|_| image::damaged("there is no such worker"))?;
        let held = match image.number()? {
            0 => held(shard, &mut image)?,
            _ => positions(&mut image, keys)?,
        };
        shard.announced.push((worker, held));
    }
    image::check(shard.announced.len() <= shard.workers, "more workers than there are")?;
    if is_settled {
        shard.ranges = shard.blocks.iter().map(|block| shard.state.locate(block)).collect();
    }
    shard.threshold = image.real()?;
    shard.lossy = Lossy::read(&mut image)?;
    shard.kept = image::pairs(image.list()?)?;
    let is_kept = shard.kept.is_empty() && !shard.lossy.sends_changes();
    image::check(is_kept || shard.kept.len() == keys, "sums of other keys")?;
    shard.gains = image.list()?;
    shard.clock = image.number()?;
    for _ in 0..image.count()? {
        let task = Task::read(&mut image, &shard.ranges)?;
        shard.tasks.push_back(task);
    }
    let has_gains = shard.tasks.is_empty() || shard.gains.len() == shard.blocks.len();
    image::check(has_gains, "gains of other blocks")?;
    image::check(shard.clock < u64::MAX / 2, "more tasks than there can be")?;
    shard.memory.release(bytes.len().saturating_sub(most));
    image.end()
}

/// Keys that a worker has announced, all of which are coordinates.
fn held(shard: &Shard, image: &mut Reader<'_>) -> Result<Held, Refused> {
    let keys = image::keys(image)?;
    let are_known = keys.iter().all(|key| shard.state.keys().binary_search(key).is_ok());
    image::check(are_known, "keys that are no coordinates").map(|()| Held::Keys(keys))
}

/// The places of those keys among all `keys`.
fn positions(image: &mut Reader<'_>, keys: usize) -> Result<Held, Refused> {
    let positions: Vec<u32> = image.list()?;
    let is_sorted = positions.is_sorted_by(|a, b| a < b);
    let are_there = positions.last().is_none_or(|last| (*last as usize) < keys);
    image::check(is_sorted && are_there, "places of other keys")?;
    Ok(Held::Positions(positions))
}

impl Task {
    fn write(&self, image: &mut Writer<'_>) {
        let Task { block, workers, missing, early, sum } = self;
        image.number(*block as u64);
        image.number(*workers as u64);
        image.list(missing);
        image.number(early.len() as u64);
        for (worker, Push { positions, gradient, curvature, active }) in early {
            image.number((*worker).into());
            image.places(positions);
            image.list(gradient);
            image.list(curvature);
            image.flags(active.iter().map(|active| u8::from(*active)));
        }
        image.number(u64::from(sum.is_some()));
        sum.iter().for_each(|sum| sum.write(image));
    }

    fn read(image: &mut Reader<'_>, ranges: &[Range<usize>]) -> Result<Task, Refused> {
        let block = usize::try_from(image.number()?).unwrap_or(usize::MAX);
        let range = ranges.get(block);
        let len = range.ok_or_else(|| image::damaged("there is no such block"))?.len();
        let workers = usize::try_from(image.number()?).unwrap_or(usize::MAX);
        let missing: Vec<u32> = image.list()?;
        image::check(missing.is_sorted_by(|a, b| a < b), "workers are not in order")?;
        let mut early = BTreeMap::new();
        for _ in 0..image.count()? {
            let worker = image
                .number()?
                .try_into()
                .map_err(|_| image::damaged("there is no such worker"))?;
            early.insert(worker, Push::read(image, len)?);
        }
        let sum = match image.number()? {
            0 => None,
            _ => Some(BlockSum::read(image, len)?),
        };
        image::check(early.is_empty() || sum.is_some(), "pushes without a sum")?;
        Ok(Task { block, workers, missing, early, sum })
    }
}

impl Push {
    /// Reads a push to a block of `len` coordinates.
    fn read(image: &mut Reader<'_>, len: usize) -> Result<Push, Refused> {
        let positions = image.places()?;
        let (gradient, curvature): (Vec<f64>, Vec<f64>) = (image.list()?, image.list()?);
        let active: Vec<bool> = image.flags()?.iter().map(|active| *active != 0).collect();
        let lengths = [gradient.len(), curvature.len(), active.len()];
        let are_there = positions.iter().all(|position| *position < len);
        image::check(are_there && lengths == [positions.len(); 3], "a push to another block")?;
        Ok(Push { positions, gradient, curvature, active })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use caravan_kv::Shard as _;
    use caravan_kv::server::{Extract, Request};
    use caravan_van::{KeyRange, Pool, Value};

    use super::*;
    use crate::copies::image::testing;
    use crate::copies::sums;
    use crate::dbpg::orders::{Command, Options};
    use crate::dbpg::scaling::Scaling;

    const KEYS: [u64; 4] = [1, 3, 12, 14];

    fn options() -> Options {
        Options {
            lambda: 1.0,
            l2: 0.5,
            free: None,
            learning_rate: 1.0,
            delta_init: 1.0,
            delta_max: 5.0,
            workers: 3,
            narrow: false,
            rounds: false,
            blocks: vec![(0, 9), (10, 19)],
            scaling: Scaling::default(),
        }
    }

    fn new() -> Shard {
        Shard::new(&options(), &Pool::new(1 << 20)).unwrap()
    }

    fn push(shard: &mut Shard, sender: u32, clock: u64, keys: &[u64]) -> Result<(), Refused> {
        let numbers: Vec<f64> = keys.iter().flat_map(|key| [-3.0 - *key as f64, 2.0]).collect();
        push_numbers(shard, sender, clock, keys, &numbers)
    }

    fn push_numbers(
        shard: &mut Shard,
        sender: u32,
        clock: u64,
        keys: &[u64],
        numbers: &[f64],
    ) -> Result<(), Refused> {
        let request = Request {
            sender,
            command: 0,
            clock,
            range: KeyRange::new(0, 100).unwrap(),
            keys,
            lengths: &vec![2; keys.len()],
            values: f64::bytes(numbers),
            pushes: true,
            pulls: false,
            rows: None,
        };
        shard.push(&request, &Pool::new(1 << 20))
    }

    fn command(shard: &mut Shard, command: &Command) -> Result<Vec<u8>, Refused> {
        shard.command(0, &serde_json::to_vec(command).unwrap())
    }

    fn pass(first: u64, lossy: Option<Lossy>) -> Command {
        Command::Pass { first, blocks: vec![0, 1], threshold: 1e20, reset: true, all: false, lossy }
    }

    #[test]
    fn nobody_waits_for_a_worker_that_has_met_a_number_that_is_not_finite() {
        let mut shard = new();
        for sender in 0..3 {
            push(&mut shard, sender, 0, &KEYS).unwrap();
        }
        command(&mut shard, &pass(1, None)).unwrap();
        push(&mut shard, 0, 1, &KEYS[..2]).unwrap();
        push(&mut shard, 2, 2, &KEYS[2..]).unwrap();
        assert_eq!(shard.clock(), 0, "pulls of task 1 wait");
        let numbers = [f64::NAN, 1.0, 0.0, 1.0];
        let error = push_numbers(&mut shard, 1, 1, &KEYS[..2], &numbers).unwrap_err();
        assert!(error.reason.contains("not a finite number"), "{error}");
        assert_eq!(shard.clock(), 2, "pulls of both tasks are answered");
        command(&mut shard, &pass(3, None)).unwrap();
    }

    /// Whatever is left of a run, none of which may panic.
    fn go_on(shard: &mut Shard) {
        for sender in 0..3 {
            let _ = push(shard, sender, 0, &KEYS);
        }
        let _ = command(shard, &pass(1, None));
        for (clock, keys) in [(1, &KEYS[..2]), (2, &KEYS[2..]), (3, &KEYS[..2])] {
            for sender in 0..3 {
                let _ = push(shard, sender, clock, keys);
            }
        }
        let _ = command(shard, &Command::Report { gains: true });
        let _ = command(shard, &Command::Set { weights: vec![(3, 0.25)] });
    }

    /// The same requests lead to the same state, from each stage of a run on: keys that some have
    /// announced, tasks that are pushed by half, one push before its turn, and between passes.
    #[test]
    fn a_copy_goes_on_as_its_original() {
        let stages: [fn(&mut Shard); 5] = [
            |_| {},
            |shard| {
                push(shard, 2, 0, &KEYS).unwrap();
                push(shard, 0, 0, &KEYS[1..]).unwrap();
            },
            |shard| {
                push(shard, 1, 0, &KEYS).unwrap();
                let lossy = r#"{"share":1.0,"threshold":0.25,"seed":7}"#;
                command(shard, &pass(1, serde_json::from_str(lossy).unwrap())).unwrap();
                push(shard, 0, 1, &KEYS[1..2]).unwrap();
                push(shard, 1, 2, &KEYS[2..]).unwrap();
            },
            |shard| {
                push(shard, 2, 1, &KEYS[..2]).unwrap();
                assert!(shard.tasks[0].early.len() == 1 && shard.tasks[0].sum.is_some());
            },
            |shard| {
                push(shard, 1, 1, &KEYS[..2]).unwrap();
                push(shard, 0, 2, &KEYS[2..]).unwrap();
                push(shard, 2, 2, &KEYS[2..]).unwrap();
                assert_eq!(shard.clock, 2);
                command(shard, &Command::Lambda { lambda: 0.5 }).unwrap();
            },
        ];
        for count in 0..stages.len() {
            let mut shard = new();
            stages[..=count].iter().for_each(|stage| stage(&mut shard));
            let mut copy = testing::restore(&testing::image(&shard), new, go_on);
            let images = [&mut shard, &mut copy].map(|shard| {
                let before = testing::image(shard);
                go_on(shard);
                shard.busy = std::time::Duration::ZERO; // which takes the time that it takes
                let after = testing::image(shard);
                assert_ne!(before, after, "stage {count}");
                after
            });
            assert_eq!(images[0], images[1], "stage {count}");
        }
    }

    /// Three workers with other columns each, one of which has filtered one: their pushes in any
    /// order, and their sum in their place, to the bit.
    #[test]
    fn a_sum_of_pushes_does_what_they_do() {
        let pool = Pool::new(1 << 20);
        for rounds in [false, true] {
            let begun = || {
                let mut shard = Shard::new(&Options { rounds, ..options() }, &pool).unwrap();
                for (sender, keys) in [(0, &KEYS[..]), (1, &KEYS[..2]), (2, &KEYS[1..])] {
                    push(&mut shard, sender, 0, keys).unwrap();
                }
                command(&mut shard, &pass(1, None)).unwrap();
                shard
            };
            let keys = [&KEYS[..2], &KEYS[..2], &KEYS[1..2]];
            let lengths = [&[2, 2][..], &[0, 2], &[2]];
            let values: [&[f64]; 3] = [&[-3.1, 0.7, 4.1, 0.3], &[0.2, 0.5], &[1e-17, 0.9]];
            let request = |worker: usize| Request {
                sender: worker as u32,
                command: 0,
                clock: 1,
                range: KeyRange::new(0, 100).unwrap(),
                keys: keys[worker],
                lengths: lengths[worker],
                values: f64::bytes(values[worker]),
                pushes: true,
                pulls: false,
                rows: None,
            };
            let parts = [2, 0, 1].map(request);
            let [first, mut copy] = sums::testing::add_up(begun(), begun, &parts);
            let state = |shard: &Shard| {
                let mut image = Vec::new();
                shard.state.write(&mut Writer::to(&mut image));
                let others = shard.memory.bytes() - shard.keys_max * super::super::PUSHED_BYTES;
                (image, shard.gains.clone(), shard.clock, others)
            };
            assert_eq!(state(&first), state(&copy));
            assert_eq!(copy.clock, 1);
            assert_ne!(copy.state.weights()[1], 0.0);
            let mut extract = Extract::default();
            assert!(first.add_up(&parts[..2], &mut extract));
            let Extract { keys, lengths, values } = extract;
            assert!(begun().take(&keys, &lengths, &values, &pool).is_err(), "one is missing");
            assert!(copy.take(&keys, &lengths, &values, &pool).is_err(), "it has stepped");
        }
    }
}
