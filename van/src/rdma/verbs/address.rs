//! Socket addresses in C form.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::bindings as ffi;

/// A socket address in C form.
pub(super) enum RawAddress {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl RawAddress {
    /// For calls, which only read it. Valid while `self` does not move.
    pub(super) fn as_ptr(&self) -> *mut ffi::sockaddr {
        match self {
            RawAddress::V4(address) => (&raw const *address).cast_mut().cast(),
            RawAddress::V6(address) => (&raw const *address).cast_mut().cast(),
        }
    }
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> RawAddress {
        match address {
            SocketAddr::V4(address) => RawAddress::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: address.ip().to_bits().to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(address) => RawAddress::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            }),
        }
    }
}

/// Converts a C address; `None` if it is not an IP address.
///
/// # Safety
/// `address` points to an address as long as its family requires.
pub(super) unsafe fn from_raw(address: *const ffi::sockaddr) -> Option<SocketAddr> {
    // SAFETY: every address begins with its family.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family tells the address's type.
            let raw = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from_bits(u32::from_be(raw.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family tells the address's type.
            let raw = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for text in ["10.1.2.3:4567", "[fe80::1%3]:80", "0.0.0.0:0", "[2001:db8::7]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let raw = RawAddress::from(address);
            // SAFETY: `raw` is such an address.
            assert_eq!(unsafe { from_raw(raw.as_ptr()) }, Some(address));
        }
        let other = libc::sockaddr { sa_family: 27, sa_data: [0; 14] };
        // SAFETY: `other` is an address of a family that is not read further.
        assert_eq!(unsafe { from_raw((&raw const other).cast()) }, None);
    }
}
