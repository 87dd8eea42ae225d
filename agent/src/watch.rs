//! What the cluster says: objects that are listed and then watched, for as long as the agent runs.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch::{Receiver, Sender, channel};

use crate::api::explained;
use crate::serve::Shared;
use crate::text::say;

/// What is known of a kind of objects.
#[derive(Clone, Debug)]
pub enum Seen<K> {
    /// The API server has not answered yet.
    Nothing,
    /// The API server does not have this kind at all.
    NoSuchKind,
    /// All of them, by namespace and name.
    All(BTreeMap<(String, String), K>),
}

/// An error that stays the same is told again after this time.
const AGAIN: Duration = Duration::from_secs(600);

/// Watches the ConfigMap `name`.
pub fn config_map(
    client: &Client,
    namespace: &str,
    name: &str,
    shared: &Shared,
) -> Receiver<Seen<ConfigMap>> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    follow(api, config, format!("the ConfigMap {namespace}/{name}"), shared)
}

/// Watches the CIDRPools of a namespace, or all.
pub fn cidr_pools(
    client: &Client,
    namespace: Option<&str>,
    shared: &Shared,
) -> Receiver<Seen<DynamicObject>> {
    let kind = GroupVersionKind::gvk("nv-ipam.nvidia.com", "v1alpha1", "CIDRPool");
    let resource = ApiResource::from_gvk_with_plural(&kind, "cidrpools");
    let (api, what) = match namespace {
        Some(name) => (
            Api::<DynamicObject>::namespaced_with(client.clone(), name, &resource),
            format!("the CIDRPools of the namespace {name}"),
        ),
        None => (Api::all_with(client.clone(), &resource), "the CIDRPools".to_owned()),
    };
    follow(api, watcher::Config::default(), what, shared)
}

fn follow<K>(api: Api<K>, config: watcher::Config, what: String, shared: &Shared) -> Receiver<Seen<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (sender, receiver) = channel(Seen::Nothing);
    tokio::spawn(follow_until_unneeded(api, config, what, shared.clone(), sender));
    receiver
}

async fn follow_until_unneeded<K>(
    api: Api<K>,
    config: watcher::Config,
    what: String,
    shared: Shared,
    sender: Sender<Seen<K>>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let mut objects = Objects::default();
    let mut told: Option<(String, Instant)> = None;
    let mut stream = std::pin::pin!(watcher::watcher(api, config).default_backoff());
    while let Some(event) = stream.next().await {
        shared.with(|metrics| metrics.api_up = Some(event.is_ok()));
        match event {
            Ok(event) => {
                if told.take().is_some() {
                    say("info", &format!("the API server answers again about {what}"));
                }
                if objects.apply(event) {
                    sender.send_replace(Seen::All(objects.all.clone()));
                }
            }
            Err(error) => {
                if is_no_such_kind(&error) {
                    sender.send_replace(Seen::NoSuchKind);
                }
                let text = format!("{:#}", explained(error));
                if told.as_ref().is_none_or(|(old, then)| *old != text || then.elapsed() >= AGAIN) {
                    say("warn", &format!("cannot read {what}, what is on this node stays as it is: {text}"));
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

/// Objects as a watch tells them. Between `Init` and `InitDone` the list is not complete, and the old one counts.
#[derive(Debug)]
struct Objects<K> {
    all: BTreeMap<(String, String), K>,
    next: Option<BTreeMap<(String, String), K>>,
}

impl<K> Default for Objects<K> {
    fn default() -> Objects<K> {
        Objects { all: BTreeMap::new(), next: None }
    }
}

impl<K: Resource> Objects<K> {
    /// Returns whether what is known changed, and is complete.
    fn apply(&mut self, event: watcher::Event<K>) -> bool {
        let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            watcher::Event::Init => {
                self.next = Some(BTreeMap::new());
                false
            }
            watcher::Event::InitApply(object) => {
                self.next.get_or_insert_default().insert(key(&object), object);
                false
            }
            watcher::Event::InitDone => {
                self.all = self.next.take().unwrap_or_default();
                true
            }
            watcher::Event::Apply(object) => {
                self.all.insert(key(&object), object);
                true
            }
            watcher::Event::Delete(object) => {
                self.all.remove(&key(&object));
                true
            }
        }
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
        crate::api::runtime().unwrap().block_on(async {
            let config = kube::Config::new(format!("http://{address}").parse().unwrap());
            let client = crate::api::connect(config, Duration::from_millis(100)).unwrap();
            let shared = Shared::new();
            let receiver = config_map(&client, "kube-system", "rail-cni", &shared);
            let is_seen = async {
                while shared.with(|metrics| metrics.api_up) != Some(false) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), is_seen).await.unwrap();
            assert!(matches!(*receiver.borrow(), Seen::Nothing));
        });
    }

    #[test]
    fn a_list_that_is_not_complete_replaces_nothing() {
        let object = |name: &str| ConfigMap {
            metadata: kube::api::ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
            ..ConfigMap::default()
        };
        let mut objects = Objects::default();
        let names = |objects: &Objects<ConfigMap>| {
            objects.all.keys().map(|(_, name)| name.clone()).collect::<Vec<_>>().join(" ")
        };
        assert!(!objects.apply(Event::Init));
        assert!(!objects.apply(Event::InitApply(object("a"))));
        assert!(objects.apply(Event::InitDone));
        assert!(objects.apply(Event::Apply(object("b"))));
        // The API server was away, and the list is read again.
        assert!(!objects.apply(Event::Init));
        assert!(!objects.apply(Event::InitApply(object("c"))));
        assert_eq!(names(&objects), "a b");
        assert!(objects.apply(Event::InitDone));
        assert_eq!(names(&objects), "c");
        assert!(objects.apply(Event::Delete(object("c"))));
        assert_eq!(names(&objects), "");
    }
}
