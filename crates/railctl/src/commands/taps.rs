//! Rails of running pods whose frames another namespace takes.

use serde_json::{Value, json};

use rail_cni::device::stacked::Tap;

/// A rail in use whose frames another namespace takes.
#[derive(Clone, Debug, Default)]
pub struct Tapped {
    /// The link that takes them, if it was found.
    pub by: Option<Tap>,
    /// The pod in whose namespace that link is, if it has a rail, too.
    pub pod: Option<String>,
}

impl Tapped {
    /// The link that takes the frames, and where it is.
    pub fn describe(&self) -> String {
        let Some(Tap { link, netns }) = &self.by else {
            return "a link in a namespace that cannot be found takes its frames".to_owned();
        };
        let place = match (netns, &self.pod) {
            (None, _) => "the namespace of the node".to_owned(),
            (Some(netns), None) => format!("the namespace {}", netns.display()),
            (Some(netns), Some(pod)) => format!("the namespace {} of pod {pod}", netns.display()),
        };
        format!("{} ({}) in {place} takes its frames", link.name, link.kind)
    }

    /// The remedy.
    pub fn remedy(&self) -> String {
        let Some(Tap { link, netns }) = &self.by else {
            return "end its pod, and the pods that have NET_ADMIN without `hostUsers: false`"
                .to_owned();
        };
        match netns {
            None => format!("run `ip link del {}`, and find out who made it", link.name),
            Some(netns) => format!(
                "end the pod of that namespace, which has NET_ADMIN without `hostUsers: false`, or run `nsenter --net={} ip link del {}`",
                netns.display(),
                link.name
            ),
        }
    }

    /// Its JSON.
    pub fn json(&self) -> Value {
        let by = self.by.as_ref();
        json!({"link": by.map(|tap| &tap.link.name), "kind": by.map(|tap| &tap.link.kind),
            "netns": by.and_then(|tap| tap.netns.as_ref()), "pod": self.pod})
    }
}
