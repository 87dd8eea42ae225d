//! Releases what resource claims have left behind. DRANET does not repeat a release that failed, so
//! the agent asks the API server about each claim that holds an address. Only a whole answer that
//! the claim has ended counts.

use std::collections::HashMap;

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use serde_json::Value;

use anyhow::{Result, bail};

use crate::api::{explained, within};
use crate::report::{Claim, Show};

/// Objects of one page of a list.
const CLAIMS_PER_PAGE: u32 = 500;
/// The API server's name of the objects.
const PLURAL: &str = "resourceclaims";

fn api(client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceClaim");
    let kind = ApiResource::from_gvk_with_plural(&kind, PLURAL);
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    }
}

/// The claims that hold addresses of this node.
pub fn holding(show: &Show) -> Vec<Claim> {
    let leases = show.pools.iter().flat_map(|pool| &pool.leases);
    let mut claims: Vec<_> = leases.filter_map(|lease| lease.claim.clone()).collect();
    claims.sort();
    claims.dedup();
    claims
}

/// The claims that have ended, each with the reason.
pub async fn ended(client: &Client, node: &str, claims: &[Claim]) -> Result<Vec<(Claim, String)>> {
    let mut ended = Vec::new();
    // The claims of an older DRANET have no name, and are found by their UID.
    let mut all = None;
    // A claim may have a device on each rail.
    let mut read = HashMap::new();
    for claim in claims {
        let found = match claim.name.as_deref().and_then(|name| name.split_once('/')) {
            Some(key @ (namespace, name)) => match read.get(&key) {
                Some(found) => Option::clone(found),
                None => {
                    let found = get(client, namespace, name).await?;
                    read.insert(key, found.clone());
                    found
                }
            },
            None => {
                let all = match &mut all {
                    Some(all) => all,
                    none => none.insert(list(client).await?),
                };
                all.iter()
                    .find(|one| one.metadata.uid.as_ref() == Some(&claim.uid))
                    .cloned()
            }
        };
        if let Some(why) = end_of(found.as_ref(), claim, node)? {
            ended.push((claim.clone(), why));
        }
    }
    Ok(ended)
}

/// A claim; `None` if the API server knows that kind, and says that there is none of this name.
async fn get(client: &Client, namespace: &str, name: &str) -> Result<Option<DynamicObject>> {
    let found = within_raw(api(client, Some(namespace)).get(name)).await?;
    match found {
        Ok(claim) => Ok(Some(claim)),
        Err(kube::Error::Api(status))
            if status.code == 404
                && status
                    .details
                    .as_ref()
                    .is_some_and(|of| of.kind == PLURAL && of.name == name) =>
        {
            Ok(None)
        }
        Err(error) => Err(explained(error)),
    }
}

async fn within_raw<T>(request: impl Future<Output = kube::Result<T>>) -> Result<kube::Result<T>> {
    within(async { Ok(request.await) }).await
}

/// All claims of the cluster. A list that ends before its last page is an error.
async fn list(client: &Client) -> Result<Vec<DynamicObject>> {
    let (mut all, mut next) = (Vec::new(), None);
    loop {
        let mut params = ListParams::default().limit(CLAIMS_PER_PAGE);
        params.continue_token = next;
        let page = within(api(client, None).list(&params)).await?;
        next = page.metadata.continue_.filter(|token| !token.is_empty());
        all.extend(page.items);
        if next.is_none() {
            return Ok(all);
        }
    }
}

/// Why the claim does not need the device on this node any more; `None` if it does. The pool of a
/// device that DRANET serves is the name of its node.
fn end_of(found: Option<&DynamicObject>, claim: &Claim, node: &str) -> Result<Option<String>> {
    let Some(found) = found else {
        return Ok(Some("it was deleted".to_owned()));
    };
    let Some(uid) = &found.metadata.uid else {
        bail!("the API server returned no UID for the claim {}", claim.uid)
    };
    if *uid != claim.uid {
        return Ok(Some(
            "it was deleted, and another claim has its name".to_owned(),
        ));
    }
    let status = &found.data["status"];
    let Some(results) = status["allocation"]["devices"]["results"].as_array() else {
        return Ok(Some("it no longer has a device".to_owned()));
    };
    let has_device = results
        .iter()
        .any(|result: &Value| result["pool"] == node && result["device"] == claim.device);
    if !has_device {
        return Ok(Some("it has another device now".to_owned()));
    }
    if status["reservedFor"].as_array().is_none_or(Vec::is_empty) {
        return Ok(Some("no pod has it".to_owned()));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim() -> Claim {
        Claim {
            uid: "u-1".to_owned(),
            name: Some("ai/c".to_owned()),
            device: "pci-0000-1a-00-2".to_owned(),
        }
    }

    fn object(uid: &str, status: Value) -> DynamicObject {
        let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": "ai", "uid": uid}, "status": status});
        serde_json::from_value(object).unwrap()
    }

    fn end(found: Option<DynamicObject>) -> Option<String> {
        end_of(found.as_ref(), &claim(), "n").unwrap()
    }

    fn allocated(node: &str, device: &str, pods: Value) -> Value {
        json!({"allocation": {"devices": {"results": [{"driver": "gpu", "pool": "n", "device": "gpu-0"},
            {"driver": "dra.net", "pool": node, "device": device}]}}, "reservedFor": pods})
    }

    #[test]
    fn a_claim_holds_while_a_pod_of_this_node_has_its_device() {
        let pods = json!([{"resource": "pods", "name": "p"}]);
        let ours = || allocated("n", "pci-0000-1a-00-2", pods.clone());
        assert_eq!(end(Some(object("u-1", ours()))), None);
        for (found, case) in [
            (None, "deleted"),
            (Some(object("u-2", ours())), "another claim"),
            (Some(object("u-1", json!({}))), "no device"),
            (
                Some(object(
                    "u-1",
                    allocated("m", "pci-0000-1a-00-2", pods.clone()),
                )),
                "another node's device",
            ),
            (
                Some(object(
                    "u-1",
                    allocated("n", "pci-0000-3c-00-2", pods.clone()),
                )),
                "another device",
            ),
            (
                Some(object("u-1", allocated("n", "pci-0000-1a-00-2", json!([])))),
                "no pod",
            ),
        ] {
            golden::says(
                "agent",
                &format!("the end of a claim: {case}"),
                end(found).unwrap(),
            );
        }
    }

    #[test]
    fn half_an_answer_ends_nothing() {
        let mut half = object("u-1", json!({}));
        half.metadata.uid = None;
        assert!(end_of(Some(&half), &claim(), "n").is_err());
    }

    #[test]
    fn a_claim_of_two_pools_is_asked_for_once() {
        let claim = json!({"uid": "u", "name": null, "device": "d", "function": "0000:1a:00.2"});
        let lease = json!({"state": "live", "claim": claim});
        let show = json!({"pools": [{"leases": [lease, {"state": "live", "claim": null}]}, {"leases": [lease]}]});
        assert_eq!(holding(&serde_json::from_value(show).unwrap()).len(), 1);
    }
}
