//! The list of tables in this network namespace, as the kernel reports them.

use crate::name::{Address, Error, Visit, holder};
use std::collections::BTreeMap;

/// Names of tables, those that may not be opened, too, and where to look for each.
#[derive(Debug)]
pub struct Names(BTreeMap<(u32, String), (Address, Vec<String>)>);

impl Names {
    /// Lists the current names.
    pub fn list() -> std::io::Result<Self> {
        let mut names: BTreeMap<_, (Address, Vec<String>)> = BTreeMap::new();
        for socket in holder::sockets()? {
            let Some((address, _)) = Address::of_socket(&socket).filter(|(of, _)| of.is_state())
            else {
                continue;
            };
            let key = (address.uid(), address.name().to_owned());
            names.entry(key).or_insert_with(|| (address, Vec::new())).1.push(socket);
        }
        Ok(Self(names))
    }

    /// Their addresses, sorted.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.0.values().map(|(address, _)| address)
    }

    /// Asks the process that has this name what it is; waits for nothing.
    pub fn visit(&self, address: &Address) -> Result<Visit, Error> {
        let known = self.0.get(&(address.uid(), address.name().to_owned()));
        Visit::among(address, known.map_or(&[], |(_, sockets)| sockets.as_slice()))
    }
}
