//! Lookups in the C library's name databases: hosts, networks, services, protocols, Ethernet
//! addresses, through the name service switch (nsswitch.conf(5)).
//!
//! libpcap calls the same functions, so names resolve as in tcpdump.

use std::ffi::{CStr, CString, c_char, c_int};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};

/// `struct netent` (netdb.h).
#[repr(C)]
struct Netent {
    name: *mut c_char,
    aliases: *mut *mut c_char,
    family: c_int,
    number: u32,
}

unsafe extern "C" {
    fn getnetbyname(name: *const c_char) -> *mut Netent;
    fn ether_hostton(name: *const c_char, address: *mut [u8; 6]) -> c_int;
}

/// Serializes lookups: the C library returns static memory that the next lookup overwrites.
static LOOKUP_LOCK: Mutex<()> = Mutex::new(());

/// Resolves a host name to its addresses, without duplicates. Blocks while name servers are
/// queried.
pub fn find_host(name: &str) -> Result<Vec<IpAddr>, String> {
    let found = (name, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    let mut addresses = Vec::new();
    for address in found.map(|address| address.ip()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

/// Returns the number of a network (networks(5)), or `None` if the name is unknown. Networks of
/// fewer than four bytes are right-aligned: 10 stands for 10.0.0.0.
pub fn find_network(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let _one_at_a_time = LOOKUP_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the name is a C string; the result is null or valid until the next lookup (lock
    // held).
    let found = unsafe { getnetbyname(name.as_ptr()) };
    // SAFETY: getnetbyname(3): if not null it points to a `struct netent`; the lock excludes
    // another lookup.
    let found = unsafe { found.as_ref() }?;
    Some(found.number)
}

/// Returns the Ethernet address of a host (ethers(5)); `None` if the name is unknown.
pub fn find_ethernet_address(name: &str) -> Option<[u8; 6]> {
    let name = CString::new(name).ok()?;
    let mut address = [0; 6];
    let _one_at_a_time = LOOKUP_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: ether_hostton(3): reads a C string, writes six bytes.
    let failed = unsafe { ether_hostton(name.as_ptr(), &raw mut address) };
    (failed == 0).then_some(address)
}

/// Returns the port of a service over `transport`, either `tcp` or `udp`; `None` if the name is
/// unknown.
pub fn find_port(name: &str, transport: &CStr) -> Option<u16> {
    let name = CString::new(name).ok()?;
    let _one_at_a_time = LOOKUP_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: both are C strings; the result is null or valid until the next lookup (lock held).
    let found = unsafe { libc::getservbyname(name.as_ptr(), transport.as_ptr()) };
    // SAFETY: getservbyname(3): if not null it points to a `struct servent`; the lock excludes
    // another lookup.
    let found = unsafe { found.as_ref() }?;
    // `s_port` holds network byte order in the low half of an int.
    u16::try_from(found.s_port).ok().map(u16::from_be)
}

/// Returns the number of an IP protocol (protocols(5)); `None` if the name is unknown.
pub fn find_protocol(name: &str) -> Option<u8> {
    let name = CString::new(name).ok()?;
    let _one_at_a_time = LOOKUP_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the name is a C string; the result is null or valid until the next lookup (lock
    // held).
    let found = unsafe { libc::getprotobyname(name.as_ptr()) };
    // SAFETY: getprotobyname(3): if not null it points to a `struct protoent`; the lock excludes
    // another lookup.
    let found = unsafe { found.as_ref() }?;
    u8::try_from(found.p_proto).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn name_service_resolves_known_names_only() {
        assert!(find_host("127.0.0.1").unwrap().contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(find_host("no such name").is_err());
        let no = "no-such-name-anywhere";
        assert_eq!(
            (find_network(no), find_ethernet_address(no), find_port(no, c"tcp"), find_protocol(no)),
            Default::default()
        );
        // Machines without /etc/services or /etc/protocols return `None`.
        assert!(matches!(find_port("ssh", c"tcp"), Some(22) | None));
        assert!(matches!(find_protocol("icmp"), Some(1) | None));
        assert_eq!(find_network("a\0b"), None);
    }
}
