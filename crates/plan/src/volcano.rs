//! HyperNodes of Volcano (topology.volcano.sh/v1alpha1), by which its scheduler keeps the pods of a
//! job close to each other. The form is that of volcano.sh/apis 1.12: `tier` is a number, and a
//! member is selected by its exact name.

use anyhow::Result;

use crate::groups::{Below, Switch, switches};
use crate::manifest::not_of_nodes;
use crate::plan::{File, Plan, is_object_name};
use crate::yaml::scalar;
use rail_cni::fail;

/// Writes one file: a HyperNode for each leaf group, and for what is above them.
pub fn write(plan: &Plan) -> Result<Vec<File>> {
    if let Some(names) = not_of_nodes(plan) {
        fail!(
            InvalidConfig,
            "{names}, and a HyperNode names nodes as the cluster does: correct the plan"
        );
    }
    let mut text =
        "# The fabric for Volcano: kubectl apply -f. The lower the tier, the closer the nodes.\n"
            .to_owned();
    for Switch { name, tier, below } in switches(plan)? {
        if !is_object_name(&name) {
            fail!(
                InvalidConfig,
                "leaf group {name}: Kubernetes names have only lowercase letters, digits, - and \
                    .: rename the leaf"
            );
        }
        text.push_str(&format!(
            "---\napiVersion: topology.volcano.sh/v1alpha1\nkind: HyperNode\nmetadata:\n  name: {}\nspec:\n  tier: {tier}\n  \
             members:\n",
            scalar(&name)
        ));
        let (kind, members) = match &below {
            Below::Nodes(nodes) => ("Node", nodes.clone()),
            Below::Switches(names) => ("HyperNode", names.iter().map(String::as_str).collect()),
        };
        for member in members {
            let member = scalar(member);
            text.push_str(&format!(
                "  - type: {kind}\n    selector:\n      exactMatch:\n        name: {member}\n"
            ));
        }
    }
    Ok(vec![File {
        name: "hypernodes.yaml".to_owned(),
        text,
    }])
}
