//! The start of every call.

use crate::cni::Network;
use crate::confine;
use crate::node::Node;

/// Starts the log, and gives up what neither a call nor a plugin that it starts does.
pub fn started(node: Node, network: &Network) -> Node {
    node.start_log(network);
    if node.confine {
        confine::cni();
    }
    node
}
