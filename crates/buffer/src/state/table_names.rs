//! A list of the tables in this network namespace, derived from the kernel's list of sockets.

use crate::name::{Address, Error, OpenRequest, socket_owner};
use std::collections::BTreeMap;

/// Names of all tables and their sockets, including tables that this user may not open.
#[derive(Debug)]
pub struct TableNames(BTreeMap<(u32, String), (Address, Vec<String>)>);

impl TableNames {
    /// Reads the names of the current tables from the kernel's list of sockets.
    pub fn list() -> std::io::Result<Self> {
        let mut names: BTreeMap<_, (Address, Vec<String>)> = BTreeMap::new();
        for socket in socket_owner::listening_sockets()? {
            let Some((address, _)) =
                Address::parse_socket_name(&socket).filter(|(of, _)| of.is_state())
            else {
                continue;
            };
            let key = (address.uid(), address.name().to_owned());
            names.entry(key).or_insert_with(|| (address, Vec::new())).1.push(socket);
        }
        Ok(Self(names))
    }

    /// Iterates over the addresses of all tables, sorted.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.0.values().map(|(address, _)| address)
    }

    /// Starts a request to the process that holds this name. Does not block.
    pub fn begin_request(&self, address: &Address) -> Result<OpenRequest, Error> {
        let known = self.0.get(&(address.uid(), address.name().to_owned()));
        OpenRequest::begin_at(address, known.map_or(&[], |(_, sockets)| sockets.as_slice()))
    }
}
