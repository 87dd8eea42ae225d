//! The state of the cluster: objects that are listed and then watched, for as long as the agent
//! runs.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::watch::{Receiver, Sender, channel};

use crate::api::explained;
use crate::runtime::jittered;
use crate::serve::Shared;
use crate::text::log;

/// The known objects of a kind.
#[derive(Clone, Debug)]
pub enum Seen<V> {
    /// The API server has not answered yet.
    Nothing,
    /// The API server has answered with errors alone. This is the last one.
    Unread(String),
    /// The API server does not have this kind at all.
    NoSuchKind,
    /// Their text is longer than [`LARGEST`]: none of them is kept.
    TooLarge,
    /// The kept part of each, by namespace and name.
    All(BTreeMap<(String, String), V>),
}

impl<V> Seen<V> {
    /// Why nothing was read so far, if the API server says it.
    pub fn unread(&self) -> Option<String> {
        match self {
            Seen::Unread(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// The kept part of the one object that is watched, if it exists.
    pub fn only(&self) -> Option<&V> {
        match self {
            Seen::All(all) => all.values().next(),
            _ => None,
        }
    }
}

/// An error that stays the same is told again after this time, and what was too large is read
/// again.
const REREAD_INTERVAL: Duration = Duration::from_secs(600);
/// The most text that is kept of all objects of a kind. The CIDRPools of 8,192 nodes with 8 rails
/// are 5.5 MiB, and twice as much with `status.allocations`; the memory of the agent, and of the
/// railctl that it starts, is 512 MiB.
pub const MAX_POOL_BYTES: usize = 16 << 20;
/// Objects in an answer: one of them can have 1.5 MB of text, and while it is read it takes many
/// times as much.
const POOLS_PER_PAGE: u32 = 10;

/// Watches the ConfigMap `name`.
pub fn config_map(
    client: &Client,
    namespace: &str,
    name: &str,
    shared: &Shared,
) -> Receiver<Seen<ConfigMap>> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    // There is one, of 1 MiB at most.
    let keep = Keep {
        of: |map| map,
        size: |_| 0,
    };
    follow(
        api,
        config,
        format!("the ConfigMap {namespace}/{name}"),
        keep,
        shared,
    )
}

/// Watches this Node. The API server answers from its memory, which may be a little old: a fleet
/// that starts does not ask etcd.
pub fn node(client: &Client, name: &str, shared: &Shared) -> Receiver<Seen<Node>> {
    let config = watcher::Config::default()
        .fields(&format!("metadata.name={name}"))
        .any_semantic();
    let keep = Keep {
        of: |node| node,
        size: |_| 0,
    };
    follow(
        Api::all(client.clone()),
        config,
        format!("the Node {name}"),
        keep,
        shared,
    )
}

/// Watches the CIDRPools of a namespace, or all: the text of each as railctl reads it.
pub fn cidr_pools(
    client: &Client,
    namespace: Option<&str>,
    shared: &Shared,
) -> Receiver<Seen<Arc<str>>> {
    let kind = GroupVersionKind::gvk("nv-ipam.nvidia.com", "v1alpha1", "CIDRPool");
    let resource = ApiResource::from_gvk_with_plural(&kind, "cidrpools");
    let (api, what) = match namespace {
        Some(name) => (
            Api::<DynamicObject>::namespaced_with(client.clone(), name, &resource),
            format!("the CIDRPools of the namespace {name}"),
        ),
        None => (
            Api::all_with(client.clone(), &resource),
            "the CIDRPools".to_owned(),
        ),
    };
    let keep = Keep {
        of: manifest,
        size: |text: &Arc<str>| text.len(),
    };
    follow(
        api,
        watcher::Config::default().page_size(POOLS_PER_PAGE),
        what,
        keep,
        shared,
    )
}

/// A CIDRPool for railctl. An object of a watch may lack its kind.
fn manifest(pool: DynamicObject) -> Arc<str> {
    let mut item = pool.data;
    item["apiVersion"] = json!("nv-ipam.nvidia.com/v1alpha1");
    item["kind"] = json!("CIDRPool");
    // Ours say the rail and the leaf ports. That of kubectl is a second copy of the pool.
    let mut annotations = pool.metadata.annotations.unwrap_or_default();
    annotations.retain(|key, _| key.starts_with("rail-cni/"));
    item["metadata"] = json!({"name": pool.metadata.name, "namespace": pool.metadata.namespace, "annotations": annotations});
    item.to_string().into()
}

/// The part of an object that is kept, and its size.
struct Keep<K, V> {
    of: fn(K) -> V,
    size: fn(&V) -> usize,
}

impl<K, V> Clone for Keep<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Keep<K, V> {}

fn follow<K, V>(
    api: Api<K>,
    config: watcher::Config,
    what: String,
    keep: Keep<K, V>,
    shared: &Shared,
) -> Receiver<Seen<V>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let (sender, receiver) = channel(Seen::Nothing);
    let shared = shared.clone();
    tokio::spawn(async move {
        loop {
            follow_until_too_large(&api, &config, &what, keep, &shared, &sender).await;
            tokio::time::sleep(jittered(REREAD_INTERVAL)).await;
        }
    });
    receiver
}

async fn follow_until_too_large<K, V>(
    api: &Api<K>,
    config: &watcher::Config,
    what: &str,
    keep: Keep<K, V>,
    shared: &Shared,
    sender: &Sender<Seen<V>>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let mut objects = Objects::new(keep, MAX_POOL_BYTES);
    let mut told: Option<(String, Instant)> = None;
    let mut stream =
        std::pin::pin!(watcher::watcher(api.clone(), config.clone()).default_backoff());
    while let Some(event) = stream.next().await {
        shared.with(|metrics| metrics.api_up = Some(event.is_ok()));
        match event {
            Ok(event) => {
                if told.take().is_some() {
                    log(
                        "info",
                        &format!("the API server answers again about {what}"),
                    );
                }
                match objects.apply(event) {
                    Change::None => (),
                    Change::Complete => {
                        drop(sender.send_replace(Seen::All(objects.all.by_name.clone())))
                    }
                    Change::TooLarge => {
                        log(
                            "warn",
                            &format!("{what} have more than {} MiB of text", MAX_POOL_BYTES >> 20),
                        );
                        sender.send_replace(Seen::TooLarge);
                        return;
                    }
                }
            }
            Err(error) => {
                if is_no_such_kind(&error) {
                    sender.send_replace(Seen::NoSuchKind);
                }
                let text = format!("{:#}", explained(error));
                sender.send_if_modified(|seen| match seen {
                    Seen::Unread(old) if *old == text => false,
                    Seen::Nothing | Seen::Unread(_) => {
                        *seen = Seen::Unread(text.clone());
                        true
                    }
                    _ => false,
                });
                if told
                    .as_ref()
                    .is_none_or(|(old, then)| *old != text || then.elapsed() >= REREAD_INTERVAL)
                {
                    log(
                        "warn",
                        &format!("cannot read {what}, what is on this node stays as it is: {text}"),
                    );
                    told = Some((text, Instant::now()));
                }
            }
        }
    }
}

fn is_no_such_kind(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error) => {
            matches!(error, kube::Error::Api(status) if status.code == 404)
        }
        _ => false,
    }
}

/// Objects by namespace and name, and how long they are together.
struct Set<V> {
    by_name: BTreeMap<(String, String), V>,
    size: usize,
}

impl<V> Set<V> {
    fn new() -> Set<V> {
        Set {
            by_name: BTreeMap::new(),
            size: 0,
        }
    }
}

/// The change by an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// No change, or the knowledge is not complete.
    None,
    /// A change, and the knowledge is complete.
    Complete,
    /// There is more than may be kept, so nothing is.
    TooLarge,
}

/// Objects as a watch tells them. Between `Init` and `InitDone` the list is not complete, and the
/// old one counts.
struct Objects<K, V> {
    keep: Keep<K, V>,
    largest: usize,
    all: Set<V>,
    next: Option<Set<V>>,
}

impl<K: Resource, V> Objects<K, V> {
    fn new(keep: Keep<K, V>, largest: usize) -> Objects<K, V> {
        Objects {
            keep,
            largest,
            all: Set::new(),
            next: None,
        }
    }

    fn apply(&mut self, event: watcher::Event<K>) -> Change {
        let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        let Keep { of, size } = self.keep;
        let (set, key, kept, change) = match event {
            watcher::Event::Init => {
                self.next = Some(Set::new());
                return Change::None;
            }
            watcher::Event::InitDone => {
                self.all = self.next.take().unwrap_or_else(Set::new);
                return Change::Complete;
            }
            watcher::Event::InitApply(object) => {
                let set = self.next.get_or_insert_with(Set::new);
                (set, key(&object), Some(of(object)), Change::None)
            }
            watcher::Event::Apply(object) => (
                &mut self.all,
                key(&object),
                Some(of(object)),
                Change::Complete,
            ),
            watcher::Event::Delete(object) => (&mut self.all, key(&object), None, Change::Complete),
        };
        set.size += kept.as_ref().map_or(0, size);
        let old = match kept {
            Some(kept) => set.by_name.insert(key, kept),
            None => set.by_name.remove(&key),
        };
        set.size -= old.as_ref().map_or(0, size);
        if set.size <= self.largest {
            return change;
        }
        (self.all, self.next) = (Set::new(), None);
        Change::TooLarge
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watcher::Event;

    #[test]
    fn an_api_server_that_takes_the_connection_and_is_silent_is_away() {
        // The kernel takes the connection, and nobody answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        crate::runtime::runtime().unwrap().block_on(async {
            let config = kube::Config::new(format!("http://{address}").parse().unwrap());
            let client = crate::api::connect(config, Duration::from_millis(100)).unwrap();
            let shared = Shared::default();
            let receiver = config_map(&client, "kube-system", "rail-cni", &shared);
            let is_seen = async {
                while shared.with(|metrics| metrics.api_up) != Some(false) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), is_seen)
                .await
                .unwrap();
            assert!(matches!(*receiver.borrow(), Seen::Unread(_)));
        });
    }

    #[test]
    fn a_list_that_is_not_complete_replaces_nothing() {
        let object = |name: &str| ConfigMap {
            metadata: kube::api::ObjectMeta {
                name: Some(name.to_owned()),
                ..Default::default()
            },
            ..ConfigMap::default()
        };
        let mut objects = Objects::new(
            Keep {
                of: |map: ConfigMap| map,
                size: |_| 0,
            },
            0,
        );
        let names = |objects: &Objects<ConfigMap, ConfigMap>| {
            objects
                .all
                .by_name
                .keys()
                .map(|(_, name)| name.clone())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(objects.apply(Event::Init), Change::None);
        assert_eq!(objects.apply(Event::InitApply(object("a"))), Change::None);
        assert_eq!(objects.apply(Event::InitDone), Change::Complete);
        assert_eq!(objects.apply(Event::Apply(object("b"))), Change::Complete);
        // The API server was away, and the list is read again.
        assert_eq!(objects.apply(Event::Init), Change::None);
        assert_eq!(objects.apply(Event::InitApply(object("c"))), Change::None);
        assert_eq!(names(&objects), "a b");
        assert_eq!(objects.apply(Event::InitDone), Change::Complete);
        assert_eq!(names(&objects), "c");
        assert_eq!(objects.apply(Event::Delete(object("c"))), Change::Complete);
        assert_eq!(names(&objects), "");
    }

    fn pool(name: &str, more: serde_json::Value) -> DynamicObject {
        let mut object = json!({"metadata": {"name": name, "namespace": "n", "uid": "u", "managedFields": [{"manager": "m"}],
            "annotations": {"rail-cni/rail": "0", "kubectl.kubernetes.io/last-applied-configuration": "{}"}}});
        object
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn pools(largest: usize) -> Objects<DynamicObject, Arc<str>> {
        Objects::new(
            Keep {
                of: manifest,
                size: |text: &Arc<str>| text.len(),
            },
            largest,
        )
    }

    #[test]
    fn of_a_pool_only_what_rail_ipam_reads_is_kept() {
        let mut objects = pools(MAX_POOL_BYTES);
        objects.apply(Event::Apply(pool(
            "a",
            json!({"spec": {"cidr": "172.16.0.0/15"}}),
        )));
        let kept: Vec<serde_json::Value> = objects
            .all
            .by_name
            .values()
            .map(|text| serde_json::from_str(text).unwrap())
            .collect();
        assert_eq!(
            kept,
            [
                json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "CIDRPool", "spec": {"cidr": "172.16.0.0/15"},
                "metadata": {"name": "a", "namespace": "n", "annotations": {"rail-cni/rail": "0"}}})
            ]
        );
    }

    #[test]
    fn of_objects_that_are_too_large_none_is_kept() {
        let of = |name: &str, size: usize| pool(name, json!({"spec": {"cidr": "x".repeat(size)}}));
        let mut objects = pools(2000);
        let count = |objects: &Objects<DynamicObject, Arc<str>>| {
            objects.all.by_name.len() + objects.next.as_ref().map_or(0, |next| next.by_name.len())
        };
        objects.apply(Event::Init);
        assert_eq!(objects.apply(Event::InitApply(of("a", 900))), Change::None);
        assert_eq!(objects.apply(Event::InitDone), Change::Complete);
        // A replaced or removed object has no size any more.
        for _ in 0..9 {
            assert_eq!(objects.apply(Event::Apply(of("a", 1000))), Change::Complete);
            assert_eq!(objects.apply(Event::Apply(of("b", 500))), Change::Complete);
            assert_eq!(objects.apply(Event::Delete(of("b", 0))), Change::Complete);
        }
        assert_eq!(objects.apply(Event::Apply(of("b", 1000))), Change::TooLarge);
        assert_eq!(count(&objects), 0);
        // In a list, the rest is not waited for.
        objects.apply(Event::Init);
        assert_eq!(objects.apply(Event::InitApply(of("a", 1000))), Change::None);
        assert_eq!(
            objects.apply(Event::InitApply(of("b", 1000))),
            Change::TooLarge
        );
        assert_eq!(count(&objects), 0);
    }

    #[test]
    fn the_pools_of_8192_nodes_with_8_rails_fit_with_what_a_controller_adds() {
        let allocation = |node: usize| {
            json!({"nodeName": format!("worker-gpu-{node:04}"), "prefix": format!("172.16.{}.{}/31", node / 256, node % 256),
                "gateway": format!("172.16.{}.{}", node / 256, node % 256)})
        };
        let all: Vec<_> = (0..8192).map(allocation).collect();
        let spec = json!({"cidr": "172.16.0.0/15", "gatewayIndex": 0, "perNodeNetworkPrefix": 31,
            "routes": [{"dst": "172.16.0.0/15"}], "staticAllocations": all});
        let size = |more| manifest(pool("rail-0", more)).len() * 8;
        let planned = size(json!({"spec": spec}));
        assert!(
            planned > 5 << 20 && planned * 5 / 2 < MAX_POOL_BYTES,
            "{planned}"
        );
        assert!(size(json!({"spec": spec, "status": {"allocations": all}})) < MAX_POOL_BYTES);
    }
}
