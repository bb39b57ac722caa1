//! Views of foreign memory. Each has a number, which is returned when its last part is dropped. The
//! next view reuses its slot, so that a borrow allocates nothing.
//!
//! Path: worker > slicer > filter > message > **memory** > endpoint > transport.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Home, Lendable, Part, Shared, Slot};

/// The views that one lane has borrowed.
#[derive(Default)]
pub(crate) struct Views(Rc<Slots>);

/// Slots of ended views.
#[derive(Default)]
pub(super) struct Slots {
    /// Those whose numbers have not been taken yet.
    back: RefCell<Vec<Rc<Slot>>>,
    /// Those whose numbers have been taken, ready for reuse.
    spare: RefCell<Vec<Rc<Slot>>>,
}

impl Slots {
    pub(super) fn put_back(&self, slot: Rc<Slot>) {
        self.back.borrow_mut().push(slot);
    }
}

impl Views {
    /// View `number`: the `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they reach past the end.
    pub(crate) fn view(&self, of: &Lendable, (offset, len): (usize, usize), number: u64) -> Shared {
        let spare = self.0.spare.borrow_mut().pop();
        let home = Home::Views(Rc::downgrade(&self.0), number);
        let view = Slot::cut(of.0.clone(), offset, len, home);
        let slot = match spare {
            Some(mut slot) => {
                *Rc::get_mut(&mut slot).expect("nothing else is left of it") = view;
                slot
            }
            None => Rc::new(view),
        };
        Shared(Part::new(slot, len))
    }

    /// Whether the number of an ended view can be taken.
    #[inline]
    pub(crate) fn has_returned(&self) -> bool {
        !self.0.back.borrow().is_empty()
    }

    /// Takes the number of an ended view, each once.
    pub(crate) fn take_returned(&self) -> Option<u64> {
        let slot = self.0.back.borrow_mut().pop()?;
        let Home::Views(_, number) = slot.home else {
            unreachable!("only views come home to others")
        };
        self.0.spare.borrow_mut().push(slot);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::ptr::NonNull;
    use std::rc::Weak;

    use super::*;
    use crate::memory::Region;

    /// `len` ascending bytes, and a handle that tells whether they are still kept.
    fn lendable(len: u8) -> (Lendable, Weak<Vec<u8>>) {
        let bytes = Rc::new((0..len).collect::<Vec<u8>>());
        let (base, kept) = (NonNull::from(&bytes[..]).cast(), Rc::downgrade(&bytes));
        (Lendable(Rc::new(Region::new(base, len.into(), false, Box::new(bytes)))), kept)
    }

    #[test]
    fn a_number_comes_back_once_when_the_last_part_is_dropped() {
        let ((of, _), views) = (lendable(100), Views::default());
        let (first, second) = (views.view(&of, (8, 4), 1), views.view(&of, (96, 4), 2));
        assert_eq!((&first[..], &second[..]), (&[8, 9, 10, 11][..], &[96, 97, 98, 99][..]));
        let part = first.slice(1..2);
        drop(first);
        assert!(!views.has_returned(), "a part of it is left");
        drop((part, second));
        assert!(views.has_returned());
        assert_eq!([(); 3].map(|()| views.take_returned()), [Some(2), Some(1), None]);
    }

    #[test]
    fn a_slot_that_is_used_again_is_the_new_view_s() {
        let ((of, kept), (other, _), views) = (lendable(10), lendable(20), Views::default());
        drop(views.view(&of, (0, 10), 1));
        assert_eq!(views.take_returned(), Some(1));
        let allocated = allocation_counter::measure(|| {
            let view = views.view(&other, (16, 4), 2);
            assert_eq!(view[..], [16, 17, 18, 19]);
            assert!(view.reclaim().is_err(), "nobody may write it");
        });
        assert_eq!((allocated.count_total, views.take_returned()), (0, Some(2)));
        drop(of);
        assert!(kept.upgrade().is_none(), "no slot keeps what it was of before");
    }

    #[test]
    fn a_view_keeps_the_memory_when_all_else_is_gone() {
        let ((of, kept), views) = (lendable(10), Views::default());
        let view = views.view(&of, (0, 10), 1);
        drop((of, views));
        assert!(kept.upgrade().is_some() && view[9] == 9);
        drop(view);
        assert!(kept.upgrade().is_none());
    }

    #[test]
    #[should_panic(expected = "lies in its arena")]
    fn nothing_past_the_end_is_viewed() {
        let ((of, _), views) = (lendable(10), Views::default());
        views.view(&of, (8, 3), 1);
    }
}
