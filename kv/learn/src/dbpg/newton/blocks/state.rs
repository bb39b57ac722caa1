//! The state of a server thread's blocks as bytes: all in which they differ from new ones.

use super::{BLOCK_COLUMNS_MAX, Block, Blocks, Scale, Stepped, Sum, Units};
use crate::copies::image::{self, Reader, Writer};
use caravan_kv::Refused;

pub(super) fn write(blocks: &Blocks, image: &mut Writer<'_>) {
    image.number(blocks.memory.bytes() as u64);
    image.time(blocks.busy);
    image.real(blocks.lambda);
    image.real(blocks.l2);
    image.number(u64::from(blocks.free.is_some()));
    image.number(blocks.free.unwrap_or_default());
    image.real(blocks.scale.up);
    image.real(blocks.scale.down);
    image.real(match blocks.units {
        Units::Own => 0.0,
        Units::Same(units) => units,
    });
    image.number(blocks.clock);
    image.number(blocks.sums.0);
    image.number(blocks.sums.1 as u64);
    image.number(blocks.stepped.len() as u64);
    for Stepped { block, distance, gain } in &blocks.stepped {
        image.number(*block as u64);
        image.real(*distance);
        image.real(*gain);
    }
    image.number(blocks.blocks.len() as u64);
    for (slot, block) in &blocks.blocks {
        image.number(*slot as u64);
        block.write(image);
    }
}

/// Takes over the state that other blocks have written.
///
/// # Errors
/// The reason why it is none, or that there is no memory for it.
pub(super) fn read(blocks: &mut Blocks, bytes: &[u8]) -> Result<(), Refused> {
    let mut image = Reader::of(bytes);
    let most = index(image.number()?);
    blocks.charge(most.max(bytes.len()))?;
    blocks.busy = image.time()?;
    blocks.lambda = image.real()?;
    blocks.l2 = image.real()?;
    let has_free = image.number()? != 0;
    let free = image.number()?;
    blocks.free = has_free.then_some(free);
    blocks.scale = Scale { up: image.real()?, down: image.real()? };
    blocks.units = match image.real()? {
        0.0 => Units::Own,
        units => Units::Same(units),
    };
    blocks.clock = image.number()?;
    blocks.sums = (image.number()?, index(image.number()?));
    for _ in 0..image.count()? {
        let block = index(image.number()?);
        blocks.stepped.push(Stepped { block, distance: image.real()?, gain: image.real()? });
    }
    for _ in 0..image.count()? {
        let slot = index(image.number()?);
        let block = Block::read(&mut image, blocks.workers)?;
        blocks.blocks.insert(slot, block);
    }
    image::check(blocks.sums.1 < usize::MAX, "more pushes than there can be")?;
    blocks.memory.release(bytes.len().saturating_sub(most));
    image.end()
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Block {
    fn write(&self, image: &mut Writer<'_>) {
        let Block { plan, penalties, iterate, curvatures, gram, entries, parts, sum, direction } =
            self;
        image.list(plan);
        image.list(penalties.as_flattened());
        image.list(iterate);
        image.list(curvatures);
        image.list(gram);
        image.list(entries);
        image.number(*parts as u64);
        image.number(sum.clock);
        image.number(sum.pushed as u64);
        image.list(&sum.numbers);
        image.list(direction);
    }

    fn read(image: &mut Reader<'_>, workers: usize) -> Result<Block, Refused> {
        let block = Block {
            plan: image.list()?,
            penalties: image::pairs(image.list()?)?,
            iterate: image.list()?,
            curvatures: image.list()?,
            gram: image.list()?,
            entries: image.list()?,
            parts: index(image.number()?),
            sum: Sum {
                clock: image.number()?,
                pushed: index(image.number()?),
                numbers: image.list()?,
            },
            direction: image.list()?,
        };
        let n = block.iterate.len();
        let entries = 2 * (n * (n + 1) / 2).div_ceil(2);
        let is_matrix = block.gram.len() == n * n && block.entries.is_empty();
        let is_sum = block.gram.is_empty() && block.entries.len() == entries;
        let is_sane = (1..=BLOCK_COLUMNS_MAX).contains(&n)
            && block.penalties.len() == n
            && block.curvatures.len() == n
            && if block.parts < workers { is_sum } else { is_matrix }
            && block.parts <= workers
            && block.sum.pushed < usize::MAX;
        image::check(is_sane, "a block with parts of another").map(|()| block)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use caravan_van::Pool;

    use super::super::Kind;
    use super::*;
    use crate::copies::image::testing;

    fn new() -> Blocks {
        Blocks::new(&serde_json::json!({ "workers": 2 }), &Pool::new(1 << 20)).unwrap()
    }

    fn go_on(blocks: &mut Blocks) {
        for clock in [7, 8] {
            for _ in 0..2 {
                let _ = blocks.put((1, 1), Kind::Gram, 0, &[1 << 20, 1 << 20]);
                let _ = blocks.put((clock, 1), Kind::Sum, 0, &[3, 4]);
            }
        }
    }

    /// The same requests lead to the same state, from each stage on: new, half a Hessian, all of
    /// it, and a step that one worker has pushed for.
    #[test]
    fn a_copy_goes_on_as_its_original() {
        let bits = |number: f64| number.to_bits() as i64;
        let plan = [3, bits(0.5), bits(2.0), 4, bits(-0.25), bits(1.0)];
        let gram = [1 << 20, 1 << 20];
        let stages: [&dyn Fn(&mut Blocks); 5] = [
            &|_| {},
            &|blocks| {
                blocks.begin(0.5, 0.25, Some(4), Scale::new(100, 10.0), Units::Same(1024.0));
                blocks.put((1, 1), Kind::Plan, 0, &plan).unwrap();
                blocks.put((1, 1), Kind::Gram, 0, &gram).unwrap();
            },
            &|blocks| {
                blocks.put((1, 1), Kind::Gram, 0, &gram).unwrap();
                blocks.put((2, 1), Kind::Step, 0, &[9 << 30, 1]).unwrap();
            },
            &|blocks| {
                blocks.put((2, 1), Kind::Step, 0, &[1, -9 << 30]).unwrap();
                blocks.put((5, 1), Kind::Sum, 0, &[5, 6]).unwrap();
                assert!(blocks.clock == 2 && blocks.stepped.len() == 1);
            },
            &|blocks| blocks.begin(0.5, 0.0, None, Scale::new(100, 10.0), Units::Own),
        ];
        for count in 0..stages.len() {
            let mut blocks = new();
            stages[..=count].iter().for_each(|stage| stage(&mut blocks));
            let mut copy = testing::restore(&testing::image(&blocks), new, go_on);
            let images = [&mut blocks, &mut copy].map(|blocks| {
                go_on(blocks);
                testing::image(blocks)
            });
            assert_eq!(images[0], images[1], "stage {count}");
        }
    }
}
