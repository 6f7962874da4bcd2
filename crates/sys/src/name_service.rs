//! What this machine's C library knows of names: hosts, networks, services, protocols, link
//! addresses, from wherever its name service switch looks (nsswitch.conf(5)).
//!
//! libpcap asks the same functions, so a name means here what it means to tcpdump.

use std::ffi::{CStr, CString, c_char, c_int};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};

/// `struct netent` of netdb.h.
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

/// The C library answers from memory of its own, which the next question overwrites.
static ASKING: Mutex<()> = Mutex::new(());

/// The addresses of a host, or why there are none. A name server may be asked, which takes its
/// time.
pub fn host(name: &str) -> Result<Vec<IpAddr>, String> {
    let found = (name, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    let mut addresses = Vec::new();
    for address in found.map(|address| address.ip()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

/// The number of a network in /etc/networks: up to four bytes, at the right end.
pub fn network(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let _one_at_a_time = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the name is a C string; what comes is null or lives until the next call.
    let found = unsafe { getnetbyname(name.as_ptr()) };
    // SAFETY: getnetbyname(3): not null, it points to a `struct netent`; no other call is made
    // meanwhile.
    let found = unsafe { found.as_ref() }?;
    Some(found.number)
}

/// The link address of a host in /etc/ethers.
pub fn ethernet(name: &str) -> Option<[u8; 6]> {
    let name = CString::new(name).ok()?;
    let mut address = [0; 6];
    let _one_at_a_time = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: ether_hostton(3): reads a C string, writes six bytes.
    let failed = unsafe { ether_hostton(name.as_ptr(), &raw mut address) };
    (failed == 0).then_some(address)
}

/// The port of a service over a transport, `tcp` or `udp`.
pub fn port(name: &str, transport: &CStr) -> Option<u16> {
    let name = CString::new(name).ok()?;
    let _one_at_a_time = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: both are C strings; what comes is null or lives until the next call.
    let found = unsafe { libc::getservbyname(name.as_ptr(), transport.as_ptr()) };
    // SAFETY: getservbyname(3): not null, it points to a `struct servent`; no other call is made
    // meanwhile.
    let found = unsafe { found.as_ref() }?;
    // The port stands in network byte order in the low half of an int.
    u16::try_from(found.s_port).ok().map(u16::from_be)
}

/// The number of an IP protocol.
pub fn protocol(name: &str) -> Option<u8> {
    let name = CString::new(name).ok()?;
    let _one_at_a_time = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the name is a C string; what comes is null or lives until the next call.
    let found = unsafe { libc::getprotobyname(name.as_ptr()) };
    // SAFETY: getprotobyname(3): not null, it points to a `struct protoent`; no other call is made
    // meanwhile.
    let found = unsafe { found.as_ref() }?;
    u8::try_from(found.p_proto).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn names_that_every_machine_has_and_names_that_none_has() {
        assert!(host("127.0.0.1").unwrap().contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(host("no such name").is_err());
        let no = "no-such-name-anywhere";
        assert_eq!((network(no), ethernet(no), port(no, c"tcp"), protocol(no)), Default::default());
        // A machine without /etc/services or /etc/protocols answers nothing.
        assert!(matches!(port("ssh", c"tcp"), Some(22) | None));
        assert!(matches!(protocol("icmp"), Some(1) | None));
        assert_eq!(network("a\0b"), None);
    }
}
