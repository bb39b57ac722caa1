//! Placeholder front page.
