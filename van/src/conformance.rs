//! The contract of [`Transport`](crate::Transport) as generic tests: what every backend has to
//! pass.
//!
//! Each test drives both, or all, ends from one thread, through nothing but the contract. `make`
//! builds one node from a config; a backend adds what it needs (a wait policy, the network it is
//! on). Time is the transport's own, so that virtual time works. In the tests of a backend:
//!
//! ```text
//! caravan_van::conformance!(|config| Tcp::new(&config).expect("a free port"));
//! ```
//!
//! For a simulated network the expression makes a new network each time and a closure that adds
//! nodes to it.

#![allow(clippy::unwrap_used, reason = "these are tests, and their library")]

mod abuse;
mod carry;
mod crowd;
mod frames;
mod net;
mod strangers;

pub use abuse::*;
pub use carry::*;
pub use crowd::*;
pub use frames::*;
pub use net::{Net, Written, fill};
pub use strangers::*;

/// Makes a `#[test]` of every part of the contract, for the van that the expression makes from a
/// config.
#[macro_export]
macro_rules! conformance {
    ($make:expr) => {
        $crate::conformance_tests! { $make;
            says_hello
            strangers_are_refused
            a_node_that_does_not_accept_connects
            nobody_there_is_reported
            reconnects_under_a_new_number
            frames_of_all_lengths_arrive_whole
            too_long_a_frame_is_refused
            a_full_queue_is_an_error_and_recovers
            frames_and_writes_arrive_in_the_order_of_posting
            writes_land_in_the_memory_that_was_offered
            parts_of_a_write_arrive_back_to_back
            both_directions_at_once_do_not_block_each_other
            random_sizes_add_up
            memory_comes_home
            copies_leave_their_memory_to_the_caller
            a_copy_is_handed_back_and_nothing_has_happened
            all_that_is_posted_arrives_in_the_order_of_posting
            lent_values_are_read_where_they_lie
            so_much_is_lent_and_no_more
            loans_outlive_the_lane_while_they_are_read
            loans_to_a_lost_peer_come_home
            many_peers_are_served_alike
            waiting_for_nothing_ends
            waiting_ends_with_an_event
            withdrawn_memory_is_out_of_reach
            a_local_write_past_an_offer_is_refused
            a_second_write_to_an_offer_loses_the_writer
            a_write_past_an_offer_loses_the_writer
            a_write_into_somebody_elses_offer_loses_the_writer
            a_lost_peer_is_reported_once
            what_was_posted_to_a_lost_peer_comes_home
            disconnecting_forgets
        }
    };
}

/// Makes a `#[test]` of what a van over sockets owes besides, for the van that the expression makes
/// from a config.
#[macro_export]
macro_rules! socket_conformance {
    ($make:expr) => {
        $crate::conformance_tests! { $make;
            a_recorded_handshake_gets_nobody_in
            who_proves_himself_and_misbehaves_at_once_is_lost
            half_open_connections_cost_little
            a_flood_of_resets_keeps_nobody_out
        }
    };
}

/// One `#[test]` a name; see [`conformance!`](crate::conformance!).
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::conformance::$name($make);
            }
        )*
    };
}
