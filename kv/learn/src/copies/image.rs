//! The state of a shard as bytes, for its copies on other servers: lists and numbers, one after the
//! other, in the byte order of messages.
//!
//! What is read was written by another server. A list says how long it is, and a reader takes no
//! longer one than there are bytes; whoever reads checks what the numbers mean.

use caravan_kv::{Refusal, Refused};
use std::time::Duration;

use caravan_van::Value;

/// Writes an image, or counts its bytes.
pub(crate) struct Writer<'a> {
    len: usize,
    into: Option<&'a mut Vec<u8>>,
}

impl<'a> Writer<'a> {
    /// One that appends to `into`.
    pub(crate) fn to(into: &'a mut Vec<u8>) -> Self {
        Writer { len: 0, into: Some(into) }
    }

    /// The number of bytes that `write` writes.
    pub(crate) fn count(write: impl FnOnce(&mut Writer<'_>)) -> usize {
        let mut writer = Writer { len: 0, into: None };
        write(&mut writer);
        writer.len
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        if let Some(into) = &mut self.into {
            into.extend_from_slice(bytes);
        }
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.raw(&number.to_le_bytes());
    }

    pub(crate) fn real(&mut self, real: f64) {
        self.number(real.to_bits());
    }

    pub(crate) fn list<V: Value>(&mut self, list: &[V]) {
        self.number(list.len() as u64);
        self.raw(V::bytes(list));
    }

    pub(crate) fn flags(&mut self, flags: impl ExactSizeIterator<Item = u8>) {
        self.number(flags.len() as u64);
        match &mut self.into {
            None => self.len += flags.len(),
            Some(into) => into.extend(flags),
        }
    }

    pub(crate) fn places(&mut self, places: &[usize]) {
        self.number(places.len() as u64);
        places.iter().for_each(|place| self.number(*place as u64));
    }

    pub(crate) fn time(&mut self, time: Duration) {
        self.number(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// Reads an image.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn of(image: &'a [u8]) -> Self {
        Reader(image)
    }

    fn raw(&mut self, len: u64, bytes: usize) -> Result<&'a [u8], Refused> {
        let len = usize::try_from(len).ok().and_then(|len| len.checked_mul(bytes));
        let split = len.and_then(|len| self.0.split_at_checked(len));
        let (bytes, rest) = split.ok_or_else(cut_off)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Refused> {
        let bytes = self.raw(1, 8)?.try_into().map_err(|_| cut_off())?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The number of things that follow, each of which takes 8 bytes or more.
    pub(crate) fn count(&mut self) -> Result<usize, Refused> {
        let count = self.number()?;
        let most = (self.0.len() / 8) as u64;
        if count > most { Err(cut_off()) } else { Ok(count as usize) }
    }

    pub(crate) fn real(&mut self) -> Result<f64, Refused> {
        self.number().map(f64::from_bits)
    }

    pub(crate) fn list<V: Value>(&mut self) -> Result<Vec<V>, Refused> {
        let len = self.number()?;
        let bytes = self.raw(len, V::BYTES)?;
        let mut list = vec![V::default(); bytes.len() / V::BYTES];
        V::bytes_mut(&mut list).copy_from_slice(bytes);
        Ok(list)
    }

    pub(crate) fn flags(&mut self) -> Result<&'a [u8], Refused> {
        let len = self.number()?;
        self.raw(len, 1)
    }

    pub(crate) fn places(&mut self) -> Result<Vec<usize>, Refused> {
        let places = self.list::<u64>()?.into_iter().map(usize::try_from);
        places.collect::<Result<_, _>>().map_err(|_| cut_off())
    }

    pub(crate) fn time(&mut self) -> Result<Duration, Refused> {
        self.number().map(Duration::from_nanos)
    }

    /// Checks that nothing is left.
    pub(crate) fn end(self) -> Result<(), Refused> {
        match self.0 {
            [] => Ok(()),
            rest => Err(Refusal::Internal
                .because(format!("{} bytes are behind the image of a shard", rest.len()))),
        }
    }
}

/// The methods of [`caravan_kv::Shard`] for one whose state `$write` writes and `$read` reads.
macro_rules! methods {
    ($write:path, $read:path) => {
        fn image_bytes(&self) -> Option<usize> {
            Some($crate::copies::image::Writer::count(|image| $write(self, image)))
        }

        fn image(&self, image: &mut Vec<u8>) {
            $write(self, &mut $crate::copies::image::Writer::to(image));
        }

        fn restore(&mut self, image: &[u8], _memory: &caravan_van::Pool) -> Result<(), Refused> {
            $read(self, image)
        }
    };
}
pub(crate) use methods;

/// The refusal of an image that says what no shard is.
pub(crate) fn damaged(what: &str) -> Refused {
    Refusal::Internal.because(format!("the image of a shard is damaged: {what}"))
}

fn cut_off() -> Refused {
    Refusal::Internal.because("the image of a shard is cut off")
}

/// Checks what an image says.
pub(crate) fn check(is_so: bool, what: &str) -> Result<(), Refused> {
    match is_so {
        true => Ok(()),
        false => Err(damaged(what)),
    }
}

/// Pairs of numbers.
pub(crate) fn pairs<V: Value>(list: Vec<V>) -> Result<Vec<[V; 2]>, Refused> {
    let (pairs, rest) = list.as_chunks::<2>();
    check(rest.is_empty(), "half a pair")?;
    Ok(pairs.to_vec())
}

/// Keys, strictly ascending.
pub(crate) fn keys(reader: &mut Reader<'_>) -> Result<Vec<u64>, Refused> {
    let keys: Vec<u64> = reader.list()?;
    check(keys.is_sorted_by(|a, b| a < b), "keys are not in order")?;
    Ok(keys)
}

/// Tests of the images of shards.
#[cfg(test)]
pub(crate) mod testing {
    use caravan_kv::Shard;
    use caravan_van::Pool;

    /// The image of a shard.
    pub(crate) fn image(shard: &impl Shard) -> Vec<u8> {
        let mut image = Vec::new();
        shard.image(&mut image);
        assert_eq!(shard.image_bytes(), Some(image.len()));
        image
    }

    /// Restores an image into new shards whole, cut off anywhere, and with each byte changed: none
    /// panics, and what is whole has the same image again. `use_it` then uses what was restored.
    pub(crate) fn restore<S: Shard>(
        image: &[u8],
        new: impl Fn() -> S,
        use_it: impl Fn(&mut S),
    ) -> S {
        let pool = Pool::new(1 << 24);
        let mut copy = new();
        assert_eq!(copy.restore(image, &pool), Ok(()));
        assert_eq!(self::image(&copy), image);
        for len in 0..image.len() {
            assert!(new().restore(&image[..len], &pool).is_err(), "cut off at {len}");
        }
        assert!(new().restore(&[image, &[0]].concat(), &pool).is_err());
        for at in 0..image.len() {
            for change in [1, 0x80, 0xff] {
                let mut damaged = image.to_vec();
                damaged[at] ^= change;
                let mut shard = new();
                if shard.restore(&damaged, &pool).is_ok() {
                    use_it(&mut shard);
                }
            }
        }
        copy
    }
}
