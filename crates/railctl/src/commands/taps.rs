//! Rails of running pods whose frames another namespace takes.

use serde_json::{Value, json};

use rail_cni::device::stacked::Tap;
use rail_netlink::link::is_plain_name;

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
        let name = &link.name;
        let is_plain = is_plain_name(name);
        let Some(netns) = netns else {
            let how = if is_plain {
                format!("run `ip link del {name}`")
            } else {
                "delete this link".to_owned()
            };
            return format!("{how}, and find out who made it");
        };
        let pod = "end the pod of that namespace, which has NET_ADMIN without `hostUsers: false`";
        if !is_plain {
            return pod.to_owned();
        }
        let netns = netns.display();
        format!("{pod}, or run `nsenter --net={netns} ip link del {name}`")
    }

    /// Its JSON.
    pub fn json(&self) -> Value {
        let by = self.by.as_ref();
        json!({"link": by.map(|tap| &tap.link.name), "kind": by.map(|tap| &tap.link.kind),
            "netns": by.and_then(|tap| tap.netns.as_ref()), "pod": self.pod})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rail_netlink::link::Index;
    use rail_netlink::stacked::Stacked;

    #[test]
    fn no_command_has_a_name_that_a_shell_would_run() {
        let remedy = |name: &str, netns: Option<&str>| {
            let link = Stacked {
                index: Index::MIN,
                name: name.to_owned(),
                kind: "macvlan".to_owned(),
            };
            let netns = netns.map(Into::into);
            let tapped = Tapped {
                by: Some(Tap { link, netns }),
                pod: None,
            };
            tapped.remedy()
        };
        for netns in [None, Some("/run/netns/a")] {
            assert!(remedy("mv0", netns).contains("ip link del mv0"));
            let told = remedy("a;reboot", netns);
            assert!(!told.contains("reboot") && !told.is_empty(), "{told}");
        }
    }
}
