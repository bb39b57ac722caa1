//! The numbers that a transport gives to its peers: used again, so that tables by number stay as small as there are peers.

/// Who has which number. Numbers of peers that this side connects to are new ones: the layer above learns such a number before it
/// has heard all that there is to say of one that had it before.
#[derive(Debug, Default)]
pub struct Numbers {
    next: u32,
    free: Vec<u32>,
    /// Of peers that were reported lost, and that the layer above has not forgotten yet.
    lost: Vec<u32>,
}

impl Numbers {
    /// One that nobody has had.
    ///
    /// # Panics
    /// After 2^32 of them, which takes years.
    pub fn unused(&mut self) -> u32 {
        let number = self.next;
        self.next = number.checked_add(1).expect("4 billion connections take years");
        number
    }

    /// One that nobody has.
    pub fn free(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| self.unused())
    }

    /// Takes back the number of a connection that nobody above has heard of, or of a peer that this side has disconnected while
    /// it was there.
    pub fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Keeps the number of a peer that is reported lost until that is forgotten.
    pub fn lose(&mut self, number: u32) {
        self.lost.push(number);
    }

    /// Takes back the number of a lost peer that is forgotten; others are left alone.
    pub fn forget(&mut self, number: u32) {
        if let Some(at) = self.lost.iter().position(|&lost| lost == number) {
            self.free.push(self.lost.swap_remove(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_once_they_are_forgotten() {
        let mut numbers = Numbers::default();
        let (a, b) = (numbers.free(), numbers.free());
        numbers.give_back(a);
        assert_ne!(numbers.unused(), a, "who is called has a new number");
        assert_eq!(numbers.free(), a);
        numbers.lose(b);
        assert_ne!(numbers.free(), b, "its loss may not have been heard of");
        numbers.forget(b);
        numbers.forget(b);
        assert_eq!(numbers.free(), b);
        assert_ne!(numbers.free(), b, "it is free once");
    }
}
