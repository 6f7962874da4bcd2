//! Execution of a graph in spaces: walks, rings between spaces, replicas and the ledger. [SL §6.2,
//! §7]
//!
//! The input consists of spaces, each with nodes, arcs, memory and inputs. The output consists of
//! counters, and of the failure if one ended a path early. The crate contains no planner, kernel
//! programs, records or daemon. Other crates build the graph, send commands to its spaces, and
//! connect to its ports.
//!
//! - [`space`]: one thread's part of a graph, with its memory;
//! - [`ring`]: the two ends of an edge between spaces;
//! - [`replicas`]: replicas of filters that share work;
//! - [`commands`]: closures that a space executes between two passes; [`status`]: facts about a
//!   space that other threads read without a command;
//! - [`control`]: stop requests, and positions of sources;
//! - [`demand`]: nodes that still accept blocks;
//! - [`latency`]: measured delay of blocks;
//! - [`counters`]: counters of one space; [`ledger`]: counters of a path and their balance;
//!   [`report`]: the ledger built from counters;
//! - [`failure`]: failures that end a path early.
//!
//! Ports for code that builds a graph: sources and sinks (`endpoint`), [`space::observe::Observer`]
//! for observers of blocks, [`space::events::Journal`] and [`space::events::EventReader`] for
//! recording and replay.
#![forbid(unsafe_code)]

pub mod commands;
pub mod control;
pub mod counters;
pub mod demand;
pub mod failure;
pub mod latency;
pub mod ledger;
pub mod replicas;
pub mod report;
mod retired;
pub mod ring;
pub mod space;
pub mod status;
