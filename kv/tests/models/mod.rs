//! Goal: every consistency model admits exactly the histories that its papers allow, whatever order
//! its calls come in. Method: all schedules of small programs are walked through the real
//! controllers and counted; the same number must follow from the papers' formulas, counted without
//! a controller. Faults that such code is known for are built into a second state machine, and each
//! must be found, by the same checks and in whole clusters.

mod any_calls;
mod clusters;
mod counts;
mod mutants;
mod program;
mod sparse;
