//! Peer numbers of a transport. Numbers are reused, so that tables indexed by them stay as small as
//! the number of peers.

/// Allocates peer numbers. A peer that this side connects to always gets a new number: the layer
/// above learns it at once, possibly before it has heard of the loss of a former peer with a reused
/// one.
#[derive(Debug, Default)]
pub struct Numbers {
    next: u32,
    free: Vec<u32>,
    /// Numbers of peers that were reported lost and that the layer above has not forgotten yet.
    lost: Vec<u32>,
}

impl Numbers {
    /// A number that was never used.
    ///
    /// # Panics
    /// After 2^32 of them, which takes years.
    pub fn unused(&mut self) -> u32 {
        let number = self.next;
        self.next = number.checked_add(1).expect("4 billion connections take years");
        number
    }

    /// A number that is not in use.
    pub fn free(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| self.unused())
    }

    /// Frees the number of a connection that the layer above has not heard of, or of a peer that
    /// this side disconnected.
    pub fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Keeps the number of a lost peer until the peer is forgotten.
    pub fn lose(&mut self, number: u32) {
        self.lost.push(number);
    }

    /// Frees the number of a lost peer that is now forgotten; ignores other numbers.
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
