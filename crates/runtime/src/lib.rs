//! Spaces that run a built graph: walk, rings between spaces, replicas, ledger. [SL §6.2, §7]
//!
//! In: spaces, each with nodes, arcs, memory and inputs. Out: counters, and the reason why a path
//! ended early. Nothing here knows plans, kernel programs, records or daemons: they build the
//! graph, send commands to its spaces, and connect to its ports.
//!
//! - [`space`]: a thread, its memory, and the part of the graph that runs in it;
//! - [`ring`]: the two ends of an edge between spaces;
//! - [`copies`]: replicas of filters that share work;
//! - [`commands`]: closures that a space executes between two passes;
//! - [`control`]: stopping, and asking sources how far they are;
//! - [`process`]: programs in a path, and the demand for blocks;
//! - [`latency`]: how long blocks are under way;
//! - [`ledger`]: what was counted, and whether it balances; [`report`]: from counters to it;
//! - [`failure`]: why a path ended early.
//!
//! Ports that whoever builds a graph may implement: sources and sinks (`endpoint`),
//! [`space::observe::Observer`] for what looks at blocks on their way, and
//! [`space::events::Journal`] and [`space::events::Script`] for what writes a run down or repeats
//! one.
#![forbid(unsafe_code)]

pub mod commands;
pub mod control;
pub mod copies;
pub mod failure;
pub mod latency;
pub mod ledger;
pub mod process;
pub mod report;
pub mod ring;
pub mod space;
