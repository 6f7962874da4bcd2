//! The nodes and edges of a path's plan, which change only when the path runs a different request.

use crate::live::LiveFigures;
use serde::Serialize;
use streamline::paths::{self, ClientError, NodeDetails, PathDescription};

/// The description of a path, with the placement of its nodes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PathPlan {
    /// The path, with the spaces of its nodes and the transports of its edges.
    pub path: PathDescription,
    /// The nodes in the same order as in `path`, with the reasons for their placement.
    pub nodes: Vec<NodeDetails>,
}

impl PathPlan {
    /// Queries a path for its plan. Blocks until the path has replied, for a limited time.
    pub fn query(live: &LiveFigures, number: u32) -> Result<Self, ClientError> {
        let client = live.connect()?;
        let (to, path) = client.connect_and_describe(&number.to_string())?;
        let (_, nodes) = paths::query_node_details(&to)?;
        Ok(Self { path, nodes })
    }
}
