//! Which vans work here.

use caravan_kv::Van;
use caravan_kv::node::open;
use caravan_van::VanConfig;

/// Whether a van can be opened here.
pub(crate) fn opens(van: Van) -> caravan_kv::Result<()> {
    open(van, &VanConfig::default()).map(drop)
}
