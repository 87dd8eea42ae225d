//! Asks of an API server what the rail-agents of many nodes ask, each with connections of its own.
//! tests/cluster/fleet.sh runs it and reads what that costs the server.
//!
//! usage: fleet NODES SECONDS, with KUBECONFIG. It creates the Nodes, `fleet-0` and so on, and
//! leaves them.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Config};
use serde_json::json;

/// The heartbeat of a condition, as src/run.rs has it.
const HEARTBEAT: Duration = Duration::from_secs(300);
/// Within this, all have started, as after an upgrade of the DaemonSet that is not staged.
const START: Duration = Duration::from_secs(60);
/// Requests for Nodes that are made at once.
const AT_ONCE: usize = 50;

#[derive(Default)]
struct Counts {
    /// Objects that watches told after their first list.
    news: AtomicUsize,
    writes: AtomicUsize,
    failed: AtomicUsize,
    /// Agents whose watches have said what there is.
    told: AtomicUsize,
    micros: std::sync::Mutex<Vec<u64>>,
}

/// As large as the Node of a machine with fifty images.
fn node(name: &str) -> Node {
    let images: Vec<_> = (0..50)
        .map(|number| {
            let image = format!("registry.example.org/team/image-{number}");
            json!({"names": [format!("{image}@sha256:{number:064x}"), format!("{image}:1.0.{number}")], "sizeBytes": 1 << 28})
        })
        .collect();
    let node = json!({"metadata": {"name": name, "labels": {"rail-cni/fleet": "true"}}, "status": {"images": images}});
    serde_json::from_value(node).unwrap()
}

async fn create(client: &Client, count: usize) {
    let api = Api::<Node>::all(client.clone());
    let made = (0..count).map(|number| {
        let api = api.clone();
        async move {
            match api
                .create(&PostParams::default(), &node(&format!("fleet-{number}")))
                .await
            {
                Ok(_) => (),
                Err(kube::Error::Api(status)) if status.code == 409 => (),
                Err(error) => println!("fleet-{number}: {error}"),
            }
        }
    });
    futures::stream::iter(made)
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
}

/// One agent, for as long as the process runs.
async fn agent(config: Config, name: String, counts: Arc<Counts>) {
    let client = Client::try_from(config).unwrap();
    let nodes = Api::<Node>::all(client.clone());
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
    let of_map = watcher::Config::default().fields("metadata.name=rail-cni");
    tokio::spawn(follow(
        watcher::watcher(maps, of_map).default_backoff(),
        Arc::clone(&counts),
    ));
    let kind = GroupVersionKind::gvk("nv-ipam.nvidia.com", "v1alpha1", "CIDRPool");
    let pools = ApiResource::from_gvk_with_plural(&kind, "cidrpools");
    let pools = Api::<DynamicObject>::all_with(client.clone(), &pools);
    tokio::spawn(follow(
        watcher::watcher(pools, watcher::Config::default().page_size(10)).default_backoff(),
        Arc::clone(&counts),
    ));
    let own = watcher::Config::default()
        .fields(&format!("metadata.name={name}"))
        .any_semantic();
    tokio::spawn(follow(
        watcher::watcher(nodes.clone(), own).default_backoff(),
        Arc::clone(&counts),
    ));
    // Not all at once.
    tokio::time::sleep(HEARTBEAT.mul_f64(fraction(&name))).await;
    loop {
        let begun = Instant::now();
        let condition = json!({"type": "RailsReady", "status": "True", "reason": "Ready", "message": "8 rails",
            "lastHeartbeatTime": k8s_openapi::jiff::Timestamp::now()});
        let change = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        match nodes
            .patch_status(&name, &PatchParams::default(), &change)
            .await
        {
            Ok(_) => {
                counts.writes.fetch_add(1, Ordering::Relaxed);
                let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                counts.micros.lock().unwrap().push(micros);
            }
            Err(_) => drop(counts.failed.fetch_add(1, Ordering::Relaxed)),
        }
        tokio::time::sleep(HEARTBEAT).await;
    }
}

/// A number from 0 to 1 that each name has.
fn fraction(name: &str) -> f64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    f64::from(u32::try_from(hasher.finish() >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

async fn follow<K>(
    events: impl futures::Stream<Item = watcher::Result<watcher::Event<K>>>,
    counts: Arc<Counts>,
) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::InitDone) => drop(counts.told.fetch_add(1, Ordering::Relaxed)),
            Ok(watcher::Event::Apply(_)) => drop(counts.news.fetch_add(1, Ordering::Relaxed)),
            Ok(_) => (),
            Err(_) => drop(counts.failed.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .map(|text| text.parse().unwrap())
        .collect();
    let [count, seconds] = numbers[..] else {
        println!("usage: fleet NODES SECONDS");
        return;
    };
    let config = Config::infer().await.unwrap();
    create(&Client::try_from(config.clone()).unwrap(), count).await;
    println!("created {count}");
    let counts = Arc::new(Counts::default());
    for number in 0..count {
        tokio::spawn(agent(
            config.clone(),
            format!("fleet-{number}"),
            Arc::clone(&counts),
        ));
        tokio::time::sleep(START / u32::try_from(count).unwrap()).await;
    }
    let until = Instant::now() + 4 * START;
    while counts.told.load(Ordering::Relaxed) < 3 * count && Instant::now() < until {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    println!("started {count}");
    let begun =
        [&counts.news, &counts.writes, &counts.failed].map(|one| one.swap(0, Ordering::Relaxed));
    counts.micros.lock().unwrap().clear();
    tokio::time::sleep(Duration::from_secs(seconds.try_into().unwrap())).await;
    let during =
        [&counts.news, &counts.writes, &counts.failed].map(|one| one.load(Ordering::Relaxed));
    let mut micros = std::mem::take(&mut *counts.micros.lock().unwrap());
    micros.sort_unstable();
    let at = |share: usize| {
        micros
            .get(micros.len() * share / 100)
            .copied()
            .unwrap_or_default()
    };
    println!(
        "{}",
        json!({"agents": count, "told": counts.told.load(Ordering::Relaxed), "failedAtStart": begun[2], "seconds": seconds,
            "news": during[0], "writes": during[1], "failed": during[2], "micros": {"p50": at(50), "p99": at(99)}})
    );
}
