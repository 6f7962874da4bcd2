//! The published state of filters (`state=NAME`), as text for programs.

use engine::published::{Address, Error, TableNames, TableReader};
use member::client::mask_hidden_characters;
use member::gather::gather_answers;
use std::ops::ControlFlow;
use std::time::Duration;

/// Returns the state that a filter of the user `uid` publishes under a name: a line with the column
/// names, and a line for each row, with tabs between the columns. Fails with the reason if there is
/// no such state, or if the filter's process does not reply within `limit`.
pub fn read_published_state(uid: u32, name: &str, limit: Duration) -> Result<String, String> {
    let names = TableNames::list().map_err(|why| format!("/proc/net/unix: {why}"))?;
    let full = format!("{uid}/{name}");
    let address = names.addresses().find(|address| address.to_string() == full);
    let address: Address = address.cloned().ok_or("its state has ended")?;
    let answers = gather_answers(
        &[(uid, address.clone())],
        limit,
        |address| names.begin_request(address).map_err(|error| Box::new(Err(error))),
        |address, request| {
            ControlFlow::Break(Box::new(TableReader::from_request(request, address)))
        },
    );
    let reader = match answers.into_iter().next().flatten() {
        Some(reader) => *reader,
        None => Err(Error::Silent(address)),
    };
    let reader = reader.map_err(|why| why.to_string())?;
    let columns = reader.shape().columns.iter().map(|column| mask_hidden_characters(&column.name));
    let mut lines = vec![columns.collect::<Vec<_>>().join("\t")];
    for row in reader.snapshot().rows {
        lines.push(row.iter().map(u64::to_string).collect::<Vec<_>>().join("\t"));
    }
    Ok(lines.join("\n") + "\n")
}
